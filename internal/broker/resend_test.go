package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// resend has a message arrive anew.
func (a *agent) resend(id string, mailboxes ...string) int32 {
	a.Helper()
	return apptest.Must(a, a.ResendMessage, &pb.ResendMessageRequest{Id: id, Mailboxes: mailboxes}).Resent
}

func TestResend_UnnoticedDeliveryArrivesAnewFiveTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	reader, err := builder.Receive(builder.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	apptest.NoError(t, drop(reader.Recv()))
	m := lead.send(to("builder", subject("hello"), resendAfter(time.Minute)))
	last := int64(0)
	next := func() {
		t.Helper()
		page, err := reader.Recv()
		apptest.NoError(t, err)
		wantList(t, "Receive", subjectsIn(page.Items), "hello")
		if at := page.Items[0].Delivery.Arrival; at <= last {
			t.Fatalf("arrived at %d after %d", at, last)
		}
		last = page.Items[0].Delivery.Arrival
	}
	next()
	want(t, "arrival", last, m.Revision)
	for i := range 5 {
		if i == 2 {
			w.Restart() // the reader's stream ends with it
			reader, err = builder.Receive(builder.Ctx, &pb.ReceiveRequest{Follow: true, AfterRevision: last})
			apptest.NoError(t, err)
			apptest.NoError(t, drop(reader.Recv()))
		}
		w.Clock.Advance(time.Minute)
		next()
		e := w.awaitEvents("message.resent", i+1)[i]
		want(t, "its revision is the arrival", e.Revision, last)
		wantList(t, "related", e.Related, itoa(m.Revision))
	}
	w.sentinel(time.Hour)
	w.awaitEvents("message.resent", 5)
	builder.wantState(m.Id, pending)
}

func TestResend_NoticedDeliveryStaysWhereItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	again := resendAfter(time.Minute)
	builder.list(&pb.ListMessagesRequest{}) // its mailbox exists
	read := lead.send(to("builder", again, priority(1)))
	builder.list(&pb.ListMessagesRequest{MarkRead: true})
	lead.send(to("builder", again))
	builder.claim1()
	lead.send(to("builder", again))
	builder.claimWith(&pb.ClaimMessagesRequest{Max: 2, Consumer: "x"})
	builder.release(builder.claimWith(&pb.ClaimMessagesRequest{Consumer: "x"}).Claims[0].ClaimId) // claimed once is noticed
	lead.cancel(lead.send(to("builder", again)).Id)
	builder.ack(lead.send(to("builder", again)).Id)
	lead.send(toRole("builder", again)) // waits in a queue, which nobody reads
	lead.send(to("builder", again, ttl(30*time.Second)))
	w.sentinel(time.Hour)
	want(t, "resent", len(w.Root().Events("message.resent")), 0)
	want(t, "arrival", builder.get(read.Id).Deliveries[0].Arrival, read.Revision)
}

func TestResend_CountsFromWhenItIsVisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	m := lead.send(to("builder", resendAfter(time.Minute), due(w.now(time.Hour))))
	w.sentinel(time.Hour)
	want(t, "too early", len(w.Root().Events("message.resent")), 0)
	arrival := builder.delivery(m.Id).Arrival
	w.Clock.Advance(time.Minute)
	e := w.awaitEvents("message.resent", 1)[0]
	if e.Revision <= arrival {
		t.Fatalf("arrived at %d after %d", e.Revision, arrival)
	}
	lead.send(to("builder", key("k"), subject("first"), due(w.now(time.Hour))))
	hidden := lead.send(to("builder", key("k"), subject("second"), resendAfter(time.Minute)))
	w.sentinel(10 * time.Minute)
	want(t, "a blocked one is visible, and arrives anew", len(w.Root().Events("message.resent")) > 2, true)
	builder.wantState(hidden.Id, blocked)
}

func TestResendMessage_BringsItBackToWhoHasNotFinishedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	names := []string{"done", "claimed", "read", "unread", "late"}
	agents := w.agents("builder", names...)
	m := lead.send(toEveryone(subject("plan")))
	done, holder, reader := agents[0], agents[1], agents[2]
	done.ack(m.Id)
	holder.claim1()
	page := reader.list(&pb.ListMessagesRequest{MarkRead: true})
	want(t, "read", len(page.Items), 1)
	want(t, "resent", lead.resend(m.Id), 3)
	e := w.awaitEvents("message.resent", 1)[0]
	want(t, "source", e.Source, "lead")
	for i, d := range lead.get(m.Id).Deliveries {
		switch name := names[i]; name {
		case "done", "claimed":
			want(t, name, d.Arrival, m.Revision)
		default:
			want(t, name, d.Arrival, e.Revision)
			if d.ReadAt != nil {
				t.Fatalf("%s has read it", name)
			}
		}
	}
	wantList(t, "in front of its reader again", subjectsIn(reader.receiveAfter(page.Revision)), "plan")
	want(t, "one of them", lead.resend(m.Id, "late"), 1)
	want(t, "one that is finished", lead.resend(m.Id, "done"), 0)
	want(t, "by an operator", w.operator().resend(m.Id, "late", "unread"), 2)
	_, err := lead.ResendMessage(lead.Ctx, &pb.ResendMessageRequest{Id: m.Id, Mailboxes: []string{"late", "lead"}})
	apptest.Refused(t, err, codes.NotFound, "MAILBOX_NOT_FOUND")
	_, err = reader.ResendMessage(reader.Ctx, &pb.ResendMessageRequest{Id: m.Id})
	apptest.Refused(t, err, codes.PermissionDenied, "NOT_THE_SENDER")
	_, err = lead.ResendMessage(lead.Ctx, &pb.ResendMessageRequest{Id: m.Id, Mailboxes: []string{"a b"}})
	apptest.Invalid(t, err, "mailboxes[0]")
	apptest.Invalid(t, apptest.Err(lead.ResendMessage(lead.Ctx, &pb.ResendMessageRequest{})), "id")
	id := newUUID()
	for range 2 {
		out := apptest.Must(t, lead.ResendMessage, &pb.ResendMessageRequest{RequestId: id, Id: m.Id})
		want(t, "once", out.Resent, 3)
	}
	w.awaitEvents("message.resent", 4)
	want(t, "in a queue", lead.resend(lead.send(toRole("builder")).Id), 0)
	want(t, "not yet visible", lead.resend(lead.send(to("late", due(w.now(time.Hour)))).Id), 0)
}

// receiveAfter reads what arrived after a revision.
func (a *agent) receiveAfter(revision int64) []*pb.InboxItem {
	a.Helper()
	items, _ := a.receive(&pb.ReceiveRequest{AfterRevision: revision})
	return items
}
