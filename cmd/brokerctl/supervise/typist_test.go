package supervise

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyLine_KnowsWhetherALineIsBeingTyped(t *testing.T) {
	for _, test := range []struct {
		keys   []string // one read each
		typing bool
	}{
		{nil, false},
		{[]string{"l", "s"}, true},
		{[]string{"ls\r"}, false},
		{[]string{"ls\n", "x"}, true},
		{[]string{"ls", "\x03"}, false},
		{[]string{"ls", "\x15"}, false},
		{[]string{"é", "\x7f"}, false},
		{[]string{"ls", "\x7f"}, true},
		{[]string{"ls", "\x7f", "\b", "\b"}, false},
		{[]string{"\x1b[A"}, true},         // recalls a line
		{[]string{"\x1b[A", "\x7f"}, true}, // of unknown length
		{[]string{"\x1b[A", "\x15"}, true}, // the cursor may be in the middle
		{[]string{"\x1b[A", "\r"}, false},
		{[]string{"\x1b[A", "\x03"}, false},
		{[]string{"\x1bOA"}, true},
		{[]string{"\t"}, true},        // completes
		{[]string{"\x1b"}, false},     // Escape alone
		{[]string{"\x1b\r"}, true},    // Alt-Enter adds a line
		{[]string{"a\\", "\r"}, true}, // the line continues
		{[]string{"a\\\r", "b\r"}, false},
		{[]string{"\x1b[I", "\x1b[O"}, false},        // the terminal reports its focus,
		{[]string{"\x1b[<35;10;5M"}, false},          // the mouse,
		{[]string{"\x1b[12;", "40R"}, false},         // the position, in two reads,
		{[]string{"\x1b[?62;c"}, false},              // what it is,
		{[]string{"\x1b]11;rgb:0/0/0\x1b\\"}, false}, // its colours
		{[]string{"\x1b]11;rgb:0/0/0\a"}, false},
		{[]string{"\x1b[200~a\rb\x1b[201~"}, true}, // a paste
		{[]string{"\x1b[200~a\rb\x1b[201~", "\r"}, false},
		{[]string{"x", "\x1b[13u"}, false}, // Enter and Ctrl-C of kitty
		{[]string{"x", "\x1b[99;5u"}, false},
		{[]string{"x", "\x1b[13;2u"}, true}, // Shift-Enter
		{[]string{"\x04"}, false},
	} {
		var k keyLine
		for _, keys := range test.keys {
			k.take([]byte(keys))
		}
		if k.typing() != test.typing {
			t.Errorf("%q: typing is %v", test.keys, k.typing())
		}
	}
}

// keysOf collects what a typist types, with the time since the start.
type keysOf struct {
	start time.Time

	mu    sync.Mutex // guards typed and at
	typed []string
	at    []time.Duration
}

func (k *keysOf) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.typed, k.at = append(k.typed, string(p)), append(k.at, time.Since(k.start))
	return len(p), nil
}

// typing runs a typist in a bubble of synctest. waiting is what a check returns.
func typing(t *testing.T, test func(t *testing.T, ty *Typist, typed *keysOf, waiting *[]int64)) {
	synctest.Test(t, func(t *testing.T) {
		typed, waiting := &keysOf{start: time.Now()}, []int64{}
		ty := &Typist{
			line: "mail", terminal: typed, changed: make(chan struct{}, 1), active: time.Now(),
			check: func(context.Context) ([]int64, error) { return waiting, nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); ty.run(ctx) }()
		test(t, ty, typed, &waiting)
		cancel()
		<-ended
	})
}

// wantTyped checks what was typed so far, and forgets it.
func wantTyped(t *testing.T, what string, typed *keysOf, want ...string) {
	t.Helper()
	synctest.Wait()
	typed.mu.Lock()
	defer typed.mu.Unlock()
	if got := strings.Join(typed.typed, "|"); got != strings.Join(want, "|") {
		t.Errorf("%s: typed %q at %v, want %q", what, got, typed.at, want)
	}
	typed.typed, typed.at = nil, nil
}

func TestTypist_TypesOncePerStateOfTheMail(t *testing.T) {
	typing(t, func(t *testing.T, ty *Typist, typed *keysOf, waiting *[]int64) {
		set := func(messages ...int64) { *waiting = messages; ty.mail(messages) }
		<-time.After(time.Hour)
		wantTyped(t, "without mail", typed)
		set(7)
		<-time.After(time.Second)
		wantTyped(t, "with mail, the screen has been still", typed, "mail", "\r")
		set(7, 8)
		<-time.After(typeAgain - 2*time.Second)
		wantTyped(t, "with more mail while the first is unread", typed)
		<-time.After(2 * time.Second)
		wantTyped(t, "again", typed, "mail", "\r")
		set()
		<-time.After(time.Hour)
		wantTyped(t, "after the mail was read", typed)
		set(9)
		<-time.After(3 * time.Second)
		wantTyped(t, "with the next mail", typed, "mail", "\r")
		set(10)
		<-time.After(3 * time.Second)
		wantTyped(t, "after the agent has read the one before", typed, "mail", "\r")
	})
}

