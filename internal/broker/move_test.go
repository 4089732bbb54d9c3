package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// move moves waiting messages between mailboxes.
func (a *agent) move(from, to string, ids ...string) *pb.MoveMessagesResponse {
	a.Helper()
	return apptest.Must(a, a.MoveMessages, &pb.MoveMessagesRequest{From: from, To: to, Ids: ids,
		Reason: "a typing error"})
}

func TestMove_MailForAMisspelledRoleGoesToItsAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, o := w.agent("builder-1", "builder"), w.operator()
	low := o.send(toRole("bulider", subject("low"), priority(1)))
	o.send(toRole("bulider", subject("high"), priority(9)))
	out := o.move("role:bulider", "role:builder")
	want(t, "moved", out.Moved, 2)
	want(t, "left", out.Left, 0)
	e := w.Root().Events("message.moved")
	want(t, "events", len(e), 2)
	want(t, "the last revision", out.Revision, e[1].Revision)
	wantList(t, "related", e[0].Related, itoa(low.Revision))
	if !strings.Contains(e[0].Details, `"from":"role:bulider"`) ||
		!strings.Contains(e[0].Details, `"to":"role:builder"`) ||
		!strings.Contains(e[0].Details, `"reason":"a typing error"`) {
		t.Error(e[0].Details)
	}
	wantList(t, "order", subjectsOf(builder.claim(2)), "high", "low")
	want(t, "the mailbox of the first", o.delivery(low.Id).Mailbox, "role:builder")
	want(t, "moved again", o.move("role:bulider", "role:builder").Moved, 0)
}

func TestMove_OrderingKeyKeepsItsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "new"), w.operator()
	b := w.agent("b", "old")
	one, two := o.send(toRole("old", subject("1"), key("k"))), o.send(toRole("old", subject("2"), key("k")))
	three := o.send(toRole("old", subject("3"), key("k")))
	other := o.send(toRole("new", subject("0"), key("k")))
	b.claim1()
	want(t, "moved beside a claim", o.move("role:old", "role:new").Moved, 2)
	o.wantState(one.Id, claimed)
	o.wantState(two.Id, blocked)
	o.wantState(three.Id, blocked)
	o.wantState(other.Id, pending)
	w.Check()
	b.release()
	want(t, "the head moves too", o.move("role:old", "role:new", one.Id).Moved, 1)
	w.Check()
	for _, subject := range []string{"0", "1", "2", "3"} {
		wantList(t, "next of the key", subjectsOf([]*pb.ClaimedMessage{a.claim1()}), subject)
		a.ack()
	}
}

func TestMove_TheHeadOfAKeyFreesTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a", "new")
	o := w.operator()
	one, two := o.send(toRole("old", key("k"))), o.send(toRole("old", key("k")))
	o.move("role:old", "role:new", one.Id)
	o.wantState(one.Id, pending)
	o.wantState(two.Id, pending)
}

func TestMove_DelayedMessageBecomesDueInTheNewMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", ""), w.operator()
	m := o.send(toRole("nobody", subject("later"), due(w.now(time.Minute))))
	o.move("role:nobody", "a")
	o.wantState(m.Id, delayed)
	want(t, "claims before it is due", len(a.claim(1)), 0)
	w.Clock.Advance(time.Minute)
	w.awaitState(m.Id, pending)
	wantList(t, "claimed", subjectsOf(a.claim(1)), "later")
}

func TestMove_FailedAttemptsStayWithTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, o := w.agent("a", ""), w.agent("b", ""), w.operator()
	m := o.send(to("a"))
	a.nack(&pb.Nack{ClaimId: a.claim1().ClaimId, Error: "no compiler"})
	o.move("a", "b")
	d := o.delivery(m.Id)
	want(t, "attempts", d.Attempts, 1)
	want(t, "history", len(d.History), 1)
	want(t, "error", d.History[0].Error, "no compiler")
	w.awaitDue(m.Id)
	want(t, "attempt", b.claim1().Attempt, 2)
}

// awaitDue lets the delay after a failure pass.
func (w *world) awaitDue(id string) {
	w.Helper()
	w.Clock.Advance(2 * time.Second)
	w.awaitState(id, pending)
}

