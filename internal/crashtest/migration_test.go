package crashtest_test

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// UPGRADE_MESSAGES messages move to PostgreSQL and back, and the migrations are killed at random times.
func TestMigration_IsKilledAtRandomAndLosesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	program := processtest.Build(t)
	d := newDaemon(t, program)
	want := fillOlder(t, d.Dir())
	testkit.NoError(t, d.Start(ctx)) // upgrades it
	wantUpgraded(ctx, t, d, want)
	server, back := postgrestest.Own(t).URL("postgres"), filepath.Join(t.TempDir(), "back")
	run := func(ctx context.Context, args ...string) (string, error) {
		command := exec.CommandContext(ctx, program, args...)
		command.Env = []string{"HOME=" + t.TempDir()}
		out, err := command.CombinedOutput()
		return string(out), err
	}
	for _, way := range []struct {
		from, to string
		check    []string // of the target
	}{
		{d.Dir(), server, []string{"check", "--store", server}},
		{server, back, []string{"check", "--data", back}},
	} {
		began, cuts := time.Now(), 0
		move := []string{"migrate", "--from", way.from, "--to", way.to}
		for range 10 {
			soon, stop := context.WithTimeout(ctx, rand.N(time.Second+60*time.Microsecond*time.Duration(want.messages)))
			if _, err := run(soon, move...); err != nil {
				cuts++
			}
			stop()
		}
		t.Logf("%d messages to %s, %d migrations cut: %v", want.messages, way.to, cuts, time.Since(began))
		began = time.Now()
		out, err := run(ctx, move...)
		if err != nil && !strings.Contains(out, " moved to ") { // an earlier one has ended
			t.Fatalf("the last migration to %s: %v\n%s", way.to, err, out)
		}
		t.Logf("the last migration took %v", time.Since(began))
		if out, err := run(ctx, way.check...); err != nil {
			t.Errorf("a check of %s: %v\n%s", way.to, err, out)
		}
	}
	if got := sumOf(t, back, want.messages); got != want {
		t.Errorf("after both migrations there is %+v, want %+v", got, want)
	}
}