func TestTypist_WaitsUntilTheScreenIsStill(t *testing.T) {
	typing(t, func(t *testing.T, ty *Typist, typed *keysOf, waiting *[]int64) {
		*waiting = []int64{1}
		ty.mail([]int64{1})
		for range 100 {
			<-time.After(time.Second)
			ty.wrote()
		}
		wantTyped(t, "with output each second", typed)
		<-time.After(typeAfter)
		wantTyped(t, "two seconds after it", typed, "mail")
		<-time.After(enterAfter)
		wantTyped(t, "then", typed, "\r")
	})
}

func TestTypist_NeverTypesIntoALine(t *testing.T) {
	typing(t, func(t *testing.T, ty *Typist, typed *keysOf, waiting *[]int64) {
		pass := func(keys string) {
			if err := ty.pass([]byte(keys)); err != nil {
				t.Error(err)
			}
		}
		pass("ec")
		*waiting = []int64{1}
		ty.mail([]int64{1})
		<-time.After(time.Hour)
		wantTyped(t, "in the middle of a line", typed, "ec")
		pass("ho\r")
		<-time.After(typeAfter - time.Millisecond)
		wantTyped(t, "right after Enter", typed, "ho\r")
		<-time.After(time.Millisecond)
		wantTyped(t, "two seconds after Enter", typed, "mail")
		<-time.After(enterAfter)
		wantTyped(t, "then", typed, "\r")
	})
}

// keysWith passes a key of the person as soon as the typist has begun its line.
type keysWith struct {
	typist *Typist
	typed  chan string
}

func (k *keysWith) Write(p []byte) (int, error) {
	k.typed <- string(p)
	if string(p) == "mail" {
		go func() { _ = k.typist.pass([]byte("k")) }()
	}
	return len(p), nil
}

func TestTypist_KeysWaitForTheEndOfItsLine(t *testing.T) {
	ty := &Typist{line: "mail", changed: make(chan struct{}, 1), waiting: []int64{1}}
	terminal := &keysWith{ty, make(chan string, 3)}
	ty.terminal = terminal
	ty.typeLine(t.Context())
	for _, want := range []string{"mail", "\r", "k"} {
		if got := <-terminal.typed; got != want {
			t.Errorf("typed %q, want %q", got, want)
		}
	}
}

func TestTypist_ChecksTheMailBeforeItTypes(t *testing.T) {
	typing(t, func(t *testing.T, ty *Typist, typed *keysOf, waiting *[]int64) {
		ty.wrote()
		ty.mail([]int64{1}) // and the agent reads it, which nothing reports
		<-time.After(time.Hour)
		wantTyped(t, "read meanwhile", typed)
		ty.check = func(context.Context) ([]int64, error) { return nil, errors.New("away") }
		ty.mail([]int64{2})
		<-time.After(time.Hour)
		wantTyped(t, "without a broker", typed)
	})
}

func TestWaker_RunsItsCommandOnceAMinuteWhileMailWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, takes := time.Now(), time.Second
		var left atomic.Int64 // messages
		left.Store(1)
		var runs []time.Duration
		var warnings []string
		w := &waker{
			mail:  make(chan bool, 1),
			check: func(context.Context) ([]int64, error) { return make([]int64, left.Load()), nil },
			run: func(ctx context.Context) error {
				runs = append(runs, time.Since(start))
				select {
				case <-time.After(takes):
				case <-ctx.Done():
				}
				return errors.New("exit status 1")
			},
			warn: func(err error) { warnings = append(warnings, err.Error()) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); w.work(ctx) }()
		want := func(what string, times ...time.Duration) {
			t.Helper()
			synctest.Wait()
			if len(runs) != len(times) {
				t.Fatalf("%s: it ran at %v, want %v", what, runs, times)
			}
			for i, at := range times {
				if runs[i] != at {
					t.Errorf("%s: it ran at %v, want %v", what, runs, times)
				}
			}
		}
		for range 10 { // as often as mail arrives
			w.note(true)
			<-time.After(10 * time.Second)
		}
		want("while mail waits", 0, time.Minute)
		if len(warnings) != 2 || warnings[0] != "exit status 1" {
			t.Errorf("the warnings are %q", warnings)
		}
		left.Store(0) // read, which nothing reports
		<-time.After(time.Hour)
		want("after the mail was read", 0, time.Minute)
		left.Store(1)
		takes = 5 * time.Minute
		w.note(true)
		<-time.After(8 * time.Minute)
		at := time.Hour + 100*time.Second
		want("a command that takes longer than a minute", 0, time.Minute, at, at+5*time.Minute)
		cancel()
		<-ended // and with it the command
		if time.Since(start) != at+8*time.Minute {
			t.Errorf("it ended at %v", time.Since(start))
		}
	})
}
