package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// brokerctl is the program in a process of its own, which is killed if it takes too long.
func brokerctl(t *shell, args ...string) *exec.Cmd {
	t.Helper()
	processtest.HeedHangups(t)
	cmd := t.command(os.Args[0], args...)
	cmd.Env = program(t)
	return cmd
}

// onHangup is a script that writes to the pipe once it is ready, and ends with code 3 at SIGHUP.
func onHangup(ready string) []string {
	const script = `sleep 60 >/dev/null 2>&1 & trap 'kill $!; echo got HUP; exit 3' HUP; echo > READY; wait`
	return []string{"--", "sh", "-c", strings.ReplaceAll(script, "READY", ready)}
}

// The commands that run another command under something that they hold.
var holdingCommands = map[string][]string{
	"lock run":  {"lock", "run", "a.go"},
	"token run": {"token", "run", "review", "x"},
	"agent run": {"agent", "run", "--agent", "builder-1"},
	"work":      {"work", "--once"},
}

// nothingHeld checks that what the holding commands hold is free again.
func nothingHeld(t *shell, message string) {
	t.Helper()
	if out := must0(t, "lock", "list", "-o", "json"); out != "" {
		t.Errorf("still locked: %s", out)
	}
	if out := must0(t, "token", "list", "-o", "json", "--state", "held"); out != "" {
		t.Errorf("still held: %s", out)
	}
	takeReleased(t, message)
}

func TestRuns_PassAHangupOnAndReleaseWhatTheyHold(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	for name, command := range holdingCommands {
		t.Run(name, func(t *shell) {
			register(t, "builder-1")
			message := sent(t, "builder-1", "task")
			ready := pipe(t)
			cmd := brokerctl(t, append(append([]string{"--agent", "builder-1"}, command...), onHangup(ready)...)...)
			var out strings.Builder
			cmd.Stdout = &out
			apptest.NoError(t, cmd.Start())
			await(t, ready)
			for range 2 { // a shell and the kernel may each send one; the second does not kill
				apptest.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
			}
			_ = cmd.Wait() // the exit code tells
			if got := cmd.ProcessState.ExitCode(); got != 3 || out.String() != "got HUP\n" {
				t.Errorf("ended with %d, %q", got, out.String())
			}
			nothingHeld(t, message)
		})
	}
}

func TestRuns_AnIgnoredHangupStaysIgnored(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	goOn, ready := pipe(t), pipe(t)
	cmd := t.command("sh", "-c",
		`trap '' HUP; exec brokerctl --agent builder-1 lock run a.go -- sh -c 'echo > `+ready+`; cat `+goOn+`; exit 4'`)
	cmd.Env = program(t)
	apptest.NoError(t, cmd.Start())
	await(t, ready)
	apptest.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	apptest.NoError(t, os.WriteFile(goOn, nil, 0o600))
	_ = cmd.Wait() // the exit code tells
	if got := cmd.ProcessState.ExitCode(); got != 4 {
		t.Errorf("ended with %d", got)
	}
}
