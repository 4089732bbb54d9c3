package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// cut runs a migration and kills it after it has said so many lines. It reports whether the migration had ended before.
func cut(t *testing.T, after int, args ...string) bool {
	t.Helper()
	cmd := command(t, args...)
	said, err := cmd.StderrPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, cmd.Start())
	lines := bufio.NewScanner(said)
	for range after {
		lines.Scan()
	}
	_ = cmd.Process.Kill() // it may have ended
	for lines.Scan() {     // to the end
	}
	return cmd.Wait() == nil
}

// A migration that is killed leaves a target on which no brokerd starts, and the same command ends the migration.
func TestMigrate_KilledAtAnyMomentItIsRepeated(t *testing.T) {
	t.Parallel()
	p := launch(t)
	root := p.operator(t)
	for i := range 20 {
		apptest.Must(t, root.CreateSession, &pb.CreateSessionRequest{Name: fmt.Sprintf("s%d", i)})
	}
	p.end(t)
	folder, database, back := []string{"check", "--data", p.dir}, postgrestest.Database(t), filepath.Join(t.TempDir(), "back")
	onServer := []string{"check", "--store", database, "--data", t.TempDir()}
	for _, way := range []struct {
		from, to       string
		source, target []string // checks of them
	}{
		{p.dir, database, folder, onServer},
		{database, back, onServer, []string{"check", "--data", back}},
	} {
		args, cuts := []string{"migrate", "--from", way.from, "--to", way.to}, 0
		for after := 2 + rand.N(3); !cut(t, after, args...); after += 5 + rand.N(10) {
			out, _ := command(t, way.target...).CombinedOutput()
			if strings.HasPrefix(string(out), "sound: ") {
				break // it was killed when it had done everything
			}
			if cuts++; !strings.Contains(string(out), "a migration into ") {
				t.Errorf("after %d lines, a check of a target that is not complete: %s", after, out)
			}
		}
		if cuts == 0 {
			t.Errorf("to %s: the migration was never killed before its end", way.to)
		}
		if text := fails(t, 0, way.target...); !strings.HasPrefix(text, "sound: ") {
			t.Errorf("a check of the target: %s", text)
		}
		for _, args := range [][]string{way.source, args} {
			if text := fails(t, 1, args...); !strings.Contains(text, " moved to ") {
				t.Errorf("brokerd %q after the migration: %s", args, text)
			}
		}
	}
}

func TestMigrate_AWrongCommandLineSaysWhatIsMeant(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                "give --from",
		"--from /a":                       "give --to",
		"--from /a --to /b":               "give one folder and one URL",
		"--from /a --to postgres://a:b@c": "to: every user of this machine sees the password",
		"--from /a --to mysql://a":        "must be a folder or the URL of a PostgreSQL database",
	} {
		if text := fails(t, 2, append([]string{"migrate"}, strings.Fields(args)...)...); !strings.Contains(text, want) {
			t.Errorf("migrate %s: %s", args, text)
		}
	}
}
