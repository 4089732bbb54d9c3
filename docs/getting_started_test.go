package docs_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/processtest"
)

const patience = 5 * time.Minute // of a whole page

// terminal is a shell that is typed into.
type terminal struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Scanner
}

func openTerminal(t *testing.T, dir string, env []string) *terminal {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh")
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		timeout.Stop()
		_ = in.Close()
		_ = cmd.Wait()                                      // with the code of its last command
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left in the background
	})
	return &terminal{t: t, in: in, lines: bufio.NewScanner(out)}
}

// run types a command, wants it to succeed, and returns what it prints.
func (s *terminal) run(command string) string {
	s.t.Helper()
	fmt.Fprintf(s.in, "%s\necho \"-- $?\"\n", command)
	var printed strings.Builder
	for s.lines.Scan() {
		if code, done := strings.CutPrefix(s.lines.Text(), "-- "); done {
			if code != "0" {
				s.t.Fatalf("%s\nexit code %s\n%s", command, code, printed.String())
			}
			return printed.String()
		}
		printed.WriteString(s.lines.Text() + "\n")
	}
	s.t.Fatalf("%s\nthe shell has ended\n%s", command, printed.String())
	return ""
}

// The commands are those of the page, in its order and in the terminals that it names.
func TestGettingStarted_LeavesNothingUnfinished(t *testing.T) {
	t.Parallel()
	blocks := fence.FindAllStringSubmatch(read(t, "getting-started.md"), -1)
	var commands []string
	for _, block := range blocks {
		if block[1] != "sh" {
			t.Fatalf("a block of %q is not tested:\n%s", block[1], block[2])
		}
		commands = append(commands, strings.Split(strings.TrimSpace(block[2]), "\n")...)
	}
	if len(commands) != 11 || commands[0] != "make run" {
		t.Fatalf("the page speaks of eleven commands, the first of them make run; it has %q", commands)
	}
	if makefile := read(t, "../Makefile"); !strings.Contains(makefile, "\nrun: build ") || !strings.Contains(makefile, "\n\t$(BIN)/brokerd\n") {
		t.Fatal("make run does not build and run brokerd any more")
	}

	repository, env := t.TempDir(), processtest.Environment(t)
	startBroker(t, repository, env)

	lead, builder := openTerminal(t, repository, env), openTerminal(t, repository, env)
	lead.run(commands[1])
	lead.run(commands[2])
	builder.run(commands[3])
	builder.run(commands[4])
	var task int64
	for i, step := range []struct {
		shell *terminal
		shows string
	}{
		{lead, "to role:builder"},
		{builder, "A form with a name and a password."},
		{builder, "acked the message that was answered"},
		{lead, "Done, on the branch login."},
		{lead, "acked"},
		{lead, "nothing that concerns lead is stuck"},
	} {
		command := commands[5+i]
		printed := step.shell.run(command)
		if !strings.Contains(printed, step.shows) {
			t.Errorf("%s\ndoes not show %q:\n%s", command, step.shows, printed)
		}
		if i == 0 {
			if _, err := fmt.Sscanf(printed, "sent %d to", &task); err != nil {
				t.Fatalf("%s\n%v", printed, err)
			}
		}
	}
	if printed := lead.run(fmt.Sprintf("brokerctl message get %d -o json", task)); !strings.Contains(printed, `"state":"acked"`) {
		t.Errorf("the task is not acknowledged:\n%s", printed)
	}
	for _, mentioned := range []string{"brokerctl dlq list", "brokerctl guide"} {
		builder.run(mentioned)
	}
}

// The commands of the front page connect two coding agents, and leave nothing that explain reports.
func TestReadme_CommandsWork(t *testing.T) {
	t.Parallel()
	repository, env := t.TempDir(), processtest.Environment(t)
	if err := os.Symlink(filepath.Dir(processtest.Build(t)), filepath.Join(repository, "bin")); err != nil {
		t.Fatal(err)
	}
	shell := openTerminal(t, repository, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	shell.run("mkdir project; cd project; git init --quiet")
	t.Cleanup(func() {
		down := exec.Command(filepath.Join(repository, "bin", "brokerctl"), "down") // t.Context has ended
		down.Env = env
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("brokerctl down: %v: %s", err, out)
		}
	})
	printed := map[string]string{}
	for _, block := range fence.FindAllStringSubmatch(read(t, "../README.md"), -1) {
		for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
			if strings.HasPrefix(command, "brokerctl ") {
				printed[strings.Fields(command)[1]] += shell.run(command)
			}
		}
	}
	for command, want := range map[string]string{
		"up": "started a broker: process ", "setup": "claude-1", "dashboard": "http://127.0.0.1:", "explain": "nothing is stuck\n",
	} {
		if !strings.Contains(printed[command], want) {
			t.Errorf("%s prints %q; want %q", command, printed[command], want)
		}
	}
	if settings := shell.run("cat .brokerd.yaml"); !strings.Contains(settings, "claude-1: {role: lead}") || !strings.Contains(settings, "codex-1: {role: builder}") {
		t.Errorf("the folder has the agents\n%s", settings)
	}
}

// The commands of the tour work one after the other.
func TestTour_CommandsWork(t *testing.T) {
	t.Parallel()
	repository := t.TempDir()
	env := processtest.Environment(t)
	startBroker(t, repository, env)
	shell := openTerminal(t, repository, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	n := 0
	for _, block := range fence.FindAllStringSubmatch(read(t, "tour.md"), -1) {
		if !strings.HasPrefix(block[2], "brokerctl ") {
			continue
		}
		for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
			shell.run(command)
			n++
		}
	}
	if n < 5 {
		t.Errorf("%d commands were found", n)
	}
	if printed := shell.run("brokerctl event list --type message.acked -o json"); strings.Count(printed, "\n") != 3 {
		t.Errorf("a task, its answer and a queued task were to be acknowledged:\n%s", printed)
	}
	for _, agent := range []string{"lead", "builder-1"} {
		if printed := shell.run("brokerctl -o json --agent " + agent + " agent get " + agent); !strings.Contains(printed, `"unread":0,"claimable":0`) {
			t.Errorf("the tour leaves mail for %s:\n%s", agent, printed)
		}
	}
	if printed := shell.run("brokerctl explain"); printed != "nothing is stuck\n" {
		t.Errorf("after the tour, explain reports\n%s", printed)
	}
}

// startBroker puts the programs and a daemon into the given folder, as make run does.
func startBroker(t *testing.T, repository string, env []string) {
	t.Helper()
	program := processtest.Build(t)
	if err := os.Symlink(filepath.Dir(program), filepath.Join(repository, "bin")); err != nil {
		t.Fatal(err)
	}
	startDaemon(t, repository, env, program, "--log-format", "console") // as on a terminal
}

// startDaemon starts a daemon and returns the line with which it says where it listens. The test's end
// stops it.
func startDaemon(t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	daemon := exec.Command(program, args...) // t.Context ends before the cleanup that stops it
	daemon.Dir, daemon.Env = dir, env
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt) // Ctrl-C, as the page says
		if err := daemon.Wait(); err != nil {
			t.Errorf("brokerd: %v", err)
		}
	})
	line := bufio.NewScanner(out)
	if !line.Scan() {
		t.Fatal("brokerd does not say that it listens")
	}
	return line.Text()
}
