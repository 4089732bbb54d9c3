package broker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// deaf is a Send stream of a client that sends messages without end and reads nothing.
type deaf struct {
	pb.MessageService_SendServer
	ctx   context.Context
	batch []byte
	sent  atomic.Int64
}

// Context implements grpc.ServerStream.
func (d *deaf) Context() context.Context { return d.ctx }

// RecvMsg implements grpc.ServerStream.
func (d *deaf) RecvMsg(frame any) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	d.sent.Add(1)
	frame.(interface{ ReadWire([]byte) (int, bool) }).ReadWire(d.batch)
	return nil
}

// SendMsg implements grpc.ServerStream.
func (d *deaf) SendMsg(any) error {
	<-d.ctx.Done()
	return d.ctx.Err()
}

// Send implements grpc.BidiStreamingServer. It has the answers with faults.
func (d *deaf) Send(r *pb.SendResponse) error { return d.SendMsg(r) }

func TestSendStream_ClientThatReadsNothingIsNotReadFurther(t *testing.T) {
	t.Parallel()
	batch, err := proto.Marshal(&pb.SendRequest{Messages: []*pb.Message{to("a")}})
	apptest.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		clock := clockwork.NewRealClock()
		st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), work.Migrations(),
			sessions.Migrations(), agents.Migrations(), schema.Migrations())
		testkit.Agents(t, st, "", "a")
		log, dir := events.New(st, clock, zap.NewNop()), directory.New()
		service, _ := serviceOn(t, st, log, dir, clock)

		caller := identity.Caller{Access: identity.Agent, Session: "default", Agent: "a"}
		ctx, hangUp := context.WithCancel(identity.NewContext(t.Context(), caller))
		stream := &deaf{ctx: ctx, batch: batch}
		ended := make(chan error, 1)
		go func() { ended <- service.Send(stream) }()
		synctest.Wait()
		want(t, "batches read", stream.sent.Load(), 65) // 64 under way, and one that waits
		hangUp()
		if err := <-ended; err == nil {
			t.Error("the stream ends well")
		}
	})
}
