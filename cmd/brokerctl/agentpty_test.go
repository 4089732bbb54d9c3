package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/supervise"
	"brokerd/internal/apptest"
)

// A tmuxWindow is a terminal that a test uses as a person does.
type tmuxWindow struct {
	t      *shell
	socket string
	env    []string
}

// openWindow runs a script in a terminal of 100 columns and 30 rows.
func openWindow(t *shell, script string) *tmuxWindow {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	w := &tmuxWindow{t, filepath.Join(t.TempDir(), "tmux"), append(program(t), "TERM=xterm")}
	w.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", script)
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", w.socket, "kill-server").Run() // the context of the test has ended
	})
	return w
}

func (w *tmuxWindow) tmux(args ...string) string {
	w.t.Helper()
	cmd := w.t.command("tmux", append([]string{"-S", w.socket}, args...)...)
	cmd.Env = w.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// screen returns the text of the window.
func (w *tmuxWindow) screen() string {
	w.t.Helper()
	return strings.TrimSpace(w.tmux("capture-pane", "-p"))
}

// keys types keys: texts, or names of keys such as Enter.
func (w *tmuxWindow) keys(keys ...string) { w.tmux(append([]string{"send-keys"}, keys...)...) }

// await waits until a line of the window is the given one.
func (w *tmuxWindow) await(line string) {
	w.t.Helper()
	w.awaitScreen(line, func(screen string) bool { return strings.Contains("\n"+screen+"\n", "\n"+line+"\n") })
}

// awaitEnd waits until the text of the window ends with the given lines.
func (w *tmuxWindow) awaitEnd(lines string) {
	w.t.Helper()
	w.awaitScreen(lines, func(screen string) bool { return strings.HasSuffix(screen, lines) })
}

// awaitAll waits until the text of the window is the given one.
func (w *tmuxWindow) awaitAll(text string) {
	w.t.Helper()
	w.awaitScreen(text, func(screen string) bool { return screen == text })
}

func (w *tmuxWindow) awaitScreen(what string, is func(screen string) bool) {
	w.t.Helper()
	pause := time.NewTicker(20 * time.Millisecond) // tmux reports no change, and each look is a process
	defer pause.Stop()
	for deadline := time.Now().Add(patience); !is(w.screen()); <-pause.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("%q does not appear in:\n%s", what, w.screen())
		}
	}
}

func TestAgentRunPTY_APersonCanWorkAndMailIsTypedBetweenTheirLines(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	noticed, settings := pipe(t), filepath.Join(t.TempDir(), "bashrc")
	apptest.NoError(t, os.WriteFile(settings, []byte("PS1='ready> '\n"), 0o600))
	w := openWindow(t, `before=$(stty -g)
		brokerctl agent run --agent builder-1 --pty --wake 'echo > `+noticed+`' --wake-text 'echo mail-$((1+1))' \
			-- bash --rcfile `+settings+`
		echo code-$?; [ "$before" = "$(stty -g)" ] && echo restored; exec cat`)
	w.await("ready>")
	w.keys("echo hand-$((40+2))", "Enter")
	w.await("hand-42")
	w.tmux("resize-window", "-x", "70", "-y", "20")
	w.keys(`until [ "$(stty size)" = "20 70" ]; do :; done; echo resi''zed`, "Enter") // the window resizes it later
	w.await("resized")
	w.keys("sh -c 'echo runs; exec cat'", "Enter") // the program that Ctrl-C must reach says that it runs
	w.await("runs")
	w.keys("C-c")
	w.awaitEnd("^C\nready>")
	w.keys("echo code-$? $BROKERD_AGENT", "Enter")
	w.await("code-130 builder-1")

	w.keys("clear", "Enter")
	w.awaitAll("ready>")
	w.keys("echo half")
	w.await("ready> echo half")
	must0(t, "--agent", "lead", "send", "builder-1", "Add login")
	await(t, noticed)
	w.keys("+done", "Enter")
	w.await("half+done")
	w.await("mail-2")

	w.keys("exit 7", "Enter")
	w.await("code-7")
	w.await("restored")
}

func TestAgentRunPTY_TheTerminalIsRestoredAfterEveryEnd(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	const sleeps = `sh -c 'echo $$ > PIPE; exec sleep 100'`
	for name, end := range map[string]struct {
		flags   string
		program string // writes its process id into the pipe
		by      func(t *shell, run, program int)
		code    string
	}{
		"the program is killed": {
			"", sleeps, func(t *shell, _, program int) { kill(t, program, syscall.SIGKILL) }, "code-137",
		},
		"the run is terminated": {
			"", sleeps, func(t *shell, run, _ int) { kill(t, run, syscall.SIGTERM) }, "code-143",
		},
		"the agent is lost": {
			"--lease 6s", sleeps, func(t *shell, _, _ int) { must0(t, "agent", "register", "builder-1") }, "code-6",
		},
		"there is no such thing": {"", `./missing`, nil, "code-127"},
	} {
		t.Run(name, func(t *shell) {
			runs, programs := pipe(t), pipe(t) // two, as one reader could get both ids
			w := openWindow(t, `before=$(stty -g)
				sh -c 'echo $$ > `+runs+`; exec brokerctl agent run --agent builder-1 `+end.flags+` --pty -- `+
				strings.ReplaceAll(strings.ReplaceAll(end.program, "PIPE", programs), "'", `'\''`)+`'
				echo code-$?; [ "$before" = "$(stty -g)" ] && echo restored; exec cat`)
			run := processID(t, runs)
			if end.by != nil {
				end.by(t, run, processID(t, programs))
			}
			w.await(end.code)
			w.await("restored")
		})
	}
}

