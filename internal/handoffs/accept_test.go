package handoffs_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAccept_MovesLocksAndTokensUnderNewFences(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b, c := w.Agent("a", "architect"), w.Agent("b", "builder"), w.Agent("c", "builder")
	src, build := lock(a, "src/"), token(a, "main")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{build, src, src}})
	if len(h.Grants) != 2 || h.Grants[0].Name != "src/" || h.Grants[0].Kind != pb.GrantKind_GRANT_KIND_LOCK || h.Grants[1].Name != "build/main" ||
		h.Grants[1].Kind != pb.GrantKind_GRANT_KIND_TOKEN || h.Grants[1].Fence != build {
		t.Fatalf("grants %v", h.Grants)
	}
	if !writes(a, src) || writes(b, src) {
		t.Error("before it is accepted, the sender holds the lock")
	}
	got := accept(b, h.Id)
	if got.State != pb.HandoffState_HANDOFF_STATE_ACCEPTED || got.SettledBy != "b" || got.SettledAt == nil {
		t.Errorf("accepted %v", got)
	}
	for _, g := range got.Grants {
		if g.NewFence <= g.Fence || g.Lost {
			t.Errorf("grant %v", g)
		}
		if writes(a, g.Fence) || writes(b, g.Fence) || writes(a, g.NewFence) {
			t.Errorf("the broker accepts a change under the old fence of %s, or of the sender", g.Name)
		}
		if !writes(b, g.NewFence) {
			t.Errorf("the new holder cannot write under fence %d of %s", g.NewFence, g.Name)
		}
	}
	out := apptest.Must(t, c.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"src/main.go"}})
	if out.Outcome != pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY || out.Obstacles[0].Agent != "b" {
		t.Errorf("another agent gets %v", out)
	}
	apptest.Refuses(t, a.ExtendLocks, &pb.ExtendLocksRequest{Fences: []int64{src}}, codes.FailedPrecondition, "LOCK_LOST")
	apptest.Must(t, b.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: []int64{got.Grants[0].NewFence}})
	lock(c, "src/main.go")
}

func TestAccept_MovesTheClaimOfTheTask(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	apptest.Must(t, a.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	claim := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Id: "t1"})
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true, Fences: []int64{lock(a, "src/")}})
	if g := h.Grants[0]; g.Kind != pb.GrantKind_GRANT_KIND_TASK || g.Name != "t1" || g.Fence != claim.Task.Fence {
		t.Errorf("grants %v", h.Grants)
	}
	got := accept(b, h.Id).Grants[0]
	if got.NewFence <= got.Fence || writes(a, got.Fence) || !writes(b, got.NewFence) {
		t.Errorf("grant %v", got)
	}
	_, err := a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t1"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the former holder completes the task: %v", err)
	}
	apptest.Must(t, b.CompleteTask, &pb.CompleteTaskRequest{Id: "t1", Fence: got.NewFence})

	h = create(b, &pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}) // a task that the sender does not hold may be named
	accept(a, h.Id)
	full := apptest.Must(t, b.GetTask, &pb.GetTaskRequest{Id: "t1", View: pb.TaskView_TASK_VIEW_FULL})
	if n := slices.IndexFunc(full.References, func(r *pb.TaskReference) bool { return r.Kind == "handoff" }); n < 0 || full.References[n].Id != h.Id {
		t.Errorf("the task names %v", full.References)
	}
}

func TestAccept_ATaskThatTheSenderHasClaimedAgainIsLost(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	apptest.Must(t, a.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Id: "t1"})
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true})
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "t1"})
	apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Id: "t1"})
	apptest.Refuses(t, b.AcceptHandoff, &pb.AcceptHandoffRequest{Id: h.Id}, codes.FailedPrecondition, "GRANTS_LOST")
}

func TestAccept_GrantsTheRequestOfTheAcceptorThatWaitedForTheLockAndNoOther(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b, c := w.Agent("a", "architect"), w.Agent("b", "builder"), w.Agent("c", "builder")
	fence := lock(a, "src/a.go")
	for _, x := range []*apptest.Actor{b, c} {
		out := apptest.Must(t, x.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, KeepTicket: true})
		if out.Ticket == 0 {
			t.Fatalf("no ticket: %v", out)
		}
	}
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{fence}})
	accept(b, h.Id)
	out := apptest.Must(t, a.ListLocks, &pb.ListLocksRequest{})
	if len(out.Tickets) != 1 || out.Tickets[0].Agent != "c" || slices.ContainsFunc(out.Locks, func(l *pb.Lock) bool { return l.Agent != "b" }) {
		t.Errorf("held %v, waiting %v", out.Locks, out.Tickets)
	}
	apptest.Must(t, b.ReleaseLocks, &pb.ReleaseLocksRequest{All: true})
	if out, err := a.ListLocks(a.Ctx, &pb.ListLocksRequest{}); err != nil || len(out.Locks) != 1 || out.Locks[0].Agent != "c" {
		t.Errorf("after the release, held %v, %v", out.GetLocks(), err)
	}
}

func TestAccept_OfTwoAcceptorsOneAccepts(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "architect")
	builders := []*apptest.Actor{w.Agent("b", "builder"), w.Agent("c", "builder")}
	for range 5 {
		fence := lock(a, "src/a.go")
		h := create(a, &pb.CreateHandoffRequest{ToRole: "builder", Fences: []int64{fence}})
		type answer struct {
			h   *pb.Handoff
			err error
		}
		done := make(chan answer)
		for _, x := range builders {
			go func() {
				out, err := x.AcceptHandoff(x.Ctx, &pb.AcceptHandoffRequest{Id: h.Id})
				done <- answer{out.GetHandoff(), err}
			}()
		}
		var winner *pb.Handoff
		for range builders {
			switch got := <-done; {
			case got.err != nil:
				apptest.Refused(t, got.err, codes.FailedPrecondition, "HANDOFF_CLOSED")
			case winner != nil:
				t.Fatal("both accepted")
			default:
				winner = got.h
			}
		}
		now := get(a, h.Id)
		if winner == nil || now.SettledBy != winner.SettledBy {
			t.Fatalf("accepted by %v, got by %v", winner, now)
		}
		holder := builders[slices.Index([]string{"b", "c"}, now.SettledBy)]
		apptest.Must(t, holder.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: []int64{now.Grants[0].NewFence}})
	}
}

func TestAccept_LostGrantsNeedTheConsentOfTheAcceptor(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	kept, lost := lock(a, "src/kept.go"), lock(a, "src/lost.go")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{kept, lost}})
	apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: []int64{lost}})
	_, err := b.AcceptHandoff(b.Ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	apptest.Refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
	if !strings.Contains(status.Convert(err).Message(), "src/lost.go") || !writes(a, kept) {
		t.Errorf("refused with %v", err)
	}
	out := apptest.Must(t, b.AcceptHandoff, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
	g := out.Handoff.Grants
	if g[0].NewFence == 0 || g[0].Lost || g[1].NewFence != 0 || !g[1].Lost || !writes(b, g[0].NewFence) {
		t.Errorf("grants %v", g)
	}
}

func TestAccept_SenderThatHasDeregisteredLeavesTheDescription(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{lock(a, "src/")}})
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	apptest.Refuses(t, b.AcceptHandoff, &pb.AcceptHandoffRequest{Id: h.Id}, codes.FailedPrecondition, "GRANTS_LOST")
	apptest.Must(t, b.AcceptHandoff, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
}
