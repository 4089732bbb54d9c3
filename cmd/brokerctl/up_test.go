package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/local"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// newBackground returns a shell without a broker whose PATH has brokerd. What up has started ends with the test.
func newBackground(tt *testing.T) *shell {
	t := newShell(tt)
	t.Setenv("PATH", filepath.Dir(processtest.Build(t))+":"+t.Getenv("PATH"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if got := t.invoke(ctx, "", nil, "down"); got.code != 0 {
			t.Errorf("down: %+v", got)
		}
	})
	return t
}

func TestUp_StartsABrokerThatDownStops(tt *testing.T) {
	t := newBackground(tt)
	t.variables["BROKERD_DATA"] = filepath.Join(t.TempDir(), "d")
	if got := must0(t, "down"); !strings.HasPrefix(got, "no broker runs on ") {
		t.Errorf("down before: %q", got)
	}
	started := fields(t, "up")
	pid, err := strconv.Atoi(number(at(t, started, "pid")))
	if err != nil || at(t, started, "started") != true || syscall.Kill(pid, 0) != nil {
		t.Fatalf("%v, %v", started, err)
	}
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("the process %d is in the group %d, %v: a signal of the terminal reaches it", pid, group, err)
	}
	register(t, "lead/lead")
	if again := fields(t, "up"); at(t, again, "started") != false || at(t, again, "pid") != at(t, started, "pid") {
		t.Errorf("up beside a broker: %v", again)
	}
	if got := ctl(t, "up", "--listen", "127.0.0.1:0"); got.code != problem.ExitConflict || !strings.Contains(got.err, "--listen is for a new one") {
		t.Errorf("up --listen beside a broker: %+v", got)
	}
	log, err := os.ReadFile(filepath.Join(t.Getenv("BROKERD_DATA"), local.LogName))
	if err != nil || !strings.Contains(string(log), `"msg":"started"`) {
		t.Errorf("the log: %q, %v", log, err)
	}
	if got := must0(t, "down"); !strings.HasPrefix(got, "stopped the broker: process ") {
		t.Errorf("down: %q", got)
	}
	if got := ctl(t, "ping"); got.code != problem.ExitUnreachable {
		t.Errorf("after down: %+v", got)
	}
	must0(t, "up")
	must0(t, "agent", "get", "lead")
}

func TestUp_SaysWhyABrokerDoesNotStart(tt *testing.T) {
	t := newBackground(tt)
	t.Setenv("BROKERD_DATA", filepath.Join(t.TempDir(), "d"))
	t.Setenv("BROKERD_SYNC", "sometimes")
	got := ctl(t, "up")
	if want := local.LogName + " shows its log"; got.code != problem.ExitUnreachable || !strings.Contains(got.err, want) {
		t.Errorf("%+v; want %q", got, want)
	}
	t.Setenv("BROKERD_SYNC", "")
}

func TestUp_CallsAtTheSameTimeStartOneBroker(tt *testing.T) {
	t := newBackground(tt)
	t.Setenv("BROKERD_DATA", filepath.Join(t.TempDir(), "d"))
	const calls = 4
	results := make(chan result, calls)
	for range calls {
		go func() { results <- t.invoke(t.Context(), "", nil, "up", "-o", "json") }()
	}
	pids := map[string]bool{}
	for range calls {
		got := <-results
		if got.code != 0 {
			t.Fatalf("%+v", got)
		}
		pids[number(at(t, decode(t, got.out), "pid"))] = true
	}
	if len(pids) != 1 {
		t.Errorf("the processes are %v", pids)
	}
}

func TestUp_WithoutTheProgramSaysSo(tt *testing.T) {
	t := newShell(tt)
	t.Setenv("PATH", t.TempDir())
	if got := ctl(t, "up"); got.code != problem.ExitError || !strings.Contains(got.err, "brokerd is neither beside brokerctl nor in PATH") {
		t.Errorf("%+v", got)
	}
}

// The test's systemctl notes what it is asked, and starts and stops the process that the unit names.
func TestUp_MakesAServiceWhereSystemdRunsForTheUser(tt *testing.T) {
	t := newBackground(tt)
	delete(t.variables, "BROKERD_DATA")
	state, runtime, programs := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	t.Setenv("PATH", programs+":"+t.Getenv("PATH"))
	apptest.NoError(t, os.MkdirAll(filepath.Join(runtime, "systemd", "private"), 0o700))
	asked := filepath.Join(t.TempDir(), "asked")
	unit := filepath.Join(t.Getenv("XDG_CONFIG_HOME"), "systemd", "user", local.UnitName)
	script := `#!/bin/sh
echo "$*" >>` + asked + `
case "$*" in
"--user enable --now brokerd.service")
	setsid sh -c "exec $(sed -n 's/^ExecStart=//p' ` + unit + `)" >/dev/null 2>&1 &
	echo $! >` + asked + `.pid ;;
"--user disable --now brokerd.service") kill "$(cat ` + asked + `.pid)" ;;
esac
`
	apptest.NoError(t, os.WriteFile(filepath.Join(programs, "systemctl"), []byte(script), 0o700))
	if up := fields(t, "up"); at(t, up, "data") != filepath.Join(state, "brokerd") || at(t, up, "log") != "journalctl --user -u brokerd" {
		t.Errorf("%v", up)
	}
	must0(t, "status")
	if down := fields(t, "down"); at(t, down, "stopped") != true {
		t.Errorf("%v", down)
	}
	if program, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := exec.CommandContext(t.Context(), program, "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v: %s", err, out)
		}
	}
	text, err := os.ReadFile(asked)
	want := []string{"--user daemon-reload", "--user enable --now brokerd.service", "--user is-enabled --quiet brokerd.service",
		"--user disable --now brokerd.service"}
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); err != nil || !slices.Equal(got, want) {
		t.Errorf("systemctl was asked %q, %v; want %q", got, err, want)
	}
}

func TestUp_IsCalledByTheMCPServerAndHooksOnlyWhereSetupWasTold(tt *testing.T) {
	t := newBackground(tt)
	t.variables["BROKERD_DATA"] = filepath.Join(t.TempDir(), "d")
	hook := func() result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return t.invoke(ctx, `{"hook_event_name":"BrokerdCheck"}`, nil, "hook", "claude-code", "--agent", "lead-1")
	}
	must0(t, "setup", "claude-code", "--agent", "lead-1")
	hook()
	if got := ctl(t, "ping"); got.code != problem.ExitUnreachable {
		t.Fatalf("a hook without start has started a broker: %+v", got)
	}
	must0(t, "setup", "claude-code", "--agent", "lead-1", "--start", "--dry-run")
	if got := ctl(t, "ping"); got.code != problem.ExitUnreachable {
		t.Fatalf("setup --dry-run has started a broker: %+v", got)
	}
	must0(t, "setup", "claude-code", "--agent", "lead-1", "--start")
	must0(t, "ping")
	must0(t, "down")
	if got := ctl(t, "agent", "list"); got.code != problem.ExitUnreachable {
		t.Errorf("a command of a person has started a broker: %+v", got)
	}
	hook()
	must0(t, "ping")
	must0(t, "down")
	m := startModel(t)
	m.call("turn", `{}`, "You are the agent lead-1 in")
	m.end()
	must0(t, "setup", "claude-code", "--remove")
}
