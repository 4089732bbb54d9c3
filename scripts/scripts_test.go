// Package scripts_test runs the scripts that make test and make build begin with.
package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a folder with the programs that a script finds, and nothing else.
type machine struct {
	t   *testing.T
	bin string
}

// newMachine returns a machine with the programs of this one that are named.
func newMachine(t *testing.T, programs ...string) *machine {
	t.Helper()
	m := &machine{t, t.TempDir()}
	for _, name := range append(programs, "bash", "dirname", "env", "grep", "head", "sed", "sort") {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is missing", name)
		}
		if err := os.Symlink(path, filepath.Join(m.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// has adds a program that is a shell script.
func (m *machine) has(name, script string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.bin, name), []byte("#!/usr/bin/env bash\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // it is a program
		m.t.Fatal(err)
	}
}

// run runs a script and returns what it prints, and whether it succeeded.
func (m *machine) run(script string, env ...string) (string, bool) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.bin, "bash"), script)
	cmd.Env = append([]string{"PATH=" + m.bin, "LC_ALL=C"}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestToolchain_SaysInOneSentenceWhatIsMissing(t *testing.T) {
	t.Parallel()
	const good = `case "$2" in GOVERSION) echo go1.99.1;; CGO_ENABLED) echo 1;; CC) echo gcc;; esac`
	for _, c := range []struct{ name, golang, compiler, want string }{
		{"all is here", good, "exit 0", ""},
		{"a version of development", strings.Replace(good, "go1.99.1", "devel", 1), "exit 0", ""},
		{"no Go", "", "exit 0", "make: Go is missing: install Go 1."},
		{"Go that knows no toolchains", strings.Replace(good, "go1.99.1", "go1.19.8", 1), "exit 0", "and this is go1.19.8: install a newer one"},
		{"Go that fetches nothing", `test "$2" != GOVERSION -o "$GOTOOLCHAIN" = local && echo go1.24.3`, "exit 0", "and go1.24.3 cannot fetch it"},
		{"no C compiler", good, "", "make: the C compiler gcc is missing"},
		{"no C library", good, "exit 1", "make: the C compiler gcc does not find stdlib.h"},
		{"no cgo", strings.Replace(good, "echo 1;;", "echo 0;;", 1), "exit 0", "make: cgo is off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if c.golang != "" {
				m.has("go", c.golang)
			}
			if c.compiler != "" {
				m.has("gcc", c.compiler)
			}
			printed, ok := m.run("toolchain.sh")
			if ok != (c.want == "") || !strings.Contains(printed, c.want) || strings.Count(printed, "\n") > 1 {
				t.Errorf("it prints %q, and succeeds: %v; want %q", printed, ok, c.want)
			}
		})
	}
}

func TestTestDeps_SaysWhyBeforeItInstallsAndCanBeToldNotTo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	calls := filepath.Join(t.TempDir(), "calls")
	m.has("id", "echo 0")
	m.has("apt-get", `echo "(apt-get $*)" >>`+calls)
	m.has("jq", "exit 0")
	printed, ok := m.run("test-deps.sh")
	if !ok {
		t.Fatal(printed)
	}
	installed, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"apt-get installs tmux, for the tests of an agent in a terminal (TEST_DEPS=skip: it does not)\n",
		"apt-get installs chromium, for the tests of the dashboard (TEST_DEPS=skip: it does not)\n",
		"the tests of an agent in a terminal will be skipped, because tmux is missing\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is missing in\n%s", want, printed)
		}
	}
	if !strings.Contains(string(installed), " tmux)") || !strings.Contains(string(installed), " chromium)") || strings.Contains(string(installed), "jq") {
		t.Errorf("it calls\n%s", installed)
	}
	if err := os.Remove(calls); err != nil {
		t.Fatal(err)
	}
	printed, ok = m.run("test-deps.sh", "TEST_DEPS=skip")
	if _, err := os.Stat(calls); err == nil || !ok || strings.Contains(printed, "installs") || !strings.Contains(printed, "because tmux is missing") {
		t.Errorf("with TEST_DEPS=skip it prints\n%s", printed)
	}
}
