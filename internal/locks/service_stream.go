package locks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/guard"
	"brokerd/internal/identity"
	"brokerd/internal/tracing"
)

const (
	// maxWaits is how many requests of one Lock stream may wait for their turn.
	maxWaits = 1000
	// maxUnread is how many others may be without an answer that the client has read, until no further request is.
	maxUnread = 1000
)

// Lock implements the RPC. One goroutine reads and submits, this one answers; the writer is between them.
func (s *Service) Lock(stream pb.LockService_LockServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	q := newReplies()
	defer func() {
		cancel()
		s.unsaid(q.close())
	}()
	guard.Go(s.table.zap, func() error { return s.readRequests(ctx, stream, q) }, q.end)
	stopping := s.table.stopping
	for {
		ready, over, err := q.take(stopping == nil)
		if over {
			return err
		}
		for i := range ready {
			if err := stream.Send(ready[i].LockResponse); err != nil {
				s.unsaid(ready[i:])
				return err
			}
			s.table.Told(&ready[i].answer, true)
		}
		if len(ready) > 0 {
			continue
		}
		select {
		case <-q.wake:
		case <-stopping:
			stopping = nil // what is under way is still answered
		}
	}
}

// unsaid says that nobody gets some answers.
func (s *Service) unsaid(replies []reply) {
	for i := range replies {
		s.table.Told(&replies[i].answer, false)
	}
}

// readRequests submits what comes until the stream ends.
func (s *Service) readRequests(ctx context.Context, stream pb.LockService_LockServer, q *replies) error {
	series := s.table.Series(identity.FromContext(ctx))
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := q.awaitAnswers(ctx); err != nil {
			return err
		}
		if err := s.submit(ctx, series, r, q); err != nil {
			return err
		}
	}
}

