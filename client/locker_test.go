package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

func newLocker(t *testing.T, c *client.Client) *client.Locker {
	t.Helper()
	l := c.NewLocker()
	t.Cleanup(l.Close)
	return l
}

// locked is what an Acquire in a goroutine came to.
type locked struct {
	answer *pb.AcquireLocksResponse
	err    error
}

// lockLater acquires in a goroutine.
func lockLater(ctx context.Context, l *client.Locker, r *pb.AcquireLocksRequest) chan locked {
	c := make(chan locked, 1)
	go func() {
		answer, err := l.Acquire(ctx, r)
		c <- locked{answer, err}
	}()
	return c
}

func lockOf(paths ...string) *pb.AcquireLocksRequest { return &pb.AcquireLocksRequest{Paths: paths} }

// patientLockOf waits for its turn.
func patientLockOf(paths ...string) *pb.AcquireLocksRequest {
	return &pb.AcquireLocksRequest{Paths: paths, Wait: durationpb.New(24 * time.Hour)}
}

func granted(number, fence int64) *pb.LockResponse {
	a := &pb.AcquireLocksResponse{Outcome: pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED, Fence: fence}
	return &pb.LockResponse{Number: number, Outcome: &pb.LockResponse_Acquired{Acquired: a}}
}

func refused(number int64, e *pb.ItemError) *pb.LockResponse {
	return &pb.LockResponse{Number: number, Outcome: &pb.LockResponse_Error{Error: e}}
}

// A lockStream is a Lock stream that the test answers.
type lockStream = bidi[pb.LockRequest, pb.LockResponse]

// wantAcquire reads the next frame, which must ask for a path.
func wantAcquire(t *testing.T, s *lockStream, number int64, path string) {
	t.Helper()
	r := s.recv(t)
	if paths := r.GetAcquire().GetPaths(); r.GetNumber() != number || len(paths) != 1 || paths[0] != path {
		t.Fatalf("%.200v, not number %d for %.20s", r, number, path)
	}
}

// wantCancel reads the next frame, which must break a request off.
func wantCancel(t *testing.T, s *lockStream, number int64) {
	t.Helper()
	if r := s.recv(t); r.GetNumber() != number || r.GetCancel() == nil {
		t.Fatalf("%.200v, not the end of %d", r, number)
	}
}

// wantFence wants a grant.
func wantFence(t *testing.T, from chan locked, fence int64) {
	t.Helper()
	if o := next(t, from); o.err != nil || o.answer.GetFence() != fence {
		t.Fatalf("%v, %v; not fence %d", o.answer, o.err, fence)
	}
}

func TestLocker_AsksAgainInOrderWhatTheBrokenStreamLeftUnanswered(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := newLocker(t, c)
	var outcomes []chan locked
	first := (*lockStream)(nil)
	const count = 20
	for n := int64(1); n <= count; n++ {
		outcomes = append(outcomes, lockLater(t.Context(), l, lockOf(fmt.Sprint(n))))
		if first == nil {
			first = next(t, f.locks)
		}
		wantAcquire(t, first, n, fmt.Sprint(n))
	}
	first.send(t, granted(2, 102))
	wantFence(t, outcomes[1], 102)
	first.end <- errCut

	second := next(t, f.locks)
	for n := int64(1); n <= count; n++ {
		if n != 2 {
			wantAcquire(t, second, n, fmt.Sprint(n))
		}
	}
	for n := int64(count); n > 0; n-- { // in no order
		if n != 2 {
			second.send(t, granted(n, 100+n))
			wantFence(t, outcomes[n-1], 100+n)
		}
	}
}

func TestLocker_UnavailableForOneRequestIsAskedAgain(t *testing.T) {
	t.Parallel()
	notices := make(chan error, 8)
	f, c := newFake(t, client.WithRetryNotice(func(err error, _ time.Duration) { notices <- err }))
	l := newLocker(t, c)
	got := lockLater(t.Context(), l, lockOf("x"))
	first := next(t, f.locks)
	wantAcquire(t, first, 1, "x")
	first.send(t, refused(1, &pb.ItemError{Code: int32(codes.Unavailable), Message: "the disk is full"}))
	if err := next(t, notices); !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("notice: %v", err)
	}
	second := next(t, f.locks)
	wantAcquire(t, second, 1, "x")
	second.send(t, granted(1, 7))
	wantFence(t, got, 7)
}

