package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// ErrLockerClosed is what a Locker answers after Close.
var ErrLockerClosed = errors.New("the locker is closed")

// A Locker locks over one stream, at about half of what a call through Client.Locks costs: for who locks often. What is not answered when the stream
// breaks is asked again on the next one: an Acquire goes on waiting in the same place, for all of its wait anew, or gets the same grant. Where the answer was lost after
// the request had been carried out, the second says that it held, or released nothing, unless the request has a request_id. While the broker is away requests wait, as
// long as their contexts let them.
//
// Requests begin in the order in which they are made, and one that waits for its turn holds up none after it. A Locker is safe for concurrent
// use. It needs Close, which gives no lock back. A request must not be changed before its method returns.
type Locker struct {
	calls pb.LockServiceClient
	retry retry
	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	done  sync.WaitGroup
	wake  chan struct{} // room for one: something was asked

	writing sync.Mutex // held while writing to the stream, so that requests keep their order; taken before mu

	mu      sync.Mutex
	stream  pb.LockService_LockClient // nil while there is none to write to
	asked   map[int64]*asked          // by number: not answered yet
	number  int64                     // of the last request
	trouble error                     // why the last stream ended; nil once the next one is open: an answer may be long in coming
	closed  bool
}

// asked is a request that is not answered yet.
type asked struct {
	request  *pb.LockRequest
	answered chan struct{} // closed when there is an answer or err
	answer   *pb.LockResponse
	err      error
	keeps    bool // its ticket
	given    bool // nobody waits any more
}

// NewLocker returns a Locker for the client's agent. Its stream is opened when there is something to ask.
func (c *Client) NewLocker() *Locker {
	ctx, stop := context.WithCancel(context.Background())
	l := &Locker{
		calls: c.Locks(), retry: retry{link: c.link}, ctx: ctx, stop: stop,
		wake: make(chan struct{}, 1), asked: map[int64]*asked{},
	}
	l.done.Go(l.run)
	return l
}

// Acquire is AcquireLocks. If ctx ends first the request is broken off, and a grant that had just been made is given back, unless the
// request keeps its ticket or the stream breaks at the same time.
func (l *Locker) Acquire(ctx context.Context, r *pb.AcquireLocksRequest) (*pb.AcquireLocksResponse, error) {
	a, err := l.ask(ctx, &pb.LockRequest{Request: &pb.LockRequest_Acquire{Acquire: r}})
	return a.GetAcquired(), err
}

// Extend is ExtendLocks. If ctx ends first it may have been carried out or not.
func (l *Locker) Extend(ctx context.Context, r *pb.ExtendLocksRequest) (*pb.ExtendLocksResponse, error) {
	a, err := l.ask(ctx, &pb.LockRequest{Request: &pb.LockRequest_Extend{Extend: r}})
	return a.GetExtended(), err
}

// Release is ReleaseLocks. If ctx ends first it may have been carried out or not.
func (l *Locker) Release(ctx context.Context, r *pb.ReleaseLocksRequest) (*pb.ReleaseLocksResponse, error) {
	a, err := l.ask(ctx, &pb.LockRequest{Request: &pb.LockRequest_Release{Release: r}})
	return a.GetReleased(), err
}

// Close ends the stream. What is not answered yet ends with ErrLockerClosed.
func (l *Locker) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.stop()
	l.done.Wait()
}

