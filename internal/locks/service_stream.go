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
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/outbox"
	"brokerd/internal/tracing"
)

const (
	// maxWaits is how many requests of one Lock stream may wait for their turn.
	maxWaits = 1000
	// maxUnread is how many requests may be without an answer that the client has read, with those that wait, until no
	// further one is taken.
	maxUnread = 2 * maxWaits
)

// Lock implements the RPC. Another goroutine reads the requests and submits them to the writer. This one answers, until
// each request has its answer or has been broken off.
func (s *Service) Lock(stream pb.LockService_LockServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	q := &openRequests{out: outbox.New[reply](maxUnread, s.table.stopping), cancels: map[int64]context.CancelFunc{}}
	end := func(err error) {
		q.out.Close(err)
		if err != nil {
			cancel()
		}
	}
	guard.Go(s.table.zap, func() error { return s.readRequests(ctx, stream, q) }, end)
	for {
		ready, err := q.out.Next()
		if len(ready) == 0 {
			return err
		}
		for i := range ready {
			err := ctx.Err()
			if err == nil {
				err = stream.Send(ready[i].LockResponse)
			}
			if err != nil {
				end(err)
			}
			s.table.Told(&ready[i].answer, err == nil)
		}
	}
}

// readRequests submits the requests until the stream ends.
func (s *Service) readRequests(ctx context.Context, stream pb.LockService_LockServer, q *openRequests) error {
	series := s.table.Series(identity.FromContext(ctx))
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.submit(ctx, series, r, q); err != nil {
			return err
		}
	}
}

// submit hands one request over. An error ends the stream.
func (s *Service) submit(ctx context.Context, series *Series, r *pb.LockRequest, q *openRequests) error {
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
	if err := q.out.Reserve(ctx); err != nil {
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
	if err := s.check(r); err != nil {
		refuse(err)
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
		req, err := idempotency.Of(ctx, "ExtendLocks", x.Extend.RequestId, x.Extend)
		if err != nil {
			refuse(err)
			return nil
		}
		series.Extend(ctx, req, x.Extend.Fences, x.Extend.MaxHold.AsDuration(), func(ends []time.Time, err error) {
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

// check checks the fields of a request as those of the call that it stands for.
func (s *Service) check(r *pb.LockRequest) error {
	switch x := r.Request.(type) {
	case *pb.LockRequest_Acquire:
		return s.acquire.Check(x.Acquire)
	case *pb.LockRequest_Extend:
		return s.extend.Check(x.Extend)
	case *pb.LockRequest_Release:
		return s.release.Check(x.Release)
	}
	return nil
}

// A reply answers a request. To a request that acquires, it has the answer in both forms.
type reply struct {
	*pb.LockResponse
	answer Answer
}

// openRequests are those of one stream that have no answer yet.
type openRequests struct {
	out *outbox.Outbox[reply]

	mu      sync.Mutex                   // guards the fields below
	cancels map[int64]context.CancelFunc // by number
	waits   int                          // how many of them wait
}

// begin enters a request that is about to be submitted. One that waits has a function that breaks it off, which is called
// in the end. It is crowded if too many others wait.
func (q *openRequests) begin(number int64, cancel context.CancelFunc) (crowded bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, taken := q.cancels[number]
	switch {
	case number < 1:
		return false, fault.Field("number", "is %d; numbers of requests are greater than 0", number)
	case taken:
		return false, fault.Field("number", "%d is the number of another request that is not answered yet", number)
	}
	q.cancels[number] = cancel
	if cancel != nil {
		q.waits++
	}
	return q.waits > maxWaits, nil
}

// cancel breaks a request off, if it is under way.
func (q *openRequests) cancel(number int64) {
	q.mu.Lock()
	cancel := q.cancels[number]
	q.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// done answers a request, unless it has its answer already: a defect may follow the answer. The writer calls done, so
// it does not block.
func (q *openRequests) done(a reply) {
	q.mu.Lock()
	cancel, open := q.cancels[a.Number]
	if !open {
		q.mu.Unlock()
		return
	}
	delete(q.cancels, a.Number)
	if cancel != nil {
		q.waits--
	}
	q.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	q.out.Put(a)
}
