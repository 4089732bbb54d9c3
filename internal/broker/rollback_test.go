package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// dispatchFailed is what the daemon logs when its dispatch fails. It tries again when the clock has
// advanced by a second.
const dispatchFailed = "function at the end of a batch failed"

// refuseCommits makes every transaction fail that changes something.
func (w *world) refuseCommits() {
	w.Helper()
	w.sql(`CREATE TRIGGER refuses BEFORE UPDATE ON meta BEGIN SELECT RAISE(ABORT, 'refused'); END`)
}

func (w *world) permitCommits() {
	w.Helper()
	w.sql(`DROP TRIGGER refuses`)
}

func TestDispatch_AFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", "builder"), w.agent("b", "builder")
	sent := lead.send(toRole("builder"))
	held := b.claim1()
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10})
	w.Unwatch()
	w.sql(`CREATE TRIGGER breaks BEFORE UPDATE OF holder ON deliveries BEGIN SELECT RAISE(ABORT, 'broken'); END`)
	b.release(held.ClaimId)
	w.awaitLog(dispatchFailed)
	lead.wantState(sent.Id, pending)
	w.sql(`DROP TRIGGER breaks`)
	for lead.state(sent.Id) == pending { // the daemon sets the timer after it has logged the failure
		w.Clock.Advance(time.Second)
	}
	want(t, "message", c.take(1)[0].Message.Id, sent.Id)
}

func TestClaimStream_TakeoverThatIsRolledBackLeavesTheOldStreamOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	w.sql(`DELETE FROM mailboxes WHERE kind = 2`)
	w.Restart()
	c := a.taker(&pb.ClaimOpen{Consumer: "c", Mailboxes: []string{"a"}, MaxInFlight: 10})
	w.refuseCommits()
	other := a.unopened()
	other.put(&pb.ClaimRequest{Open: &pb.ClaimOpen{Consumer: "c"}}) // which inserts the mailbox of the role
	want(t, "takeover", status.Code(other.ended()), codes.Unavailable)
	w.permitCommits()
	lead.send(to("a", subject("1")))
	wantList(t, "the old stream", subjectsOf(c.take(1)), "1")

	a.taker(&pb.ClaimOpen{Consumer: "c"})
	apptest.Refused(t, c.ended(), codes.Aborted, "TAKEN_OVER")
}

func TestDismissal_ThatIsRolledBackLeavesStreamsAndCallsOpen(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*world, *agent) error{
		"deregistration": func(_ *world, a *agent) error {
			return drop(a.DeregisterAgent(a.Ctx, &pb.DeregisterAgentRequest{}))
		},
		"end of the session": func(w *world, _ *agent) error {
			o := w.operator()
			return drop(o.CloseSession(o.Ctx, &pb.CloseSessionRequest{Name: "other"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := w.operator()
			apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
			lead, a := w.in("other", "lead"), w.in("other", "a")
			lead.Register("")
			a.Register("builder")
			c := a.taker(&pb.ClaimOpen{MaxInFlight: 1})
			call := w.wait(a, &pb.ClaimMessagesRequest{Consumer: "call", Max: 1})
			w.refuseCommits()
			want(t, "change", status.Code(change(w, a)), codes.Unavailable)
			w.permitCommits()
			lead.sendAll(to("a"), to("a"))
			c.take(1)
			want(t, "claims of the call", len((<-call.out).GetClaims()), 1)
			apptest.NoError(t, <-call.err)
		})
	}
}

func TestResend_ErrorOfTheDatabaseIsNotTakenForAMissingMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	w.agent("a", "")
	sent := lead.send(to("a"))
	w.sql(`ALTER TABLE deliveries RENAME TO away`)
	_, err := lead.ResendMessage(lead.Ctx, &pb.ResendMessageRequest{Id: sent.Id, Mailboxes: []string{"a"}})
	w.sql(`ALTER TABLE away RENAME TO deliveries`)
	want(t, "code", status.Code(err), codes.Internal)
}
