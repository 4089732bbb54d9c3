package decisions_test

import (
	"context"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/decisions"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// silence is a post that sends nothing.
type silence struct{ testkit.NoPost }

func (silence) Admit(context.Context, identity.Caller, int) error { return nil }
func (silence) Post(*store.Tx, int64, work.Letter) (int64, error) { return 0, nil }
func (silence) Notify(*store.Tx, int64, work.Notice) error        { return nil }
func (silence) Withdraw(*store.Tx, int64, work.Moot) error        { return nil }

// TestArtifactMentions_FindsTheNextRoundOfAnOlderDecision makes the two searches of the keeper with a
// change in between.
func TestArtifactMentions_FindsTheNextRoundOfAnOlderDecision(t *testing.T) {
	t.Parallel()
	clock, ctx := clockwork.NewFakeClock(), t.Context()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations(), decisions.Migrations())
	testkit.Agents(t, st, "", "a", "b")
	service := decisions.New(&work.Desk{Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(),
		Post: silence{}, Clock: clock, Log: zap.NewNop()}, nil, nil)
	opener := identity.NewContext(ctx, identity.Caller{Session: "default", Agent: "a"})
	other := identity.NewContext(ctx, identity.Caller{Session: "default", Agent: "b"})
	var ids []string
	for _, artifact := range []string{"older.md@1", "newer.md@1"} {
		out, err := service.OpenDecision(opener, &pb.OpenDecisionRequest{
			Kind: pb.DecisionKind_DECISION_KIND_PLAN, To: &pb.OpenDecisionRequest_Agent{Agent: "b"}, Title: artifact,
			MaxRounds: 5, Content: &pb.DecisionContent{Artifacts: []string{artifact}}})
		apptest.NoError(t, err)
		ids = append(ids, out.Decision.Id)
	}
	_, err := service.Decide(other, &pb.DecideRequest{Id: ids[0], Verdict: "revise"})
	apptest.NoError(t, err)
	texts, read := work.NewTexts([]string{"older.md@1", "newer.md@1", "plan.md@1"}), int64(0)
	search := func() {
		t.Helper()
		apptest.NoError(t, st.Read(ctx, func(snap *store.Snapshot) (err error) {
			read, _, err = service.ArtifactMentions(snap, 1, read, texts)
			return err
		}))
	}
	search()
	if n := len(texts.Found()); n != 2 {
		t.Errorf("the first search finds %d texts, want 2", n)
	}
	_, err = service.ResubmitDecision(opener, &pb.ResubmitDecisionRequest{
		Id: ids[0], Content: &pb.DecisionContent{Artifacts: []string{"plan.md@1"}}})
	apptest.NoError(t, err)
	search()
	if !texts.Found()["plan.md@1"] {
		t.Error("the search after a decision was resubmitted does not find what it names now")
	}
}
