package handoffs_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

func TestHandoff_AKilledDaemonLosesNeitherTheOfferNorTheGrants(t *testing.T) {
	t.Parallel()
	d := processtest.New(t, processtest.Build(t))
	apptest.NoError(t, d.Start(t.Context()))
	restart := func() {
		t.Helper()
		d.Kill()
		apptest.NoError(t, d.Start(t.Context()))
	}
	agent := func(name string) *apptest.Actor {
		t.Helper()
		c, err := client.Dial(t.Context(), client.WithAddress(d.Address()), client.WithAgent(name), client.WithWait())
		apptest.NoError(t, err)
		t.Cleanup(c.Close)
		return apptest.NewActor(t, c.Conn(), name).Register("builder")
	}
	a, b := agent("a"), agent("b")
	apptest.Must(t, a.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Id: "t1"})
	offered := create(a, &pb.CreateHandoffRequest{
		ToAgent: "b", TaskId: "t1", TransferTask: true, Fences: []int64{lock(a, "src/"), token(a, "main")},
		Content: &pb.HandoffContent{WorkDone: "The form."}, Checklist: []string{"tests pass"},
	})

	restart()
	if d := cmp.Diff(offered, get(b, offered.Id), protocmp.Transform()); d != "" || len(offered.Grants) != 3 {
		t.Errorf("after the kill the offer differs: %s", d)
	}
	for _, g := range offered.Grants {
		if !writes(a, g.Fence) || writes(b, g.Fence) {
			t.Errorf("before it is accepted, the sender holds %v", g)
		}
	}
	accept := &pb.AcceptHandoffRequest{RequestId: uuid.NewString(), Id: offered.Id, Notes: "thanks"}
	out := apptest.Must(t, b.AcceptHandoff, accept)

	restart()
	again := apptest.Must(t, b.AcceptHandoff, accept)
	if d := cmp.Diff(out, again, protocmp.Transform()); d != "" {
		t.Errorf("after the kill the same request has another answer: %s", d)
	}
	repeated := proto.CloneOf(accept)
	repeated.RequestId = uuid.NewString()
	apptest.Refuses(t, b.AcceptHandoff, repeated, codes.FailedPrecondition, "HANDOFF_CLOSED")
	for _, g := range get(b, offered.Id).Grants {
		if g.NewFence <= g.Fence || g.Lost || writes(a, g.Fence) || writes(a, g.NewFence) || !writes(b, g.NewFence) {
			t.Errorf("after it is accepted, the recipient holds %v", g)
		}
	}
	if n := notices(a, "handoff_accepted"); len(n) != 1 || len(claimed(b)) != 0 {
		t.Errorf("the sender has %v; the request is withdrawn", n)
	}
	apptest.Must(t, b.CompleteTask, &pb.CompleteTaskRequest{Id: "t1", Fence: again.Handoff.Grants[0].NewFence})
	apptest.NoError(t, d.Terminate())
	apptest.NoError(t, d.Check(t.Context()))
}
