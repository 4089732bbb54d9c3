package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

// openTerminal returns a pseudo-terminal: closing its outer side is closing the window.
func openTerminal(t testing.TB) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	apptest.NoError(t, unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	apptest.NoError(t, err)
	inner, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = inner.Close() })
	return outer, inner
}

// startOn starts a command as the first process of a terminal.
func startOn(t testing.TB, inner *os.File, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inner, inner, inner
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	apptest.NoError(t, cmd.Start())
	apptest.NoError(t, inner.Close())
}

func TestRuns_AClosedTerminalReleasesWhatTheyHold(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	for name, command := range holdingCommands {
		t.Run(name, func(t *shell) {
			register(t, "builder-1")
			message := sent(t, "builder-1", "task")
			ready := pipe(t)
			outer, inner := openTerminal(t)
			cmd := brokerctl(t, append(append([]string{"--agent", "builder-1"}, command...), onHangup(ready)...)...)
			startOn(t, inner, cmd)
			await(t, ready)
			apptest.NoError(t, outer.Close())
			_ = cmd.Wait() // the exit code tells
			if got := cmd.ProcessState.ExitCode(); got != 3 {
				t.Errorf("ended with %d", got)
			}
			nothingHeld(t, message)
		})
	}
}

func TestDemo_AClosedTerminalLeavesNothing(tt *testing.T) {
	t := newShell(tt)
	cmd, gone := newDemoStage(t).demo(t)
	outer, inner := openTerminal(t)
	startOn(t, inner, cmd)
	apptest.NoError(t, apptest.Err(io.ReadFull(outer, make([]byte, 500))))
	apptest.NoError(t, outer.Close())
	_ = cmd.Wait() // it cannot print why it ends
	gone()
}

func TestTrust_AsksOnATerminal(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	configure(t, "addr: 127.0.0.1:1\n")
	for _, c := range []struct {
		answer string
		code   int
	}{{"\n", problem.ExitError}, {"no\n", problem.ExitError}, {"y\n", 0}} {
		outer, inner := openTerminal(t)
		apptest.NoError(t, apptest.Err(outer.WriteString(c.answer)))
		var out, errs strings.Builder
		env := t.environment("", &out, &errs)
		env.In = inner
		if code := run(t.Context(), env, []string{"trust"}); code != c.code ||
			!strings.Contains(errs.String(), "addr             127.0.0.1:1\n") || !strings.Contains(errs.String(), "[y/N]") {
			t.Errorf("%q: code %d, %s%s", c.answer, code, out.String(), errs.String())
		}
	}
	if got := must0(t, "trust"); !strings.Contains(got, "trusted already") {
		t.Errorf("%s", got)
	}
}