func TestLocker_LastingErrorFailsWhatWaitsAndTheNextRequestTriesAgain(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := newLocker(t, c)
	got := lockLater(t.Context(), l, lockOf("x"))
	first := next(t, f.locks)
	wantAcquire(t, first, 1, "x")
	first.end <- status.Error(codes.PermissionDenied, "observers only read")
	wantCode(t, next(t, got).err, codes.PermissionDenied)

	got = lockLater(t.Context(), l, lockOf("y"))
	second := next(t, f.locks)
	wantAcquire(t, second, 2, "y")
	second.send(t, granted(2, 7))
	wantFence(t, got, 7)
}

func TestLocker_EndOfTheContextBreaksTheRequestOff(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := newLocker(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	given := lockLater(ctx, l, patientLockOf("x"))
	stream := next(t, f.locks)
	wantAcquire(t, stream, 1, "x")
	kept := lockLater(t.Context(), l, patientLockOf("y"))
	wantAcquire(t, stream, 2, "y")
	cancel()
	wantIs(t, next(t, given).err, context.Canceled)
	wantCancel(t, stream, 1)
	stream.end <- errCut

	second := next(t, f.locks) // which hears nothing of it
	wantAcquire(t, second, 2, "y")
	second.send(t, granted(2, 7))
	wantFence(t, kept, 7)
	_, err := l.Acquire(ctx, lockOf("z"))
	wantIs(t, err, context.Canceled)
}

func TestLocker_RequestGivenUpBeforeItIsWrittenAgainIsItsCallersOnceMore(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := newLocker(t, c)
	long := strings.Repeat("x", 4*window) // the stream takes one, and another is under way
	var outcomes []chan locked
	stream := (*lockStream)(nil)
	for n := int64(1); n <= 4; n++ {
		outcomes = append(outcomes, lockLater(t.Context(), l, lockOf(long)))
		if stream == nil {
			stream = next(t, f.locks)
		}
		wantAcquire(t, stream, n, long)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := lockOf("given up")
	given := lockLater(ctx, l, r)
	wantAcquire(t, stream, 5, "given up")
	stream.end <- errCut

	stream = next(t, f.locks)
	wantAcquire(t, stream, 1, long)
	cancel()
	wantIs(t, next(t, given).err, context.Canceled)
	r.Paths[0] = "something else"
	for n := int64(2); n <= 4; n++ {
		wantAcquire(t, stream, n, long)
	}
	wantCancel(t, stream, 5)
	for n := int64(1); n <= 4; n++ {
		stream.send(t, granted(n, n))
		wantFence(t, outcomes[n-1], n)
	}
}

func TestLocker_OnlyAcquireIsBrokenOff(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(context.Context, *client.Locker) error{
		"extend": func(ctx context.Context, l *client.Locker) error {
			_, err := l.Extend(ctx, &pb.ExtendLocksRequest{Fences: []int64{7}})
			return err
		},
		"release": func(ctx context.Context, l *client.Locker) error {
			_, err := l.Release(ctx, &pb.ReleaseLocksRequest{Fences: []int64{7}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := newFake(t)
			l := newLocker(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- ask(ctx, l) }()
			stream := next(t, f.locks)
			if r := stream.recv(t); r.GetExtend() == nil && r.GetRelease() == nil {
				t.Fatal(r)
			}
			cancel()
			wantIs(t, next(t, done), context.Canceled)
			wantNextFrames(t, l, stream)
		})
	}
}

// wantNextFrames makes some requests, and wants to hear of nothing else on the stream.
func wantNextFrames(t *testing.T, l *client.Locker, stream *lockStream) {
	t.Helper()
	for n := range int64(20) {
		got := lockLater(t.Context(), l, lockOf("next"))
		r := stream.recv(t)
		if !slices.Equal(r.GetAcquire().GetPaths(), []string{"next"}) {
			t.Fatalf("%v", r)
		}
		stream.send(t, granted(r.GetNumber(), 1000+n))
		wantFence(t, got, 1000+n)
	}
}

func TestLocker_GrantThatNobodyWaitsForAnyMoreIsReleased(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]struct {
		fence      int64
		keep, held bool
	}{
		"new": {fence: 77}, "of a kept ticket": {fence: 77, keep: true}, "held before": {fence: 77, held: true}, "none": {},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := newFake(t)
			l := newLocker(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			r := patientLockOf("x")
			r.KeepTicket = k.keep
			given := lockLater(ctx, l, r)
			stream := next(t, f.locks)
			wantAcquire(t, stream, 1, "x")
			cancel()
			wantIs(t, next(t, given).err, context.Canceled)
			wantCancel(t, stream, 1)
			grant := granted(1, k.fence)
			grant.GetAcquired().AlreadyHeld = k.held
			stream.send(t, grant)
			if k.fence == 0 || k.keep || k.held {
				wantNextFrames(t, l, stream)
				return
			}
			if r := stream.recv(t); !slices.Equal(r.GetRelease().GetFences(), []int64{77}) {
				t.Fatalf("%v, not a release", r)
			}
		})
	}
}

// A lateContext ends as soon as somebody waits for its end, and after something else.
type lateContext struct {
	context.Context
	end func()
}

func (c lateContext) Done() <-chan struct{} {
	c.end()
	return c.Context.Done()
}

func TestLocker_AnswerTogetherWithTheEndOfTheContextIsNotLost(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := newLocker(t, c)
	var stream *lockStream
	for n := int64(1); n < 60; n += 2 { // each time either may be seen first
		before := lockLater(t.Context(), l, lockOf("before"))
		if stream == nil {
			stream = next(t, f.locks)
		}
		wantAcquire(t, stream, n, "before")
		ctx, cancel := context.WithCancel(t.Context())
		answer, err := l.Acquire(lateContext{ctx, func() {
			wantAcquire(t, stream, n+1, "x")
			stream.send(t, granted(n+1, n+1))
			stream.send(t, granted(n, n))
			wantFence(t, before, n) // so the one before it has been read, too
			cancel()
		}}, patientLockOf("x"))
		if err != nil || answer.GetFence() != n+1 {
			t.Fatalf("%v, %v", answer, err)
		}
	}
}

func TestLocker_EndOfTheContextSaysWhetherTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	retry, goOn := make(chan struct{}), make(chan struct{})
	f, c := newFake(t, client.WithRetryNotice(func(error, time.Duration) { retry <- struct{}{}; <-goOn }))
	l := newLocker(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	away := lockLater(ctx, l, patientLockOf("x"))
	first := next(t, f.locks)
	wantAcquire(t, first, 1, "x")
	ctx2, cancel2 := context.WithCancel(t.Context())
	waits := lockLater(ctx2, l, patientLockOf("y"))
	wantAcquire(t, first, 2, "y")
	first.end <- errCut
	next(t, retry)
	cancel()
	err := next(t, away).err
	wantIs(t, err, context.Canceled)
	if !strings.Contains(err.Error(), "could not be reached: rpc error: code = Unavailable desc = cut") {
		t.Fatalf("%q", err)
	}
	goOn <- struct{}{}

	second := next(t, f.locks)
	wantAcquire(t, second, 2, "y")
	third := lockLater(t.Context(), l, patientLockOf("z")) // once it comes, the stream is open
	wantAcquire(t, second, 3, "z")
	cancel2()
	if err := next(t, waits).err; !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "reached") {
		t.Fatalf("%v", err)
	}
	wantCancel(t, second, 2)
	second.send(t, granted(3, 7))
	wantFence(t, third, 7)
}

func TestLocker_CloseEndsWhatWaits(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	l := c.NewLocker()
	got := lockLater(t.Context(), l, patientLockOf("x"))
	wantAcquire(t, next(t, f.locks), 1, "x")
	l.Close()
	wantIs(t, next(t, got).err, client.ErrLockerClosed)
	_, err := l.Acquire(t.Context(), lockOf("y"))
	wantIs(t, err, client.ErrLockerClosed)
	_, err = l.Extend(t.Context(), &pb.ExtendLocksRequest{})
	wantIs(t, err, client.ErrLockerClosed)
	_, err = l.Release(t.Context(), &pb.ReleaseLocksRequest{})
	wantIs(t, err, client.ErrLockerClosed)
	l.Close()
}
