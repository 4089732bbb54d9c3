package docs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/app"
	"brokerd/internal/processtest"
)

// commandsOf returns the shell commands of a page, as its reader types them.
func commandsOf(t *testing.T, page string) []string {
	t.Helper()
	var commands []string
	for _, block := range fence.FindAllStringSubmatch(read(t, page), -1) {
		if block[1] != "sh" && !strings.HasPrefix(block[2], "brokerctl ") {
			continue
		}
		for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
			if m := exitCode.FindStringSubmatch(command); m != nil {
				command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
			}
			if !strings.HasPrefix(command, "make ") && !strings.HasPrefix(command, "sudo ") &&
				!strings.HasPrefix(command, "sha256sum ") {
				commands = append(commands, command)
			}
		}
	}
	return commands
}

// A reader who follows the tours twice leaves nothing that explain reports, neither at once nor an
// hour later.
func TestTours_LeaveNothingStuck(t *testing.T) {
	t.Parallel()
	repository, env := t.TempDir(), processtest.Environment(t)
	clock := clockwork.NewFakeClockAt(time.Now())
	runBroker(t, repository, env, clock)
	reader, lead, builder := openTerminal(t, repository, env), openTerminal(t, repository, env), openTerminal(t,
		repository, env)
	reader.run(`export PATH="$PWD/bin:$PATH"`)
	reader.run("git init --quiet")
	script := fence.FindStringSubmatch(read(t, "agents-bash.md"))[2]
	if err := os.WriteFile(filepath.Join(repository, "agent.sh"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, command := range commandsOf(t, "tour.md") {
			reader.run(command)
		}
		terminals := []*terminal{lead, lead, builder, builder, lead, builder, builder, lead, lead, lead} // as the page says
		for i, command := range commandsOf(t, "getting-started.md") {
			terminals[i].run(command)
		}
		for _, command := range commandsOf(t, "coordination.md") {
			reader.run(command)
		}
		for range 2 {
			reader.run("brokerctl send role:worker 'One more task'")
		}
		reader.run("WAIT=1s bash agent.sh worker-1 worker true")
	}
	nothing := func(when string) {
		t.Helper()
		if printed := reader.run("brokerctl explain"); printed != "nothing is stuck\n" {
			t.Errorf("%s, explain reports\n%s", when, printed)
		}
		for _, agent := range []string{"lead", "builder-1", "builder-2", "critic-1", "worker-1"} {
			if printed := reader.run("brokerctl --agent " + agent + " explain"); printed != "nothing that concerns "+agent+" is stuck\n" {
				t.Errorf("%s, explain reports to %s\n%s", when, agent, printed)
			}
		}
		if printed := reader.run("brokerctl status -o json"); !strings.Contains(printed, `"waiting":0,"claimed":0,"dead":0`) {
			t.Errorf("%s, messages are left:\n%s", when, printed)
		}
	}
	nothing("after the tours")
	for range 3600 {
		clock.Advance(time.Second)
	}
	nothing("an hour later")
}

// runBroker runs a daemon whose clock goes as fast as the real one, and faster when the test
// advances it. Without a clock of its own, it would have to wait for the hour.
func runBroker(t *testing.T, repository string, env []string, clock *clockwork.FakeClock) {
	t.Helper()
	program := processtest.Build(t)
	if err := os.Symlink(filepath.Dir(program), filepath.Join(repository, "bin")); err != nil {
		t.Fatal(err)
	}
	home := strings.TrimPrefix(env[0], "HOME=")
	daemon, err := app.Start(t.Context(), app.Config{
		Dir: filepath.Join(home, ".local", "state", "brokerd"), Clock: clock, DiskUsed: func(string) (float64,
			error) {
			return 0, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const tick = 5 * time.Millisecond
	ticker := time.NewTicker(tick)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-ticker.C:
				clock.Advance(tick)
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		if err := daemon.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		ticker.Stop()
		close(stop)
		<-stopped
	})
}
