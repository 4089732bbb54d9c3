package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// executes returns brokerd exec with a command, in a process of its own.
func executes(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	processtest.HeedHangups(t)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.CommandContext(t.Context(), os.Args[0], append([]string{"exec"}, args...)...)
	cmd.Env = append(processtest.Environment(t), asProgram+"=1", "TMPDIR="+t.TempDir(), "BROKERD_AGENT=of-another", "BROKERD_ADDR=127.0.0.1:1")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func TestExec_TheBrokerAnswersInTimeAndTheFolderGoes(t *testing.T) {
	t.Parallel()
	cmd, out, errs := executes(t, "--", "sh", "-c", `test -S "${BROKERD_ADDR#unix://}" && cat "$BROKERD_DATA/endpoint" && echo "$BROKERD_DATA" "[$BROKERD_AGENT]" && cat`)
	cmd.Stdin = strings.NewReader("from standard input")
	if err := cmd.Run(); err != nil || errs.String() != "" {
		t.Fatalf("%v: %s", err, errs.String())
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "unix://") || !strings.HasSuffix(lines[1], " []") || lines[2] != "from standard input" {
		t.Fatalf("%q", lines)
	}
	if _, err := os.Stat(strings.TrimSuffix(lines[1], " []")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestExec_ReturnsTheCommandsExitCode(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/text"
	apptest.NoError(t, os.WriteFile(file, []byte("no program"), 0o600))
	for _, c := range []struct {
		args []string
		code int
		says string // on standard error; "" = nothing at all
	}{
		{[]string{"--", "true"}, 0, ""},
		{[]string{"--", "sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"--", "no-such-command"}, 127, "no-such-command"},
		{[]string{"--", file}, 126, file},
		{[]string{}, 2, "the command is missing"},
	} {
		cmd, out, errs := executes(t, c.args...)
		_ = cmd.Run() // the exit code says it
		if got := cmd.ProcessState.ExitCode(); got != c.code || out.String() != "" || !strings.Contains(errs.String(), c.says) || c.says == "" && errs.Len() > 0 {
			t.Errorf("%q: exit code %d, want %d; %q", c.args, got, c.code, errs.String())
		}
	}
	cmd, _, errs := executes(t, "--", "true")
	cmd.Env = append(cmd.Env, "TMPDIR=/does/not/exist")
	_ = cmd.Run() // as above
	if got := cmd.ProcessState.ExitCode(); got != 125 || !strings.Contains(errs.String(), "/does/not/exist") {
		t.Errorf("exit code %d, %q", got, errs.String())
	}
}

func TestExec_PassesSignalsOn(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP"} {
		// A signal before read would wait for the end of read; the shell looks for signals between two sleeps.
		cmd, _, errs := executes(t, "--", "sh", "-c", `trap "echo got `+want+`; exit 3" `+want+`; echo ready; while :; do sleep 0.01; done`)
		cmd.Stdout = nil
		out, err := cmd.StdoutPipe()
		apptest.NoError(t, err)
		apptest.NoError(t, cmd.Start())
		line := make([]byte, len("ready\n"))
		if _, err := out.Read(line); err != nil || string(line) != "ready\n" {
			t.Fatalf("%q, %v: %s", line, err, errs.String())
		}
		apptest.NoError(t, cmd.Process.Signal(signal))
		text := make([]byte, 100)
		n, _ := out.Read(text) // what was read tells
		_ = cmd.Wait()         // and so does the exit code
		if got := cmd.ProcessState.ExitCode(); got != 3 || string(text[:n]) != "got "+want+"\n" {
			t.Errorf("%v: exit code %d, %q", signal, got, text[:n])
		}
	}
}

func TestExec_KilledLeavesNeitherBrokerNorFolder(t *testing.T) {
	t.Parallel()
	cmd, _, _ := executes(t, "--", "sh", "-c", `echo "$BROKERD_DATA"; cat`)
	cmd.Stdout, cmd.Stderr = nil, nil
	stdin, err := cmd.StdinPipe()
	apptest.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	apptest.NoError(t, err)
	stderr, held, err := os.Pipe() // held by exec, by its broker and by its command
	apptest.NoError(t, err)
	defer func() { _ = stderr.Close() }() // it is only read
	cmd.Stderr = held
	apptest.NoError(t, errors.Join(cmd.Start(), held.Close(), stderr.SetReadDeadline(time.Now().Add(patience))))
	dir, err := bufio.NewReader(stdout).ReadString('\n')
	apptest.NoError(t, err)
	if err := errors.Join(cmd.Process.Kill(), stdin.Close()); err != nil { // the end of its input ends cat
		t.Fatal(err)
	}
	if text, err := io.ReadAll(stderr); err != nil || len(text) > 0 {
		t.Errorf("the broker has not ended: %v: %s", err, text)
	}
	_ = cmd.Wait() // it was killed
	if _, err := os.Stat(strings.TrimSpace(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder remains: %v", err)
	}
}

func TestExec_PassesSignalsOnWithoutATerminal(t *testing.T) {
	t.Parallel()
	cmd, out, errs := executes(t, "--", "sh", "-c", `sleep 60 >/dev/null 2>&1 & trap "kill $!; echo got INT; exit 3" INT; kill -INT $PPID; wait`)
	null, err := os.Open(os.DevNull) // a character device, but no terminal
	apptest.NoError(t, err)
	defer func() { _ = null.Close() }() // it is only read
	cmd.Stdin = null
	_ = cmd.Run() // the exit code tells
	if got := cmd.ProcessState.ExitCode(); got != 3 || out.String() != "got INT\n" {
		t.Errorf("exit code %d, %q, %s", got, out, errs)
	}
}
