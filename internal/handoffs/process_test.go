package handoffs_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

func TestHandoff_AKilledDaemonLosesNeitherTheOfferNorTheGrants(t *testing.T) {
	t.Parallel()
	d := processtest.New(t, processtest.Build(t))
	must(t, d.Start(t.Context()))
	restart := func() {
		t.Helper()
		d.Kill()
		must(t, d.Start(t.Context()))
	}
	agent := func(name string) *actor {
		t.Helper()
		c, err := client.Dial(t.Context(), client.WithAddress(d.Address()), client.WithAgent(name), client.WithWait())
		must(t, err)
		t.Cleanup(c.Close)
		a := actorOn(t, c.Conn(), name)
		_, err = a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(apptest.LongLease)})
		must(t, err)
		return a
	}
	a, b := agent("a"), agent("b")
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	must(t, err)
	_, err = a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: "t1"})
	must(t, err)
	offered := a.create(&pb.CreateHandoffRequest{
		ToAgent: "b", TaskId: "t1", TransferTask: true, Fences: []int64{a.lock("src/"), a.token("main")},
		Content: &pb.HandoffContent{WorkDone: "The form."}, Checklist: []string{"tests pass"},
	})

	restart()
	if d := cmp.Diff(offered, b.get(offered.Id), protocmp.Transform()); d != "" || len(offered.Grants) != 3 {
		t.Errorf("after the kill the offer differs: %s", d)
	}
	for _, g := range offered.Grants {
		if !a.writes(g.Fence) || b.writes(g.Fence) {
			t.Errorf("before it is accepted, the sender holds %v", g)
		}
	}
	accept := &pb.AcceptHandoffRequest{RequestId: uuid.NewString(), Id: offered.Id, Notes: "thanks"}
	out, err := b.AcceptHandoff(b.ctx, accept)
	must(t, err)

	restart()
	again, err := b.AcceptHandoff(b.ctx, accept)
	must(t, err)
	if d := cmp.Diff(out, again, protocmp.Transform()); d != "" {
		t.Errorf("after the kill the same request has another answer: %s", d)
	}
	repeated := proto.CloneOf(accept)
	repeated.RequestId = uuid.NewString()
	_, err = b.AcceptHandoff(b.ctx, repeated)
	refused(t, err, codes.FailedPrecondition, "HANDOFF_CLOSED")
	for _, g := range b.get(offered.Id).Grants {
		if g.NewFence <= g.Fence || g.Lost || a.writes(g.Fence) || a.writes(g.NewFence) || !b.writes(g.NewFence) {
			t.Errorf("after it is accepted, the recipient holds %v", g)
		}
	}
	if n := a.notices("handoff_accepted"); len(n) != 1 || len(b.claimed()) != 0 {
		t.Errorf("the sender has %v; the request is withdrawn", n)
	}
	_, err = b.tasks.CompleteTask(b.ctx, &pb.CompleteTaskRequest{Id: "t1", Fence: again.Handoff.Grants[0].NewFence})
	must(t, err)
	must(t, d.Terminate())
	must(t, d.Check(t.Context()))
}
