package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// A demoStage is where `brokerctl demo` runs in a process of its own, with a brokerd whose end the
// test notices.
type demoStage struct {
	tools  string // the folder with brokerd
	daemon string // a named pipe that the daemon holds open for as long as it runs
}

func newDemoStage(t *shell) *demoStage {
	t.Helper()
	s := &demoStage{tools: t.TempDir(), daemon: pipe(t)}
	real := processtest.Build(t)
	isolate(t)
	script := "#!/bin/sh\nexec 9> " + s.daemon + "\nexec " + real + ` "$@"` + "\n"
	apptest.NoError(t, os.WriteFile(filepath.Join(s.tools, "brokerd"), []byte(script), 0o700))
	return s
}

// demo returns the command, and a function that waits for the end of its daemon and checks that
// nothing is left.
func (s *demoStage) demo(t *shell, args ...string) (*exec.Cmd, func()) {
	t.Helper()
	processtest.HeedHangups(t)
	temp := t.TempDir()
	held, err := os.OpenFile(s.daemon, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = held.Close() })
	cmd := t.command(os.Args[0], append([]string{"demo"}, args...)...)
	cmd.Env = append(program(t), "PATH="+s.tools+":"+t.Getenv("PATH"), "TMPDIR="+temp,
		"BROKERD_ADDR=127.0.0.1:1") // not meant for the demo
	return cmd, func() {
		t.Helper()
		apptest.NoError(t, held.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.ReadAll(held); err != nil {
			t.Errorf("the daemon has not ended: %v", err)
		}
		left, err := os.ReadDir(temp)
		if err != nil || len(left) > 0 {
			t.Errorf("left in the temporary folder: %v, %v", left, err)
		}
	}
}

func TestDemo_ShowsATeamAtWorkAndLeavesNothing(tt *testing.T) {
	t := newShell(tt)
	cmd, gone := newDemoStage(t).demo(t, "--pace", "0.05")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, milestone := range []string{
		"lead       an agent that gives out tasks",
		`lead       $ brokerctl send role:builder "Fix the failing session test" --priority 10`,
		`$ brokerctl nack --error "test database is locked"`,
		"from lead: Write the migration (attempt 2)",
		`$ brokerctl ask reviewer "bcrypt or argon2id?" --wait 30s`,
		"reviewer answers: argon2id",
		"is a dead letter after 1 attempt: no such repository: importer",
		"you        $ brokerctl dlq list",
		"from lead: sign-in is complete, pull main",
		"builder-2    auth/login.go is held by builder-1",
		"builder-1    crashes",
		"you          builder-1 failed",
		"builder-2    locked auth/",
		`$ brokerctl token pass deploy staging builder-2 --note "the tests are green"`,
		"builder-2    passed by reviewer: the tests are green",
		`builder-1  $ BROKERD_FENCE=`,
		"builder-1    lost: lock auth/login.go",
		"\nREV  FROM ",
		"acked ×3  sign-in is complete",
		"dead      Port the old importer",
		"What to try next",
	} {
		if !strings.Contains(string(out), milestone) {
			t.Errorf("the transcript does not have %q", milestone)
		}
	}
	if n := strings.Count(string(out), "agent register builder-1 "); n != 2 {
		t.Errorf("builder-1 registers %d times; at the start and after its crash are meant", n)
	}
	if strings.Contains(string(out), "\x1b") {
		t.Error("there are colours in a pipe")
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
	gone()
}

func TestDemo_EndedEarlyLeavesNothing(tt *testing.T) {
	t := newShell(tt)
	s := newDemoStage(t)
	for _, signal := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGKILL,
	} {
		t.Run(unix.SignalName(signal), func(t *shell) {
			cmd, gone := s.demo(t)
			var errs strings.Builder
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			apptest.NoError(t, err)
			apptest.NoError(t, cmd.Start())
			for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), " from lead: "); {
			}
			want := problem.ExitSignal + int(signal)
			switch signal {
			case syscall.SIGPIPE: // comes from the next write
				err = out.Close()
			case syscall.SIGKILL:
				want = -1
				fallthrough
			default:
				err = cmd.Process.Signal(signal)
			}
			apptest.NoError(t, err)
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait() // the exit code tells
			if got := cmd.ProcessState.ExitCode(); got != want || errs.Len() > 0 {
				t.Errorf("ended with %d, want %d: %s", got, want, errs.String())
			}
			gone()
		})
	}
}

// sees follows the events of the demo with the token of the dashboard until each has come, as TYPE or as
// TYPE SOURCE.
func sees(t testing.TB, base, token string, wanted ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", base+"/v1/events/follow?after_revision=0", nil)
	apptest.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Close = true
	out, err := http.DefaultClient.Do(r)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	frames := json.NewDecoder(out.Body)
	for len(wanted) > 0 {
		var frame struct {
			Events []struct{ Type, Source string }
		}
		if err := frames.Decode(&frame); err != nil {
			t.Fatalf("%v before the events %v", err, wanted)
		}
		for _, e := range frame.Events {
			fits := func(want string) bool { return want == e.Type || want == e.Type+" "+e.Source }
			if i := slices.IndexFunc(wanted, fits); i >= 0 {
				wanted = slices.Delete(wanted, i, i+1)
			}
		}
	}
}

func TestDemoDashboard_KeepsATeamAtWorkUntilItIsInterrupted(tt *testing.T) {
	t := newShell(tt)
	cmd, gone := newDemoStage(t).demo(t, "--dashboard", "--pace", "0.05")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	link := lines.Text()
	status, answer := exchange(t, link)
	if status != http.StatusOK || answer["level"] != "operator" {
		t.Fatalf("the link %q: %d %v", link, status, answer)
	}
	base, _, _ := strings.Cut(link, "/login#")
	token := answer["token"].(string)
	sees(t, base, token, "task.completed", "task.failed", "message.dead", "vote.cast", "decision.decided", "lock.granted",
		"token.granted", "handoff.accepted", "blocker.encountered", "blocker.resolved", "agent.failed", "vote.opened",
		"vote.opened")
	// A person may send what the team does not expect: a vote without options, and the end.
	for _, message := range []string{
		`{"target":{"agent":"reviewer"},"type":"vote_initiate"}`, `{"target":{"agent":"builder-1"},"type":"terminate"}`,
	} {
		status, got := post(t, base+"/v1/messages", token, `{"messages":[`+message+`]}`)
		if status != http.StatusOK || strings.Contains(fmt.Sprint(got), "error:map") {
			t.Fatalf("%s: %d %v", message, status, got)
		}
	}
	sees(t, base, token, "agent.registered builder-1", "agent.deregistered builder-1", "agent.registered builder-1")
	apptest.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	var rest strings.Builder
	for lines.Scan() {
		rest.WriteString(lines.Text() + "\n")
	}
	_ = cmd.Wait() // the exit code tells
	if got := cmd.ProcessState.ExitCode(); got != problem.ExitSignal+int(syscall.SIGINT) || errs.Len() > 0 {
		t.Errorf("ended with %d: %s", got, errs.String())
	}
	if !strings.Contains(rest.String(), "For another link: brokerctl --addr unix://") {
		t.Errorf("%s", rest.String())
	}
	gone()
}

func TestDemo_WithoutADaemonSaysWhereItLooked(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("PATH", t.TempDir())
	if got := ctl(t, "demo"); got.code != problem.ExitError || !strings.Contains(got.err, "neither beside brokerctl nor in PATH") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "demo", "--pace", "-1"); got.code != problem.ExitUsage {
		t.Errorf("%+v", got)
	}
}
