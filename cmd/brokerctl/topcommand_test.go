package main

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestTop_WithoutATerminalNamesTheOtherCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	if got := ctl(t, "top"); got.code != problem.ExitUsage || !strings.Contains(got.err, "brokerctl overview --follow") {
		t.Errorf("%+v", got)
	}
}

func TestTop_OnATerminal(tt *testing.T) {
	t := newShell(tt)
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	dir := isolate(t)
	daemon := daemonProcessOn(t, dir)
	register(t, "lead/lead", "builder-1/builder")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")

	w := openWindow(t, `before=$(stty -g); brokerctl top
		echo code-$?; [ "$before" = "$(stty -g)" ] && echo restored; exec cat`)
	shows := func(texts ...string) {
		t.Helper()
		w.awaitScreen(strings.Join(texts, ", "), func(screen string) bool {
			for _, text := range texts {
				if !strings.Contains(screen, text) {
					return false
				}
			}
			return true
		})
	}
	shows("[1 Attention]", "mailbox builder-1", "live")
	w.keys("2")
	shows("[2 Team]", "lead", "builder-1")
	w.keys("6")
	shows("[6 Dead]", "Add login", "no compiler")
	w.keys("Enter")
	shows("delivery to builder-1", "no compiler")
	w.keys("a")
	shows("1 redrive this dead letter")
	w.keys("1")
	shows("Do it? y/n")
	w.keys("y")
	shows("redrove 1 dead letter")

	must0(t, "session", "create", "web")
	w.keys("c")
	shows("Show the session", "> default", "web")
	w.keys("Down")
	w.keys("Enter")
	shows("web  0 agents", " live", "there are no dead letters")
	w.keys("c")
	shows("> web")
	w.keys("Up")
	w.keys("Enter")
	shows("default  2 agents", " live")

	kill(t, daemon.Process.Pid, syscall.SIGKILL)
	_ = daemon.Wait() // it was killed
	shows("NOT CONNECTED")
	daemonProcessOn(t, dir)
	shows(" live")
	shows("there are no dead letters")
	sent(t, "--agent", "lead", "builder-1", "After the restart")
	w.keys("4")
	shows("[4 Timeline]", "After the restart")

	w.tmux("resize-window", "-x", "80", "-y", "24")
	w.keys("1")
	shows("[1 Attention]", "? keys")
	w.keys("q")
	w.await("code-0")
	w.await("restored")
	if screen := w.screen(); strings.Contains(screen, "Attention") {
		t.Errorf("the screen before is not back:\n%s", screen)
	}
}