func TestMove_ArrivesUnreadForReadersOfTheNewMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, o := w.agent("a", ""), w.agent("b", ""), w.operator()
	m := o.send(to("a", subject("hello"), resendAfter(time.Minute)))
	a.list(&pb.ListMessagesRequest{MarkRead: true})
	stream, err := b.Receive(b.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	apptest.NoError(t, drop(stream.Recv()))
	out := o.move("a", "b")
	page, err := stream.Recv()
	apptest.NoError(t, err)
	wantList(t, "received", subjectsIn(page.Items), "hello")
	want(t, "arrival", page.Items[0].Delivery.Arrival, out.Revision)
	if page.Items[0].Delivery.ReadAt != nil {
		t.Error("it is marked as read by an agent that does not have it any more")
	}
	w.Clock.Advance(time.Minute)
	page, err = stream.Recv() // nobody has marked it as read
	apptest.NoError(t, err)
	wantList(t, "received again", subjectsIn(page.Items), "hello")
	o.move("b", "a", m.Id)
	items, _ := b.receive(&pb.ReceiveRequest{})
	want(t, "left for b", len(items), 0)
}

func TestMove_ConsumerThatWaitsGetsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "builder"), w.operator()
	m := o.send(toRole("bulider", subject("work")))
	got := make(chan []*pb.ClaimedMessage, 1)
	go func() {
		got <- a.claimWith(&pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(apptest.LongWait)}).Claims
	}()
	<-w.Waits
	o.move("role:bulider", "role:builder")
	wantList(t, "claimed", subjectsOf(<-got), "work")
	o.wantState(m.Id, claimed)
}

func TestMove_LeavesWhatTheRecipientMayHaveAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agents("builder", "b-1", "b-2")
	w.agent("c", "")
	o := w.operator()
	all := o.send(toPattern("b-*"))
	halt := o.send(to("b-1", kind("halt")))
	out := o.move("b-1", "b-2")
	want(t, "moved to an agent that has it", out.Moved, 0)
	want(t, "left", out.Left, 2)
	want(t, "moved to a role whose agents have it", o.move("b-1", "role:builder").Moved, 0)
	want(t, "moved to another agent", o.move("b-1", "c").Moved, 1)
	want(t, "the directive is still in", o.delivery(halt.Id).Mailbox, "b-1")
	want(t, "deliveries", len(o.get(all.Id).Deliveries), 2)
}

func TestMove_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("builder-1", "builder"), w.operator()
	m := o.send(toRole("bulider"))
	done := o.send(toRole("builder"))
	a.claim1()
	for _, c := range []struct {
		from, to, id string
		code         codes.Code
		text         string
	}{
		{"role:bulider", "role:bilder", "", codes.NotFound, "did you mean builder?"},
		{"role:bulider", "bilder-1", "", codes.NotFound, "did you mean builder-1"},
		{"role:bulider", "channel:news", "", codes.NotFound, "no agent subscribes"},
		{"role:painter", "builder-1", "", codes.NotFound, "no mailbox"},
		{"role:bulider", "builder-1", "999999", codes.NotFound, "999999"},
		{"role:builder", "builder-1", done.Id, codes.FailedPrecondition, "does not wait in role:builder"},
		{"role:bulider", "role:bulider", "", codes.InvalidArgument, "the same mailbox"},
		{"", "builder-1", "", codes.InvalidArgument, "from"},
	} {
		r := &pb.MoveMessagesRequest{From: c.from, To: c.to}
		if c.id != "" {
			r.Ids = []string{c.id}
		}
		_, err := o.MoveMessages(o.Ctx, r)
		if code := status.Code(err); code != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s to %s: %v, want %v and %q", c.from, c.to, err, c.code, c.text)
		}
	}
	_, err := a.MoveMessages(a.Ctx, &pb.MoveMessagesRequest{From: "role:bulider", To: "builder-1"})
	apptest.Refused(t, err, codes.PermissionDenied, "OPERATOR_ONLY")
	id := newUUID()
	for range 2 { // the second answers as the first
		out := apptest.Must(t, o.MoveMessages, &pb.MoveMessagesRequest{RequestId: id, From: "role:bulider",
			To: "role:builder", Ids: []string{m.Id}})
		want(t, "moved", out.Moved, 1)
	}
}
