package locks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
)

// deaf is a stream of a client that asks for ever and reads nothing.
type deaf struct {
	pb.LockService_LockServer
	ctx   context.Context
	asked atomic.Int64
}

// Context implements grpc.ServerStream.
func (d *deaf) Context() context.Context { return d.ctx }

// Recv implements grpc.BidiStreamingServer.
func (d *deaf) Recv() (*pb.LockRequest, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	n := d.asked.Add(1)
	return &pb.LockRequest{Number: n, Request: &pb.LockRequest_Release{Release: &pb.ReleaseLocksRequest{Fences: []int64{n}}}}, nil
}

// Send implements grpc.BidiStreamingServer.
func (d *deaf) Send(*pb.LockResponse) error {
	<-d.ctx.Done()
	return d.ctx.Err()
}

func TestLock_ClientThatReadsNothingIsNotReadFurther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := clockwork.NewRealClock()
		st := newStore(t, clock)
		table := newTable(t, st, clock)
		ctx, hangUp := context.WithCancel(identity.NewContext(t.Context(), agentOf("a")))
		stream := &deaf{ctx: ctx}
		ended := make(chan error, 1)
		go func() { ended <- locks.NewService(table, nil).Lock(stream) }()
		synctest.Wait()
		if n := stream.asked.Load(); n < 1000 || n > 3000 {
			t.Errorf("%d requests were read, want one or two thousand", n)
		}
		hangUp()
		if err := <-ended; err == nil {
			t.Error("the stream ends well")
		}
	})
}

// broken is a stream with one request, whose answer cannot be sent.
type broken struct {
	deaf
	request chan *pb.LockRequest
}

var errBroken = errors.New("broken")

// Recv implements grpc.BidiStreamingServer.
func (b *broken) Recv() (*pb.LockRequest, error) {
	select {
	case r := <-b.request:
		return r, nil
	case <-b.ctx.Done():
		return nil, b.ctx.Err()
	}
}

// Send implements grpc.BidiStreamingServer.
func (b *broken) Send(*pb.LockResponse) error { return errBroken }

func TestLock_AnswerThatCannotBeSentEndsTheStreamAndPassesTheGrantOn(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	request := make(chan *pb.LockRequest, 1)
	request <- &pb.LockRequest{Number: 1, Request: &pb.LockRequest_Acquire{Acquire: &pb.AcquireLocksRequest{Paths: []string{"x"}}}}
	stream := &broken{deaf{ctx: identity.NewContext(t.Context(), agentOf("a"))}, request}
	if err := locks.NewService(k.table, nil).Lock(stream); !errors.Is(err, errBroken) {
		t.Errorf("the stream ends with %v", err)
	}
	want(t, "passes on", k.passesOn(), true)
}

func TestLock_PanicAtARequestThatHasBegunEndsTheStream(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewRealClock()
	st := newStore(t, clock)
	panicked := false
	service := locks.NewService(newTable(t, st, clock), func(context.Context, error) *pb.ItemError {
		if !panicked {
			panicked = true
			panic("planted")
		}
		return &pb.ItemError{}
	})
	ctx, hangUp := context.WithCancel(identity.NewContext(t.Context(), agentOf("a")))
	defer hangUp()
	ended := make(chan error, 1)
	go func() { ended <- service.Lock(&unwelcome{deaf{ctx: ctx}}) }()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "panic: planted" {
			t.Errorf("the stream ends with %v", err)
		}
	case <-time.After(apptest.Patience):
		t.Error("the stream does not end")
	}
}

// unwelcome is a stream of a client whose requests are all refused.
type unwelcome struct{ deaf }

// Recv implements grpc.BidiStreamingServer.
func (u *unwelcome) Recv() (*pb.LockRequest, error) {
	r, err := u.deaf.Recv()
	if err == nil {
		r.Request = &pb.LockRequest_Acquire{Acquire: &pb.AcquireLocksRequest{}}
	}
	return r, err
}

// Send implements grpc.BidiStreamingServer.
func (u *unwelcome) Send(*pb.LockResponse) error { return nil }
