package broker_test

import (
	"iter"
	"slices"
	"sync"

	"pgregory.net/rapid"

	"brokerd/internal/app"
	"brokerd/internal/store"
)

// batchSizes are how many actions a batch has: seldom as many as take long to compare.
var batchSizes = oneOf([]int{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 2, 3, 4, 5, 6, 64})

// batch has the functions of several actions run in one batch of the writer, in the order of the actions. Each action
// is drawn from what the test knew before the batch, and is done to the model, and compared, after those before it.
//
// So an action runs in two parts, which its first call separates: it is suspended once the function of the call has run.
func (h *history) batch(t *rapid.T) {
	names := []string{"send"}
	if len(h.m.parcels) > 0 {
		names = append(names, "send", "ack", "ack", "nack", "nack", "release", "extend", "cancel")
	}
	switch {
	case len(h.streams) == 0: // a call and a stream would take from each other
		names = append(names, "claim", "claim", "claim")
	case slices.ContainsFunc(h.m.parcels, func(p *parcel) bool { return h.stream(p) != nil }):
		names = append(names, "stream ack", "stream ack", "stream ack")
	}
	all := h.actions()
	h.writer.hold()
	defer h.writer.release()
	h.batched = true
	defer func() { h.suspend, h.batched = nil, false }()
	var second []func() (struct{}, bool)
	for range batchSizes.Draw(t, "actions") {
		action := all[oneOf(names).Draw(t, "what")]
		next, stop := iter.Pull(h.parts(t, action))
		defer stop()
		if _, suspended := next(); suspended {
			second = append(second, next)
		}
	}
	h.suspend = nil
	h.writer.release()
	for _, next := range second {
		next()
	}
}

// abandoned ends an action in the middle, because another one has failed.
type abandoned struct{}

// parts returns an action as a sequence that suspends it once.
func (h *history) parts(t *rapid.T, action func(*rapid.T)) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil && p != any(abandoned{}) {
				panic(p)
			}
		}()
		h.suspend = func() {
			if !yield(struct{}{}) {
				panic(abandoned{})
			}
		}
		action(t)
	}
}

// inBatch makes a call, and suspends the action from the time at which the call's function has run until the batch is
// committed.
func inBatch[A any](h *history, run func() (A, error)) (answer A, err error) {
	suspend := h.suspend
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer, err = run()
	}()
	h.writer.awaitRun(done)
	suspend()
	<-done
	return answer, err
}

// A heldWriter is the writer of a broker, which the test can keep in one batch: while it is held, it waits after each
// function until another one is queued.
type heldWriter struct {
	queued chan struct{} // gets a value when the function of a call is queued

	mu      sync.Mutex
	changed *sync.Cond
	held    bool
	waiting int // functions that are queued and have not run
}

func newHeldWriter() *heldWriter {
	w := &heldWriter{queued: make(chan struct{}, 1)}
	w.changed = sync.NewCond(&w.mu)
	return w
}

func (w *heldWriter) configure(c *app.Config) {
	c.Options = func(o *store.Options) { o.Queued, o.Ran = w.push, w.ran }
}

// push is called when a function is queued. Those of the broker itself have no caller.
func (w *heldWriter) push(caller any) {
	w.mu.Lock()
	w.waiting++
	signal := w.held && caller != nil
	w.mu.Unlock()
	w.changed.Broadcast()
	if signal {
		w.queued <- struct{}{}
	}
}

// ran is called in the writer after each function. Rounds and endings are not queued; a round runs before a function that
// was taken out of the queue already.
func (w *heldWriter) ran(work store.Work) {
	if work.Round {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = max(0, w.waiting-1)
	w.changed.Broadcast()
	for w.held && w.waiting == 0 {
		w.changed.Wait()
	}
}

// hold begins with the next function. Nothing may be queued.
func (w *heldWriter) hold() {
	w.mu.Lock()
	w.held, w.waiting = true, 0
	w.mu.Unlock()
}

func (w *heldWriter) release() {
	w.mu.Lock()
	w.held = false
	w.mu.Unlock()
	w.changed.Broadcast()
}

// awaitRun returns when the function of a call has run, or when the call has ended without one.
func (w *heldWriter) awaitRun(done <-chan struct{}) {
	select {
	case <-w.queued:
	case <-done:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.waiting > 0 {
		w.changed.Wait()
	}
}