// ask makes a request and waits for its answer. Errors are those of a call: an *ItemError for what the broker refuses.
func (l *Locker) ask(ctx context.Context, r *pb.LockRequest) (*pb.LockResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.TraceParent = l.retry.link.span(ctx)
	a := &asked{request: r, keeps: r.GetAcquire().GetKeepTicket(), answered: make(chan struct{})}
	if err := l.submit(a); err != nil {
		return nil, err
	}
	select {
	case <-a.answered:
	case <-ctx.Done():
		if err := l.giveUp(ctx, a); err != nil {
			return nil, err
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	if e := itemError(0, a.answer.GetError()); e != nil {
		return nil, e
	}
	return a.answer, nil
}

// submit numbers a request and writes it to the present stream; without one the next stream begins with it.
func (l *Locker) submit(a *asked) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrLockerClosed
	}
	l.number++
	a.request.Number = l.number
	l.asked[l.number] = a
	stream := l.stream
	l.mu.Unlock()
	if stream != nil {
		_ = stream.Send(a.request) // if that fails the next stream begins with it
		return nil
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// giveUp says that nobody waits for an answer any more, and returns why; nil if it has just come.
func (l *Locker) giveUp(ctx context.Context, a *asked) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked[a.request.Number] != a {
		return nil
	}
	a.given = true
	err := ctx.Err()
	if l.trouble != nil {
		err = fmt.Errorf("%w while the broker could not be reached: %v", err, l.trouble) //nolint:errorlint // only ctx's error is the caller's to match
	}
	if a.request.GetAcquire() == nil || l.closed {
		return err
	}
	l.done.Go(func() {
		l.writing.Lock()
		defer l.writing.Unlock()
		l.mu.Lock()
		stream := l.stream
		l.mu.Unlock()
		if stream != nil {
			_ = stream.Send(&pb.LockRequest{Number: a.request.Number, Request: &pb.LockRequest_Cancel{Cancel: &pb.LockCancel{}}})
		}
	})
	return err
}

// run opens a stream when there is something to ask, reads its answers, and opens the next when it breaks, until Close.
func (l *Locker) run() {
	defer l.fail(ErrLockerClosed)
	for {
		for l.idle() {
			select {
			case <-l.wake:
			case <-l.ctx.Done():
				return
			}
		}
		err := l.exchange()
		switch {
		case l.ctx.Err() != nil:
			return
		case !transient(err):
			l.fail(err)
		case l.idle():
			// Nothing was lost with the stream; the next one can wait until it is needed.
		case !l.retry.wait(l.ctx, err):
			return
		}
	}
}

// idle reports whether nobody waits for an answer.
func (l *Locker) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.asked {
		if !a.given {
			return false
		}
	}
	return true
}

// exchange opens a stream, asks again what is not answered, lets new requests through, and reads answers until the stream ends.
func (l *Locker) exchange() error {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	stream, err := l.calls.Lock(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	resent := make(chan struct{})
	go func() {
		defer close(resent)
		l.resend(stream)
	}()
	err = l.receive(stream)

	// Whoever is writing must be gone before the next stream asks the same in order.
	cancel()
	<-resent
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream, l.trouble = nil, err
	return err
}

// resend writes what the stream before left unanswered, then opens the stream to new requests. It runs beside receive, or both ends could block on
// flow control.
func (l *Locker) resend(stream pb.LockService_LockClient) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	numbers := slices.Sorted(maps.Keys(l.asked))
	l.mu.Unlock()
	for _, number := range numbers {
		if r := l.again(number); r != nil && stream.Send(r) != nil {
			return // receive learns why
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream, l.trouble = stream, nil
}

// again returns a request that is to be asked once more; nil if nobody waits for it, and then it is forgotten. It is a copy: the caller may give
// it up, and use its request for something else, while it is being written.
func (l *Locker) again(number int64) *pb.LockRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.asked[number]
	switch {
	case a == nil:
		return nil
	case a.given:
		delete(l.asked, number)
		return nil
	}
	return proto.CloneOf(a.request)
}

// receive reads answers until the stream ends, and returns why it did.
func (l *Locker) receive(stream pb.LockService_LockClient) error {
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if e := itemError(0, answer.GetError()); e != nil && e.Code == codes.Unavailable {
			return e // the broker stops or its disk is full: it is asked again as if the stream had broken
		}
		l.retry.worked()
		l.answer(answer)
	}
}

// answer gives an answer to whoever waits for it.
func (l *Locker) answer(answer *pb.LockResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.asked[answer.GetNumber()]
	if a == nil {
		return
	}
	delete(l.asked, answer.GetNumber())
	if !a.given {
		a.answer = answer
		close(a.answered)
		return
	}
	got := answer.GetAcquired()
	if l.closed || got.GetFence() == 0 || got.GetAlreadyHeld() || a.keeps {
		return
	}
	l.done.Go(func() { // nobody knows that it is held
		_, _ = l.Release(l.ctx, &pb.ReleaseLocksRequest{Fences: []int64{got.GetFence()}})
	})
}

// fail ends all that is not answered with err.
func (l *Locker) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.asked {
		a.err = err
		close(a.answered)
	}
	clear(l.asked)
}