// submit hands one request over. An error ends the stream.
func (s *Service) submit(ctx context.Context, series *Series, r *pb.LockRequest, q *replies) error {
	if r.GetCancel() != nil {
		q.cancel(r.Number)
		return nil
	}
	var cancel context.CancelFunc // nil for a request that does not wait
	if r.GetAcquire().GetWait() != nil {
		ctx, cancel = context.WithCancel(ctx)
	}
	crowded, err := q.begin(r.Number, cancel)
	if err != nil {
		if cancel != nil {
			cancel()
		}
		return err
	}
	refuse := func(err error) {
		q.done(reply{LockResponse: &pb.LockResponse{Number: r.Number, Outcome: &pb.LockResponse_Error{Error: s.itemError(ctx, err)}}})
	}
	defer func() {
		if p := recover(); p != nil { // the stream ends once every request that has begun has an answer
			refuse(fmt.Errorf("panic: %v", p))
			panic(p)
		}
	}()
	if crowded {
		refuse(exhausted("TOO_MANY_WAITS", maxWaits, "%d requests of this stream wait for their turn, and no more may: try again when one is answered, or on another stream", maxWaits))
		return nil
	}
	switch x := r.Request.(type) {
	case *pb.LockRequest_Acquire:
		if r.TraceParent != "" {
			span, ok := tracing.Parse(r.TraceParent)
			if !ok {
				refuse(fault.Field("trace_parent", "is no W3C traceparent such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
				return nil
			}
			ctx = tracing.NewContext(ctx, span)
		}
		w, req, err := wish(ctx, x.Acquire)
		if err != nil {
			refuse(err)
			return nil
		}
		series.Acquire(ctx, req, w, func(a Answer, err error) {
			if err != nil {
				refuse(err)
				return
			}
			q.done(reply{&pb.LockResponse{Number: r.Number, Outcome: &pb.LockResponse_Acquired{Acquired: acquired(&a)}}, a})
		})
	case *pb.LockRequest_Extend:
		maxHold, req, err := longer(ctx, x.Extend)
		if err != nil {
			refuse(err)
			return nil
		}
		series.Extend(ctx, req, x.Extend.Fences, maxHold, func(ends []time.Time, err error) {
			if err != nil {
				refuse(err)
				return
			}
			q.done(reply{LockResponse: &pb.LockResponse{Number: r.Number, Outcome: &pb.LockResponse_Extended{Extended: extended(ends)}}})
		})
	case *pb.LockRequest_Release:
		g, req, err := back(ctx, x.Release)
		if err != nil {
			refuse(err)
			return nil
		}
		series.Release(ctx, req, g, func(given Released, err error) {
			if err != nil {
				refuse(err)
				return
			}
			q.done(reply{LockResponse: &pb.LockResponse{Number: r.Number, Outcome: &pb.LockResponse_Released{Released: released(&given)}}})
		})
	default:
		refuse(fault.Field("request", "is missing: acquire, extend, release or cancel"))
	}
	return nil
}

// A reply is an answer that is there; of one to an acquire request it has both forms.
type reply struct {
	*pb.LockResponse
	answer Answer
}

// replies are the requests of one stream that are under way, and the answers that are there.
type replies struct {
	wake     chan struct{} // capacity 1: there is something to take
	taken    chan struct{} // capacity 1: answers were taken
	finished sync.WaitGroup

	mu     sync.Mutex                   // guards the fields below
	under  map[int64]context.CancelFunc // by number
	waits  int                          // how many of them wait
	ready  []reply
	ended  bool  // no further request comes
	err    error // why
	closed bool  // and none is begun
}

func newReplies() *replies {
	return &replies{wake: make(chan struct{}, 1), taken: make(chan struct{}, 1), under: map[int64]context.CancelFunc{}}
}

// begin enters a request that is about to be submitted. One that waits has a function that breaks it off, which is called in the end. It is crowded if too
// many others wait.
func (q *replies) begin(number int64, cancel context.CancelFunc) (crowded bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, taken := q.under[number]
	switch {
	case q.closed:
		return false, context.Canceled
	case number < 1:
		return false, fault.Field("number", "is %d; numbers of requests are greater than 0", number)
	case taken:
		return false, fault.Field("number", "%d is the number of another request that is not answered yet", number)
	}
	q.finished.Add(1)
	q.under[number] = cancel
	if cancel != nil {
		q.waits++
	}
	return q.waits > maxWaits, nil
}

// cancel breaks a request off, if it is under way.
func (q *replies) cancel(number int64) {
	q.mu.Lock()
	cancel := q.under[number]
	q.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// done answers a request. The writer calls it, so it does not block.
func (q *replies) done(a reply) {
	q.mu.Lock()
	cancel := q.under[a.Number]
	delete(q.under, a.Number)
	q.ready = append(q.ready, a)
	if cancel != nil {
		q.waits--
	}
	q.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	signal(q.wake)
	q.finished.Done()
}

// end says that no further request comes, and why.
func (q *replies) end(err error) {
	q.mu.Lock()
	q.ended, q.err = true, err
	q.mu.Unlock()
	signal(q.wake)
}

// take returns the answers that are there. It is over when the stream has broken, or when no request is under way and none comes, or none is to
// be waited for because the broker stops.
func (q *replies) take(stopping bool) (ready []reply, over bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ended && q.err != nil:
		return nil, true, q.err
	case len(q.ready) > 0:
		ready, q.ready = q.ready, nil
		signal(q.taken)
		return ready, false, nil
	case len(q.under) > 0:
	case q.ended:
		return nil, true, nil
	case stopping:
		return nil, true, errStopping()
	}
	return nil, false, nil
}

// awaitAnswers waits while too much is not answered, or the client does not read its answers.
func (q *replies) awaitAnswers(ctx context.Context) error {
	for {
		q.mu.Lock()
		few := len(q.under)-q.waits+len(q.ready) < maxUnread
		q.mu.Unlock()
		if few {
			return nil
		}
		select {
		case <-q.taken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close lets no further request begin, waits for those under way, and returns the answers that were not taken.
func (q *replies) close() []reply {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.finished.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready
}

// signal wakes whoever waits, now or next.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
