package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/setting"
)

// A shell is a test with its own variables and working folder, which brokerctl and other programs get
// from it. No test changes those of the process, so tests run in parallel. Its methods are for one
// goroutine at a time, except invoke and invokeOn.
type shell struct {
	*testing.T
	variables map[string]string
	dir       string
	agent     *exec.Cmd        // the coding agent of hooks and of the commands of its model; nil = this process, of hooks alone
	now       func() time.Time // of brokerctl in this process; nil = time.Now
}

// newShell makes the test parallel, and returns it with a shell that knows no broker.
func newShell(tt *testing.T) *shell {
	tt.Helper()
	tt.Parallel()
	t := &shell{T: tt}
	isolate(t)
	return t
}

// isolate gives the test a new environment, home folder and working folder, and returns the data
// folder, where no broker runs yet.
func isolate(t *shell) string {
	t.Helper()
	home := t.TempDir()
	t.variables = map[string]string{
		"HOME": home, "HISTFILE": "/dev/null", "NO_COLOR": "1", "BROKERD_DATA": filepath.Join(t.TempDir(), "data"),
		"GORACE": "atexit_sleep_ms=0", // with the race detector, a program sleeps for a second before it exits
	}
	for _, name := range []string{"CONFIG", "CACHE", "STATE", "DATA"} {
		t.variables["XDG_"+name+"_HOME"] = filepath.Join(home, strings.ToLower(name))
	}
	for _, name := range []string{"PATH", "LANG", "LC_ALL", "TMPDIR", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			t.variables[name] = value
		}
	}
	t.dir = t.TempDir() // no .brokerd.yaml above
	return t.variables["BROKERD_DATA"]
}

// Setenv sets a variable of the shell, until the end of the subtest.
func (t *shell) Setenv(name, value string) { t.variables[name] = value }

// Getenv returns a variable of the shell.
func (t *shell) Getenv(name string) string { return t.variables[name] }

// Chdir changes the working folder of the shell, until the end of the subtest.
func (t *shell) Chdir(dir string) { t.dir = t.path(dir) }

// Run runs a subtest, which has a copy of the shell.
func (t *shell) Run(name string, test func(t *shell)) bool {
	t.Helper()
	return t.T.Run(name, func(tt *testing.T) {
		test(&shell{T: tt, variables: maps.Clone(t.variables), dir: t.dir})
	})
}

// path returns where a file is whose name is relative to the working folder.
func (t *shell) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(t.dir, name)
}

// git runs git in the working folder and returns its output.
func (t *shell) git(args ...string) string {
	t.Helper()
	out, err := t.command("git", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// command is a program in the working folder, with the variables of the shell. It is killed if it has
// not ended after some minutes.
func (t *shell) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = t.environ("PWD="+t.dir), t.dir
	return cmd
}

// environ returns the variables for a program.
func (t *shell) environ(more ...string) []string {
	var all []string
	for name, value := range t.variables {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return append(all, more...)
}

// environment is what a run of brokerctl in this process gets from the shell.
func (t *shell) environment(input string, out, errs io.Writer) setting.Environment {
	e := setting.Environment{
		In: strings.NewReader(input), Out: out, Err: errs, Variables: t.environ(), Dir: t.dir, Now: t.now, Mark: testMark,
	}
	if e.Now == nil {
		e.Now = time.Now
	}
	return e
}

// invoke runs brokerctl in this process, with a wide terminal as standard output.
func (t *shell) invoke(ctx context.Context, input string, signals <-chan os.Signal, args ...string) result {
	return t.invokeOn(ctx, 300, input, signals, args...)
}

// invokeOn is invoke for a terminal of another width; 0 = a pipe.
func (t *shell) invokeOn(
	ctx context.Context, columns int, input string, signals <-chan os.Signal, args ...string,
) result {
	var out, errs bytes.Buffer
	env := t.environment(input, &out, &errs)
	env.Columns, env.Signals = columns, signals
	switch {
	case t.agent != nil:
		env.Ancestors = func() []harness.Known {
			return []harness.Known{{Process: harness.At(t.agent.Process.Pid), Name: "test"}}
		}
	case slices.Contains(args, "hook"): // as for the MCP servers that a test starts
		env.Ancestors = func() []harness.Known { return []harness.Known{{Process: harness.At(os.Getpid()), Name: "test"}} }
	}
	code := run(ctx, env, args)
	return result{code, out.String(), errs.String()}
}

// Shells write a history, and programs settings, where their environment says: not among the user's own.
func TestShell_CommandsLeaveTheUsersHistoryAndFoldersAlone(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for name, run := range map[string]func(seen string){
		"of brokerctl in this process": func(seen string) {
			must0(t, "lock", "run", "a.go", "--", "sh", "-c", "env > "+seen)
		},
		"of brokerctl as a process": func(seen string) {
			if out, err := brokerctl(t, "agent", "run", "--", "sh", "-c", "env > "+seen).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
		"in a window": func(seen string) {
			if _, err := exec.LookPath("tmux"); err == nil {
				openWindow(t, "env > "+seen+"; echo ready; exec cat").await("ready")
			}
		},
	} {
		seen := filepath.Join(t.TempDir(), "environment")
		run(seen)
		text, err := os.ReadFile(seen)
		if err != nil && name != "in a window" {
			t.Fatalf("%s: %v", name, err)
		}
		got := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			got[key] = value
		}
		for _, key := range []string{
			"HISTFILE", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME",
		} {
			want := t.Getenv(key)
			if text != nil && (got[key] != want || want != "/dev/null" && !strings.HasPrefix(want, os.TempDir())) {
				t.Errorf("a command %s has %s=%q, want %q", name, key, got[key], want)
			}
		}
	}
}
