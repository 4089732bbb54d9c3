package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stageDemo returns the command `brokerctl demo` in a process of its own, with a function that checks
// that nothing is left of its daemon.
func stageDemo(t *testing.T, args ...string) (*exec.Cmd, func()) {
	t.Helper()
	tools, temp := t.TempDir(), t.TempDir()
	real := filepath.Join(tools, "real")
	// Without the profile: the packages are compiled for this test already.
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-pgo=off", "-o", real, "brokerd/cmd/brokerd").CombinedOutput(); err != nil {
		t.Fatalf("build brokerd: %v\n%s", err, out)
	}
	isolate(t)
	pid := filepath.Join(tools, "pid")
	script := "#!/bin/sh\necho $$ > " + pid + "\nexec " + real + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(tools, "brokerd"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"demo"}, args...)...)
	cmd.Env = append(program(t), "PATH="+tools+":"+os.Getenv("PATH"), "TMPDIR="+temp, "BROKERD_ADDR=127.0.0.1:1") // not meant for the demo
	return cmd, func() {
		t.Helper()
		text, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		daemon, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(daemon, 0); err != syscall.ESRCH {
			t.Errorf("the daemon is still there: %v", err)
		}
		left, err := os.ReadDir(temp)
		if err != nil || len(left) > 0 {
			t.Errorf("left in the temporary folder: %v, %v", left, err)
		}
	}
}

func TestDemo_ShowsATeamAtWorkAndLeavesNothing(t *testing.T) {
	cmd, gone := stageDemo(t, "--pace", "0.05")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, milestone := range []string{
		"lead       sends      6 tasks to role:builder",
		"claims     Fix the failing session test (priority 10)",
		"fails      Write the migration",
		"Write the migration (priority 5, attempt 2 of 3)",
		"asks       reviewer: bcrypt or argon2id?",
		"hears      reviewer: argon2id",
		"overseer   notes      message ",
		"looks up   the dead letter \"Port the old importer\"",
		"reviewer   hears      lead: sign-in is complete",
		"builder-2  waits      for auth/: builder-1 holds auth/login.go",
		"builder-1  crashes    in the middle of auth/login.go",
		"overseer   notes      builder-1 failed",
		"builder-2  locks      auth/, fence ",
		"reviewer   passes     it to builder-2",
		"builder-2  has        the token, fence ",
		"builder-1  returns    as incarnation 3, and is told that it lost auth/login.go",
		"builder-1  refused    a message under fence ",
		"message.sent         15",
		"ACKED ×3",
		"DEAD      Port the old importer",
		"What to try next",
	} {
		if !strings.Contains(string(out), milestone) {
			t.Errorf("the transcript does not have %q", milestone)
		}
	}
	if strings.Contains(string(out), "\x1b") {
		t.Error("there are colours in a pipe")
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
	gone()
}

func TestDemo_InterruptedLeavesNothing(t *testing.T) {
	cmd, gone := stageDemo(t, "--pace", "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), "claims"); {
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // the exit code says it all
	if got := cmd.ProcessState.ExitCode(); got != exitSignal+int(syscall.SIGINT) {
		t.Errorf("ended with %d, want %d", got, exitSignal+int(syscall.SIGINT))
	}
	gone()
}

func TestDemo_WithoutADaemonSaysWhereItLooked(t *testing.T) {
	isolate(t)
	t.Setenv("PATH", t.TempDir())
	if got := ctl(t, "demo"); got.code != exitError || !strings.Contains(got.err, "neither beside brokerctl nor in PATH") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "demo", "--pace", "-1"); got.code != exitUsage {
		t.Errorf("%+v", got)
	}
}
