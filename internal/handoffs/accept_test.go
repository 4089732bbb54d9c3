package handoffs_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

func TestAccept_MovesLocksAndTokensUnderNewFences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("c", "builder")
	lock, token := a.lock("src/"), a.token("main")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{token, lock, lock}})
	if len(h.Grants) != 2 || h.Grants[0].Name != "src/" || h.Grants[0].Kind != pb.GrantKind_GRANT_KIND_LOCK || h.Grants[1].Name != "build/main" ||
		h.Grants[1].Kind != pb.GrantKind_GRANT_KIND_TOKEN || h.Grants[1].Fence != token {
		t.Fatalf("grants %v", h.Grants)
	}
	if !a.writes(lock) || b.writes(lock) {
		t.Error("before it is accepted, the sender holds the lock")
	}
	got := b.accept(h.Id)
	if got.State != pb.HandoffState_HANDOFF_STATE_ACCEPTED || got.SettledBy != "b" || got.SettledAt == nil {
		t.Errorf("accepted %v", got)
	}
	for _, g := range got.Grants {
		if g.NewFence <= g.Fence || g.Lost {
			t.Errorf("grant %v", g)
		}
		if a.writes(g.Fence) || b.writes(g.Fence) || a.writes(g.NewFence) {
			t.Errorf("the broker accepts a change under the old fence of %s, or of the sender", g.Name)
		}
		if !b.writes(g.NewFence) {
			t.Errorf("the new holder cannot write under fence %d of %s", g.NewFence, g.Name)
		}
	}
	out, err := c.locks.AcquireLocks(c.ctx, &pb.AcquireLocksRequest{Paths: []string{"src/main.go"}})
	must(t, err)
	if out.Outcome != pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY || out.Obstacles[0].Agent != "b" {
		t.Errorf("another agent gets %v", out)
	}
	_, err = a.locks.ExtendLocks(a.ctx, &pb.ExtendLocksRequest{Fences: []int64{lock}})
	refused(t, err, codes.FailedPrecondition, "LOCK_LOST")
	_, err = b.locks.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{Fences: []int64{got.Grants[0].NewFence}})
	must(t, err)
	c.lock("src/main.go")
}

func TestAccept_MovesTheClaimOfTheTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	must(t, err)
	claim, err := a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: "t1"})
	must(t, err)
	lock := a.lock("src/")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true, Fences: []int64{lock}})
	if g := h.Grants[0]; g.Kind != pb.GrantKind_GRANT_KIND_TASK || g.Name != "t1" || g.Fence != claim.Task.Fence {
		t.Errorf("grants %v", h.Grants)
	}
	got := b.accept(h.Id).Grants[0]
	if got.NewFence <= got.Fence || a.writes(got.Fence) || !b.writes(got.NewFence) {
		t.Errorf("grant %v", got)
	}
	_, err = a.tasks.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: "t1"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the former holder completes the task: %v", err)
	}
	_, err = b.tasks.CompleteTask(b.ctx, &pb.CompleteTaskRequest{Id: "t1", Fence: got.NewFence})
	must(t, err)

	h = b.create(&pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}) // a task that the sender does not hold may be named
	a.accept(h.Id)
	full, err := b.tasks.GetTask(b.ctx, &pb.GetTaskRequest{Id: "t1", View: pb.TaskView_TASK_VIEW_FULL})
	must(t, err)
	if n := slices.IndexFunc(full.References, func(r *pb.TaskReference) bool { return r.Kind == "handoff" }); n < 0 || full.References[n].Id != h.Id {
		t.Errorf("the task names %v", full.References)
	}
}

func TestAccept_ATaskThatTheSenderHasClaimedAgainIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	must(t, err)
	claim := func() {
		_, err := a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: "t1"})
		must(t, err)
	}
	claim()
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true})
	_, err = a.tasks.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: "t1"})
	must(t, err)
	claim()
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
}

func TestAccept_GrantsTheRequestOfTheAcceptorThatWaitedForTheLockAndNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("c", "builder")
	fence := a.lock("src/a.go")
	for _, x := range []*actor{b, c} {
		out, err := x.locks.AcquireLocks(x.ctx, &pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, KeepTicket: true})
		must(t, err)
		if out.Ticket == 0 {
			t.Fatalf("no ticket: %v", out)
		}
	}
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{fence}})
	b.accept(h.Id)
	out, err := a.locks.ListLocks(a.ctx, &pb.ListLocksRequest{})
	must(t, err)
	if len(out.Tickets) != 1 || out.Tickets[0].Agent != "c" || slices.ContainsFunc(out.Locks, func(l *pb.Lock) bool { return l.Agent != "b" }) {
		t.Errorf("held %v, waiting %v", out.Locks, out.Tickets)
	}
	_, err = b.locks.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{All: true})
	must(t, err)
	if out, err = a.locks.ListLocks(a.ctx, &pb.ListLocksRequest{}); err != nil || len(out.Locks) != 1 || out.Locks[0].Agent != "c" {
		t.Errorf("after the release, held %v, %v", out.GetLocks(), err)
	}
}

func TestAccept_OfTwoAcceptorsOneAccepts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "architect")
	builders := []*actor{w.agent("b", "builder"), w.agent("c", "builder")}
	for range 5 {
		fence := a.lock("src/a.go")
		h := a.create(&pb.CreateHandoffRequest{ToRole: "builder", Fences: []int64{fence}})
		type answer struct {
			h   *pb.Handoff
			err error
		}
		done := make(chan answer)
		for _, x := range builders {
			go func() {
				out, err := x.AcceptHandoff(x.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
				done <- answer{out.GetHandoff(), err}
			}()
		}
		var winner *pb.Handoff
		for range builders {
			switch got := <-done; {
			case got.err != nil:
				refused(t, got.err, codes.FailedPrecondition, "HANDOFF_CLOSED")
			case winner != nil:
				t.Fatal("both accepted")
			default:
				winner = got.h
			}
		}
		now := a.get(h.Id)
		if winner == nil || now.SettledBy != winner.SettledBy {
			t.Fatalf("accepted by %v, got by %v", winner, now)
		}
		holder := builders[slices.Index([]string{"b", "c"}, now.SettledBy)]
		_, err := holder.locks.ReleaseLocks(holder.ctx, &pb.ReleaseLocksRequest{Fences: []int64{now.Grants[0].NewFence}})
		must(t, err)
	}
}

func TestAccept_LostGrantsNeedTheConsentOfTheAcceptor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	kept, lost := a.lock("src/kept.go"), a.lock("src/lost.go")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{kept, lost}})
	_, err := a.locks.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Fences: []int64{lost}})
	must(t, err)
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
	if !strings.Contains(status.Convert(err).Message(), "src/lost.go") || !a.writes(kept) {
		t.Errorf("refused with %v", err)
	}
	out, err := b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
	must(t, err)
	g := out.Handoff.Grants
	if g[0].NewFence == 0 || g[0].Lost || g[1].NewFence != 0 || !g[1].Lost || !b.writes(g[0].NewFence) {
		t.Errorf("grants %v", g)
	}
}

func TestAccept_SenderThatHasDeregisteredLeavesTheDescription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{a.lock("src/")}})
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
	must(t, err)
}
