package tasks_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/agents"
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

// TestRemove_KeepsATaskThatHasChangedSinceTheKeeperReadIt makes the two steps of the keeper with a
// change in between.
func TestRemove_KeepsATaskThatHasChangedSinceTheKeeperReadIt(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations(), tasks.Migrations())
	testkit.Agents(t, st, "", "a")
	board := tasks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), silence{}, clock, zap.NewNop())
	ctx, c := t.Context(), identity.Caller{Session: "default", Agent: "a"}
	create := func(id string, needs ...string) {
		t.Helper()
		draft := tasks.Draft{ID: id, Title: id, Priority: 5, MaxAttempts: 1, DependsOn: needs}
		check(t, drop(board.Create(ctx, c, idempotency.Request{}, []tasks.Draft{draft})))
	}
	create("t")
	for _, step := range []struct {
		name   string
		change func()
		state  tasks.State
	}{
		{"retried", func() { check(t, drop(board.Retry(ctx, c, idempotency.Request{}, "t"))) }, tasks.Ready},
		{"needed by another task", func() { create("next", "t") }, tasks.Failed},
	} {
		check(t, drop(board.Claim(ctx, c, idempotency.Request{}, tasks.Wish{ID: "t"})))
		check(t, drop(board.Fail(ctx, c, idempotency.Request{}, "t", 0, "it broke", true)))
		clock.Advance(time.Hour)
		var found []work.Done
		check(t, st.Read(ctx, func(snap *store.Snapshot) (err error) {
			found, err = board.Finished(snap, 1, clock.Now(), 10)
			return err
		}))
		want(t, step.name+": finished tasks", len(found), 1)
		step.change()
		remove := func(tx *store.Tx) error { return board.Remove(tx, 1, []int64{found[0].Key}) }
		if err := st.Write(ctx, remove); err == nil || fault.KindOf(err) != fault.Conflict {
			t.Errorf("%s: Remove returns %v, want a conflict", step.name, err)
		}
		f, err := board.Get(ctx, c, "t", false)
		check(t, err)
		want(t, step.name+": the state", f.Task.State, step.state)
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
	board := tasks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), silence{}, clock, zap.NewNop())
	ctx, c := t.Context(), identity.Caller{Session: "default", Agent: "a"}
	for _, id := range []string{"older", "newer"} {
		draft := tasks.Draft{ID: id, Title: id, Priority: 5, MaxAttempts: 1, Artifacts: []string{id + ".md@1"}}
		check(t, drop(board.Create(ctx, c, idempotency.Request{}, []tasks.Draft{draft})))
	}
	check(t, drop(board.Claim(ctx, c, idempotency.Request{}, tasks.Wish{ID: "older"})))
	texts, read := work.NewTexts([]string{"older.md@1", "newer.md@1", "report.md@1"}), int64(0)
	search := func() {
		t.Helper()
		check(t, st.Read(ctx, func(snap *store.Snapshot) (err error) {
			read, _, err = board.ArtifactMentions(snap, 1, read, texts)
			return err
		}))
	}
	search()
	want(t, "texts that the first search finds", len(texts.Found()), 2)
	check(t, drop(board.Complete(ctx, c, idempotency.Request{}, "older", 0, "", []string{"report.md@1"})))
	search()
	want(t, "the search after it finds the result", texts.Found()["report.md@1"], true)
}
