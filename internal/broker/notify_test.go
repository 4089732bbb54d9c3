package broker_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/once"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// A village is a directory of one session, whose mailboxes hold one delivery.
type village struct {
	agents []broker.Agent
	closed bool
}

func (v *village) session() broker.Session {
	return broker.Session{ID: 1, Name: "default", MailboxLimit: 1, MaxAttempts: 3, Closed: v.closed}
}

func (v *village) Session(store.Querier, string) (broker.Session, error) { return v.session(), nil }

func (v *village) ByID(_ store.Querier, id int64) (broker.Session, error) {
	if id != 1 {
		return broker.Session{}, store.ErrNoRows
	}
	return v.session(), nil
}

func (v *village) Acting(_ store.Querier, _ int64, c caller.Caller) (broker.Agent, error) {
	return broker.Agent{Name: c.Name()}, nil
}

func (v *village) Find(_ store.Querier, _ int64, name string) (broker.Agent, bool, error) {
	for _, a := range v.agents {
		if a.Name == name {
			return a, true, nil
		}
	}
	return broker.Agent{}, false, nil
}

func (v *village) Matching(_ store.Querier, _ int64, role, _ string) (found []broker.Agent, _ error) {
	for _, a := range v.agents {
		if a.Role == role {
			found = append(found, a)
		}
	}
	return found, nil
}

func (v *village) Nearest(store.Querier, int64, string) ([]string, error) { return nil, nil }

func TestNotify_ReachesThoseWhoAreThereAndNeverFailsTheChange(t *testing.T) {
	v := &village{agents: []broker.Agent{{Name: "a", Role: "builder"}, {Name: "b", Role: "builder"}, {Name: "c"}}}
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), once.Migrations(), broker.Migrations())
	post := broker.New(st, events.New(st, clock, zap.NewNop()), v, clock, zap.NewNop())
	t.Cleanup(post.Stop)
	must(t, post.Start(t.Context()))
	conn, _ := testkit.Serve(t, func(r grpc.ServiceRegistrar) { pb.RegisterMessageServiceServer(r, broker.NewService(post, nil)) })
	inbox := func(name string) (found []*pb.Message) {
		t.Helper()
		out, err := pb.NewMessageServiceClient(conn).ListMessages(testkit.Agent(t.Context(), name), &pb.ListMessagesRequest{})
		must(t, err)
		for _, i := range out.GetItems() {
			found = append(found, i.GetMessage())
		}
		return found
	}
	notify := func(session int64, n broker.Notice) {
		t.Helper()
		must(t, st.Write(t.Context(), func(tx *store.Tx) error { return post.Notify(tx, session, n) }))
	}

	for range 3 { // into a full mailbox too
		notify(1, broker.Notice{Agent: "a", Type: "lock_revoked", Subject: "lost", Body: "all of it", Payload: `{"fence":7}`})
	}
	got := inbox("a")
	want(t, "notices", len(got), 3)
	m := got[0]
	if diff := cmp.Diff([]any{"a", "system", "lock_revoked", "lost", "all of it", `{"fence":7}`, int32(7)},
		[]any{m.GetTarget().GetAgent(), m.GetSender(), m.GetType(), m.GetSubject(), m.GetBody(), m.GetPayload(), m.GetPriority()}); diff != "" {
		t.Error(diff)
	}
	notify(1, broker.Notice{Role: "builder", Type: "token_passed", Subject: strings.Repeat("ä", 400), Priority: 9})
	want(t, "of the role", inbox("b")[0].GetTarget().GetRole(), "builder")
	want(t, "with the priority", inbox("b")[0].GetPriority(), 9)
	want(t, "bytes of a long subject", len(inbox("b")[0].GetSubject()) <= 512, true)
	want(t, "for both of it", len(inbox("a")), 4)
	want(t, "for others", len(inbox("c")), 0)

	before := st.Revision()
	notify(1, broker.Notice{Agent: "gone", Type: "t"})
	notify(1, broker.Notice{Role: "nobody", Type: "t"})
	notify(99, broker.Notice{Agent: "a", Type: "t"})
	v.closed = true
	notify(1, broker.Notice{Agent: "a", Type: "t"})
	want(t, "changes for nobody", st.Revision()-before, 0)
}
