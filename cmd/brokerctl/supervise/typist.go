package supervise

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	typeAfter  = 2 * time.Second        // without output and keys
	typeAgain  = 10 * time.Minute       // while the same mail stays unread
	enterAfter = 150 * time.Millisecond // programs take a text and an Enter that come together for a paste
)

// A Typist types a line into the terminal of a program when mail waits for its agent: once per state
// of the mail, and again every typeAgain while one of the messages that it has announced stays unread.
// It types when the screen has been still for typeAfter and the person is not typing a line. Its
// methods may be called concurrently.
type Typist struct {
	line     string
	terminal io.Writer                              // what is written to it are keys for the program
	check    func(context.Context) ([]int64, error) // returns the messages that wait, by revision
	changed  chan struct{}                          // with capacity 1: due may have changed

	writing sync.Mutex // guards terminal; locked before mu

	mu      sync.Mutex // guards the fields below
	active  time.Time  // the last output or key
	keys    keyLine
	waiting []int64
	told    []int64 // the messages that waited when the line was typed last
	toldAt  time.Time
}

// run types until ctx ends.
func (t *Typist) run(ctx context.Context) {
	for {
		var due <-chan time.Time
		t.mu.Lock()
		if at, ok := t.due(); ok {
			due = time.After(time.Until(at))
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-t.changed:
		case <-due:
			if !t.isDue() {
				continue // the program has written something
			}
			waiting, err := t.check(ctx)
			t.mail(waiting)
			if err == nil {
				t.typeLine(ctx)
			}
		}
	}
}

// due returns when the line is to be typed; false if first something else must change. The caller
// holds mu.
func (t *Typist) due() (time.Time, bool) {
	if len(t.waiting) == 0 || t.keys.typing() {
		return time.Time{}, false
	}
	at, again := t.active.Add(typeAfter), t.toldAt.Add(typeAgain)
	told := slices.ContainsFunc(t.waiting, func(m int64) bool { return slices.Contains(t.told, m) })
	if told && again.After(at) {
		at = again
	}
	return at, true
}

// isDue reports whether the line is due now.
func (t *Typist) isDue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.due()
	return ok && !at.After(time.Now())
}

// typeLine types the line, if it is still due. Keys of the person wait until after its Enter.
func (t *Typist) typeLine(ctx context.Context) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if !t.isDue() {
		return
	}
	t.mu.Lock()
	t.told, t.toldAt = t.waiting, time.Now()
	t.mu.Unlock()
	// If the terminal is closed, the program has ended.
	_, _ = io.WriteString(t.terminal, t.line)
	select {
	case <-time.After(enterAfter):
	case <-ctx.Done():
	}
	_, _ = io.WriteString(t.terminal, "\r")
}

// mail notes which messages wait.
func (t *Typist) mail(waiting []int64) {
	t.mu.Lock()
	t.waiting = waiting
	t.mu.Unlock()
	t.poke()
}

// pass passes keys of the person to the program.
func (t *Typist) pass(keys []byte) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	t.active = time.Now()
	t.keys.take(keys)
	t.mu.Unlock()
	t.poke()
	_, err := t.terminal.Write(keys)
	return err
}

// wrote notes that the program has written something.
func (t *Typist) wrote() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active = time.Now()
}

func (t *Typist) poke() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}
