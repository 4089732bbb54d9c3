package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"brokerd/internal/fault"
	"brokerd/internal/outbox"
)

var errBroken = errors.New("broken")

// wantNext wants Next to return frames, and err if there are none.
func wantNext(t *testing.T, o *outbox.Outbox[int], err error, frames ...int) {
	t.Helper()
	got, e := o.Next()
	if !slices.Equal(got, frames) || !errors.Is(e, err) {
		t.Errorf("got %v, %v, want %v, %v", got, e, frames, err)
	}
}

// wantStop wants Next to return that the broker stops.
func wantStop(t *testing.T, o *outbox.Outbox[int]) {
	t.Helper()
	if got, err := o.Next(); len(got) > 0 || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v, %v, want fault.Unavailable", got, err)
	}
}

func reserve(t *testing.T, o *outbox.Outbox[int], n int) {
	t.Helper()
	for range n {
		if err := o.Reserve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A pending is a call that runs in the background.
type pending chan error

func start(call func() error) pending {
	p := make(pending, 1)
	go func() { p <- call() }()
	return p
}

// blocks wants the call not to have returned.
func (p pending) blocks(t *testing.T, when string) {
	t.Helper()
	synctest.Wait()
	if len(p) > 0 {
		t.Fatal("it does not block", when)
	}
}

// returns wants the call to have returned err.
func (p pending) returns(t *testing.T, err error) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-p:
		if !errors.Is(got, err) {
			t.Fatalf("got %v, want %v", got, err)
		}
	default:
		t.Fatal("it blocks")
	}
}

func TestOutbox_FramesLeaveInTheOrderOfPut(t *testing.T) {
	t.Parallel()
	const frames, limit = 10_000, 8
	o := outbox.New[int](limit, nil)
	ended := start(func() error {
		for i := range frames {
			if err := o.Reserve(t.Context()); err != nil {
				return err
			}
			o.Put(i)
		}
		o.Close(nil)
		return nil
	})
	n := 0
	for {
		got, err := o.Next()
		if len(got) == 0 {
			if err != nil || n != frames {
				t.Fatalf("%d frames, %v", n, err)
			}
			break
		}
		if len(got) > limit {
			t.Fatalf("%d frames at once, want at most %d", len(got), limit)
		}
		for _, i := range got {
			if i != n {
				t.Fatalf("got frame %d, want %d", i, n)
			}
			n++
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestOutbox_ReserveWaitsUntilFramesAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := outbox.New[int](2, nil)
		reserve(t, o, 2)
		third := start(func() error { return o.Reserve(t.Context()) })
		third.blocks(t, "while two frames are due")
		o.Put(1)
		third.blocks(t, "while one frame is due and one is not sent")
		wantNext(t, o, nil, 1)
		third.blocks(t, "while one frame is due and one is being sent")
		next := start(func() error { _, err := o.Next(); return err })
		third.returns(t, nil)
		next.blocks(t, "while both frames are due")
		o.Put(2)
		next.returns(t, nil)
	})
}

func TestOutbox_ReaderOfAClientThatReadsNothingWaitsAsLongAsItsContextLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := outbox.New[int](1, nil)
		wait := func(when string) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			second := start(func() error { return o.Reserve(ctx) })
			second.blocks(t, when)
			cancel()
			second.returns(t, context.Canceled)
		}
		reserve(t, o, 1)
		wait("while the frame is due")
		o.Put(1)
		wait("while the frame is not sent")
		wantNext(t, o, nil, 1)
		wait("while the frame is being sent")
	})
}

func TestOutbox_ErrorComesAfterAllReservedFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := outbox.New[int](5, nil)
		reserve(t, o, 2)
		o.Put(1)
		o.Close(errBroken)
		o.Close(nil)
		wantNext(t, o, nil, 1)
		next := start(func() error { wantNext(t, o, nil, 2); return nil })
		next.blocks(t, "while a frame is due")
		o.Put(2)
		next.returns(t, nil)
		wantNext(t, o, errBroken)

		ctx, cancel := context.WithCancel(t.Context())
		late := start(func() error { return o.Reserve(ctx) })
		late.blocks(t, "after the end")
		cancel()
		late.returns(t, context.Canceled)
	})
}

func TestOutbox_CloseEndsAnIdleStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := outbox.New[int](1, nil)
		next := start(func() error { _, err := o.Next(); return err })
		next.blocks(t, "before the end")
		o.Close(nil)
		next.returns(t, nil)
	})
}

func TestOutbox_BrokerThatStopsAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		o := outbox.New[int](5, stopping)
		reserve(t, o, 1)
		next := start(func() error { wantNext(t, o, nil, 1); return nil })
		next.blocks(t, "while a frame is due")
		close(stopping)
		next.blocks(t, "while a frame is due, and the broker stops")
		ctx, cancel := context.WithCancel(t.Context())
		second := start(func() error { return o.Reserve(ctx) })
		second.blocks(t, "while the broker stops")
		o.Put(1)
		next.returns(t, nil)
		wantStop(t, o)
		second.blocks(t, "after the end")
		cancel()
		second.returns(t, context.Canceled)
	})
}

func TestOutbox_StopEndsAnIdleStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		o := outbox.New[int](1, stopping)
		next := start(func() error { wantStop(t, o); return nil })
		next.blocks(t, "before the stop")
		close(stopping)
		next.returns(t, nil)
	})
}
