package vendortest

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"brokerd/internal/fakemodel"
)

// A terminal is a screen with the program on it.
type terminal struct {
	t       testing.TB
	program string
	in      interface{ Write(p []byte) (int, error) }
	end     func()

	mu      sync.Mutex    // guards the fields below
	out     []byte        // what the program has written
	seen    int           // bytes of it that were awaited
	changed chan struct{} // closed and replaced with each output
}

// Questions of programs to a terminal, with the answers.
var questions = []struct{ ask, answer string }{
	{"\x1b[6n", "\x1b[1;1R"},         // where is the cursor?
	{"\x1b[c", "\x1b[?62;22c"},       // what can you do?
	{"\x1b[>q", "\x1bP>|test\x1b\\"}, // who are you?
}

// open starts the program on a terminal, and returns as soon as it takes prompts.
func (r *run) open(args ...string) *terminal {
	r.t.Helper()
	if r.vendor.name == "codex" && !r.approved {
		r.trustHooks()
		r.approved = true
	}
	cmd := exec.Command(r.path(), append(slices.Clone(r.vendor.screen), args...)...) //nolint:noctx // it is killed with its terminal
	cmd.Dir, cmd.Env = r.project, append(slices.Clone(r.variables), "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 45, Cols: 150})
	if err != nil {
		r.t.Fatal(err)
	}
	s := &terminal{t: r.t, program: r.vendor.program, in: tty, changed: make(chan struct{})}
	read := make(chan struct{})
	go func() { // ends with the terminal
		defer close(read)
		piece := make([]byte, 64<<10)
		for {
			n, err := tty.Read(piece)
			if err != nil {
				return
			}
			for _, q := range questions {
				if bytes.Contains(piece[:n], []byte(q.ask)) {
					_, _ = tty.WriteString(q.answer) // the program may have ended
				}
			}
			s.mu.Lock()
			s.out = append(s.out, piece[:n]...)
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
		}
	}()
	s.end = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its session, of which it is the leader
		_ = cmd.Wait()                                      // it was killed
		_ = tty.Close()
		<-read
	})
	r.cleanup(func() {
		s.end()
		if r.whole.Failed() {
			r.whole.Logf("on the terminal: %q", s.out[max(0, len(s.out)-5000):])
		}
	})
	if len(args) > 0 && r.vendor.shows != "" {
		s.until(r.vendor.shows)
	} else {
		s.until(r.vendor.ready)
	}
	return s
}

// until returns as soon as the program has written a text since the last one that was awaited.
func (s *terminal) until(text string) {
	s.t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		at, changed := bytes.Index(s.out[s.seen:], []byte(text)), s.changed
		if at >= 0 {
			s.seen += at + len(text)
		}
		s.mu.Unlock()
		if at >= 0 {
			return
		}
		select {
		case <-changed:
		case <-late:
			s.t.Fatalf("%s does not show %q", s.program, text)
		}
	}
}

// keys presses keys.
func (s *terminal) keys(keys string) {
	s.t.Helper()
	if _, err := s.in.Write([]byte(keys)); err != nil {
		s.t.Fatal(err)
	}
}

// prompt enters a prompt, and returns as soon as the model has it. A program may take Enter for a part of what
// was pasted: the key is pressed until it works.
func (r *run) prompt(s *terminal, text, last string) {
	r.t.Helper()
	s.keys("\x1b[200~" + text + last + "\x1b[201~") // as a terminal passes on what is pasted
	s.until(last)
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	has := make(chan error, 1)
	go func() {
		_, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has(last) })
		has <- err
	}()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		s.keys("\r")
		select {
		case err := <-has:
			if err != nil {
				r.t.Fatalf("the prompt %q: %v", last, err)
			}
			return
		case <-again.C:
		}
	}
}
