package app_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
)

// TestPlans_NoHotStatementIsPlannedTwice runs what agents call all the time, with requests of different sizes, until
// every statement is prepared. From then on SQLite must plan nothing.
func TestPlans_NoHotStatementIsPlannedTwice(t *testing.T) {
	t.Parallel()
	var settled atomic.Bool
	var planned atomic.Int64
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.Options = func(o *store.Options) {
			o.Planned = func(object string) {
				if settled.Load() && planned.Add(1) < 20 {
					t.Errorf("SQLite planned %s again", object)
				}
			}
		}
	}))
	var conns []*grpc.ClientConn
	for i := range 3 {
		conns = append(conns, b.Registered(fmt.Sprintf("agent-%d", i), "worker"))
	}
	const rounds = 8
	for i := range 2 * rounds {
		settled.Store(i >= rounds)
		hot(t, conns, 1+i%5)
	}
	settled.Store(false) // the check of the database at the end prepares statements
}

// hot makes one round of the calls that agents make all the time, of n items where a call takes several.
func hot(t *testing.T, conns []*grpc.ClientConn, n int) {
	t.Helper()
	ctx := patient(t)
	for i, conn := range conns {
		next := fmt.Sprintf("agent-%d", (i+1)%len(conns))
		mail := pb.NewMessageServiceClient(conn)
		var messages []*pb.Message
		for range n {
			messages = append(messages, typed(next, "status"), &pb.Message{
				Type: "status", Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}},
			})
		}
		must(t, ctx, mail.SendMessages, &pb.SendMessagesRequest{Messages: messages})
		claimed := must(t, ctx, mail.ClaimMessages, &pb.ClaimMessagesRequest{Max: int32(2 * n)})
		ack := &pb.AckMessagesRequest{}
		for _, claim := range claimed.GetClaims() {
			ack.Ids = append(ack.Ids, claim.GetClaimId())
		}
		if len(ack.Ids) > 0 {
			must(t, ctx, mail.AckMessages, ack)
		}
		must(t, ctx, pb.NewAgentServiceClient(conn).Heartbeat, &pb.HeartbeatRequest{Activity: proto.String(fmt.Sprint(n))})
		keys := pb.NewStateServiceClient(conn)
		must(t, ctx, keys.PutState, &pb.PutStateRequest{
			Key: next, Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: next}},
		})
		paths := make([]string, n)
		for p := range paths {
			paths[p] = fmt.Sprintf("%s/%d", next, p)
		}
		files := pb.NewLockServiceClient(conn)
		held := must(t, ctx, files.AcquireLocks, &pb.AcquireLocksRequest{Paths: paths})
		must(t, ctx, files.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: []int64{held.GetFence()}})
		board := pb.NewTaskServiceClient(conn)
		must(t, ctx, board.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "work"}}})
		task := must(t, ctx, board.ClaimTask, &pb.ClaimTaskRequest{})
		must(t, ctx, board.CompleteTask, &pb.CompleteTaskRequest{Id: task.GetTask().GetId()})
	}
}

// must makes one call, which must succeed.
func must[Request, Answer any](
	t *testing.T, ctx context.Context, rpc func(context.Context, Request, ...grpc.CallOption) (Answer, error), in Request,
) Answer {
	t.Helper()
	out, err := rpc(ctx, in)
	apptest.NoError(t, err)
	return out
}