// processID reads a process id from a pipe.
func processID(t testing.TB, path string) (id int) {
	t.Helper()
	text, err := os.ReadFile(path)
	apptest.NoError(t, err)
	for _, digit := range strings.TrimSpace(string(text)) {
		id = 10*id + int(digit-'0')
	}
	return id
}

func kill(t testing.TB, process int, s syscall.Signal) {
	t.Helper()
	apptest.NoError(t, syscall.Kill(process, s))
}

func TestAgentRunPTY_WorksWithoutATerminal(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	for _, test := range []struct {
		input   string
		program []string
		code    int
		out     string
	}{
		{"echo hi-$((1+1)); exit 3\n", []string{"sh"}, 3, "hi-2\r\n"},
		{"some text", []string{"cat"}, 0, "some text"}, // sees the end of its input
		{"", []string{"sh", "-c", "tty >&2 && stty size && echo done"}, 0, "24 80\r\ndone\r\n"},
		{"", []string{"sh", "-c", `echo '{"type":"status"}'`}, 0, `{"type":"status"}` + "\r\n"},
	} {
		args := append([]string{"agent", "run", "--agent", "builder-1", "--pty", "--"}, test.program...)
		got := t.invoke(t.Context(), test.input, nil, args...)
		if got.code != test.code || !strings.Contains(got.out, test.out) {
			t.Errorf("%q: %+v", test.program, got)
		}
	}
}

func TestPseudoTerminal_PassesOnWhatWasWrittenBeforeItsTimeWasOver(t *testing.T) {
	var out strings.Builder
	p, err := supervise.OpenPseudoTerminal(strings.NewReader(""), &out, &supervise.Typist{})
	apptest.NoError(t, err)
	defer p.Close()
	apptest.NoError(t, apptest.Err(p.Inner.WriteString("rest")))
	c, err := p.Outer.SyscallConn()
	apptest.NoError(t, err)
	if err := c.Control(func(fd uintptr) { // the kernel passes on later what was written
		output := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(output, int(patience.Milliseconds())); n != 1 {
			t.Errorf("no output: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	apptest.NoError(t, p.Outer.SetDeadline(time.Now().Add(-time.Second)))
	p.CopyOutput()
	if out.String() != "rest" {
		t.Errorf("passed on: %q", out.String())
	}
}

func TestAgentRunWake_RunsACommandWhenMailWaitsWithoutAProgram(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	woken, signals := pipe(t), make(chan os.Signal, 1)
	done := make(chan result, 1)
	go func() {
		done <- t.invoke(t.Context(), "", signals, "agent", "run", "--agent", "builder-1", "--role", "builder",
			"--wake", `echo "$BROKERD_AGENT is woken" > `+woken+`; exit 3`)
	}()
	for deadline := time.Now().Add(patience); ctl(t, "agent", "get", "builder-1").code != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the agent is not registered")
		}
	}
	message := sent(t, "--agent", "lead", "builder-1", "Add login")
	if text, err := os.ReadFile(woken); err != nil || string(text) != "builder-1 is woken\n" {
		t.Errorf("%q, %v", text, err)
	}
	if d := delivery(t, message); at(t, d, "state") != "pending" || at(t, d, "delivered_at") != nil {
		t.Errorf("the watch took the message: %v", d)
	}
	signals <- syscall.SIGTERM
	if got := <-done; got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "agent", "run", "--agent", "builder-1"); got.code != problem.ExitUsage {
		t.Errorf("neither a program nor --wake: %+v", got)
	}
	if got := ctl(t, "agent", "run", "--agent", "builder-1", "--wake", "true", "--pty"); got.code != problem.ExitUsage {
		t.Errorf("--pty without a program: %+v", got)
	}
	if got := ctl(t, "agent", "run", "--agent", "builder-1", "--wake-text", "x", "--", "true"); got.code != problem.ExitUsage {
		t.Errorf("--wake-text without --pty: %+v", got)
	}
}

func TestAgentRunWake_WarnsAboutAFailedCommandAndEndsItWithTheRun(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	goOn := pipe(t)
	done := make(chan result, 1)
	errs := &awaitedOutput{
		text: "the command of --wake failed: exit status 3",
		seen: func() { _ = os.WriteFile(goOn, nil, 0) },
	}
	go func() {
		code := run(t.Context(), t.environment("", &strings.Builder{}, errs), []string{"agent", "run", "--agent", "builder-1", "--wake", "exit 3", "--", "cat", goOn})
		done <- result{code: code}
	}()
	if got := <-done; got.code != 0 {
		t.Errorf("%+v", got)
	}
	woken := pipe(t)
	got := t.invoke(t.Context(), "", nil, "agent", "run", "--agent", "builder-1", "--wake",
		`echo > `+woken+`; exec sleep 1000`, "--", "cat", woken)
	if got.code != 0 || strings.Contains(got.err, "failed") {
		t.Errorf("%+v", got)
	}
}

// awaitedOutput calls seen once a text was written.
type awaitedOutput struct {
	text string
	seen func()
	all  strings.Builder
}

func (a *awaitedOutput) Write(p []byte) (int, error) {
	a.all.Write(p)
	if a.seen != nil && strings.Contains(a.all.String(), a.text) {
		go a.seen()
		a.seen = nil
	}
	return len(p), nil
}
