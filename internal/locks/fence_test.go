package locks_test

import (
	"context"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// fenced is a context of calls that depend on a fence.
func (a *agent) fenced(fence int64) context.Context {
	return metadata.AppendToOutgoingContext(a.Ctx, "brokerd-fence", strconv.FormatInt(fence, 10))
}

func note(to string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: to}}, Type: "note"}
}

func TestFence_ChangesAreRefusedOnceItIsLost(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	fence := a.lock("x")
	held := a.fenced(fence)
	message := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{note("a")}}
	sent, err := a.SendMessages(held, message)
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(a.ReleaseLocks(held, &pb.ReleaseLocksRequest{Fences: []int64{fence}})))
	again, err := a.SendMessages(held, message) // it succeeded while the lock was held
	apptest.NoError(t, err)
	want(t, "message", again.Results[0].Id, sent.Results[0].Id)
	message.RequestId = ""
	apptest.Refused(t, apptest.Err(a.SendMessages(held, message)), codes.FailedPrecondition, "FENCE_LOST")
	_, err = a.AcquireLocks(held, &pb.AcquireLocksRequest{Paths: []string{"y"}})
	apptest.Refused(t, err, codes.FailedPrecondition, "FENCE_LOST")
	_, err = a.ReleaseLocks(held, &pb.ReleaseLocksRequest{All: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "FENCE_LOST")
	_, err = a.AckMessages(held, &pb.AckMessagesRequest{Ids: []string{sent.Results[0].Id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "FENCE_LOST")
}

func TestFence_IsTheAgentsOwn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	_, err := b.SendMessages(b.fenced(a.lock("x")), &pb.SendMessagesRequest{Messages: []*pb.Message{note("a")}})
	apptest.Refused(t, err, codes.FailedPrecondition, "FENCE_LOST")
}

func TestFence_OfAStreamIsCheckedForEachFrame(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	fence := a.lock("x")
	sends, err := a.Send(a.fenced(fence))
	apptest.NoError(t, err)
	send := func() *pb.ItemError {
		apptest.NoError(t, sends.Send(&pb.SendRequest{Messages: []*pb.Message{note("a")}}))
		out, err := sends.Recv()
		apptest.NoError(t, err)
		return out.Results[0].Error
	}
	if refused := send(); refused != nil {
		t.Errorf("a send with its lock held: %v", refused)
	}
	claims, err := a.Claim(a.fenced(fence))
	apptest.NoError(t, err)
	apptest.NoError(t, claims.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	var id string
	for id == "" {
		out, err := claims.Recv()
		apptest.NoError(t, err)
		if d := out.GetDeliver(); d != nil {
			id = d.Claims[0].ClaimId
		}
	}
	a.release(fence)
	want(t, "a send without its lock", send().GetReason(), "FENCE_LOST")
	apptest.NoError(t, claims.Send(&pb.ClaimRequest{Acks: []string{id}}))
	for {
		out, err := claims.Recv()
		apptest.NoError(t, err)
		if r := out.GetResults(); r != nil {
			want(t, "an ack without its lock", r.Results[0].Error.GetReason(), "FENCE_LOST")
			break
		}
	}
	apptest.NoError(t, sends.CloseSend())
	apptest.NoError(t, claims.CloseSend())
}
