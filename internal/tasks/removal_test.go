package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// silence is a post that sends nothing.
type silence struct{ testkit.NoPost }

func (silence) Notify(*store.Tx, int64, work.Notice) error { return nil }

// newService returns the tasks of a store, and the context of the agent a.
func newService(t *testing.T, st *store.Store, clock clockwork.Clock) (*tasks.Service, context.Context) {
	s := tasks.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: silence{}, Clock: clock,
		Log: zap.NewNop(),
	})
	caller := identity.Caller{Session: "default", Agent: "a"}
	return s, identity.NewContext(t.Context(), caller)
}

// TestRemove_KeepsATaskThatHasChangedSinceTheKeeperReadIt makes the two steps of the keeper with a
// change in between.
func TestRemove_KeepsATaskThatHasChangedSinceTheKeeperReadIt(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations(), tasks.Migrations())
	testkit.Agents(t, st, "", "a")
	service, ctx := newService(t, st, clock)
	create := func(id string, needs ...string) {
		t.Helper()
		n := &pb.NewTask{Id: id, Title: id, MaxAttempts: 1, DependsOn: needs}
		apptest.NoError(t, apptest.Err(service.CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{n}})))
	}
	create("t")
	for _, step := range []struct {
		name   string
		change func()
		state  pb.TaskState
	}{
		{"retried", func() { apptest.NoError(t, apptest.Err(service.RetryTask(ctx, &pb.RetryTaskRequest{Id: "t"}))) }, ready},
		{"needed by another task", func() { create("next", "t") }, failed},
	} {
		apptest.NoError(t, apptest.Err(service.ClaimTask(ctx, &pb.ClaimTaskRequest{Id: "t"})))
		apptest.NoError(t, apptest.Err(service.FailTask(ctx, &pb.FailTaskRequest{Id: "t", Error: "it broke", Fatal: true})))
		clock.Advance(time.Hour)
		var found []work.Done
		apptest.NoError(t, st.Read(ctx, func(snap *store.Snapshot) (err error) {
			found, err = service.Finished(snap, 1, clock.Now(), 10)
			return err
		}))
		want(t, step.name+": finished tasks", len(found), 1)
		step.change()
		remove := func(tx *store.Tx) error { return service.Remove(tx, 1, found) }
		if err := st.Write(ctx, remove); err == nil || fault.KindOf(err) != fault.Conflict {
			t.Errorf("%s: Remove returns %v, want a conflict", step.name, err)
		}
		f, err := service.GetTask(ctx, &pb.GetTaskRequest{Id: "t"})
		apptest.NoError(t, err)
		want(t, step.name+": the state", f.GetTask().GetState(), step.state)
	}
}

// TestArtifactMentions_FindsTheResultOfAnOlderTask makes the two searches of the keeper with a change in
// between.
func TestArtifactMentions_FindsTheResultOfAnOlderTask(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations(), tasks.Migrations())
	testkit.Agents(t, st, "", "a")
	service, ctx := newService(t, st, clock)
	for _, id := range []string{"older", "newer"} {
		n := &pb.NewTask{Id: id, Title: id, Artifacts: []string{id + ".md@1"}}
		apptest.NoError(t, apptest.Err(service.CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{n}})))
	}
	apptest.NoError(t, apptest.Err(service.ClaimTask(ctx, &pb.ClaimTaskRequest{Id: "older"})))
	texts, read := work.NewTexts([]string{"older.md@1", "newer.md@1", "report.md@1"}), int64(0)
	search := func() {
		t.Helper()
		apptest.NoError(t, st.Read(ctx, func(snap *store.Snapshot) (err error) {
			read, _, err = service.ArtifactMentions(snap, 1, read, texts)
			return err
		}))
	}
	search()
	want(t, "texts that the first search finds", len(texts.Found()), 2)
	apptest.NoError(t, apptest.Err(service.CompleteTask(ctx, &pb.CompleteTaskRequest{Id: "older", Artifacts: []string{"report.md@1"}})))
	search()
	want(t, "the search after it finds the result", texts.Found()["report.md@1"], true)
}
