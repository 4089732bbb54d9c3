package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"brokerd/internal/processtest"
)

// A demoStage is where `brokerctl demo` runs in a process of its own, with a brokerd whose end the
// test notices.
type demoStage struct {
	tools  string // the folder with brokerd
	daemon string // a named pipe that the daemon holds open for as long as it runs
}

func newDemoStage(t *testing.T) *demoStage {
	t.Helper()
	s := &demoStage{tools: t.TempDir(), daemon: pipe(t)}
	real := processtest.Build(t)
	isolate(t)
	script := "#!/bin/sh\nexec 9> " + s.daemon + "\nexec " + real + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(s.tools, "brokerd"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// demo returns the command, and a function that waits for the end of its daemon and checks that
// nothing is left.
func (s *demoStage) demo(t *testing.T, args ...string) (*exec.Cmd, func()) {
	t.Helper()
	processtest.HeedHangups(t)
	temp := t.TempDir()
	held, err := os.OpenFile(s.daemon, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = held.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"demo"}, args...)...)
	cmd.Env = append(program(t), "PATH="+s.tools+":"+os.Getenv("PATH"), "TMPDIR="+temp,
		"BROKERD_ADDR=127.0.0.1:1") // not meant for the demo
	return cmd, func() {
		t.Helper()
		if err := held.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(held); err != nil {
			t.Errorf("the daemon has not ended: %v", err)
		}
		left, err := os.ReadDir(temp)
		if err != nil || len(left) > 0 {
			t.Errorf("left in the temporary folder: %v, %v", left, err)
		}
	}
}

func TestDemo_ShowsATeamAtWorkAndLeavesNothing(t *testing.T) {
	cmd, gone := newDemoStage(t).demo(t, "--pace", "0.05")
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

func TestDemo_EndedEarlyLeavesNothing(t *testing.T) {
	s := newDemoStage(t)
	for _, signal := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGKILL,
	} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			cmd, gone := s.demo(t)
			var errs strings.Builder
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), "claims"); {
			}
			want := exitSignal + int(signal)
			switch signal {
			case syscall.SIGPIPE: // comes from the next write
				err = out.Close()
			case syscall.SIGKILL:
				want = -1
				fallthrough
			default:
				err = cmd.Process.Signal(signal)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait() // the exit code tells
			if got := cmd.ProcessState.ExitCode(); got != want || errs.Len() > 0 {
				t.Errorf("ended with %d, want %d: %s", got, want, errs.String())
			}
			gone()
		})
	}
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
