package broker_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A reader is an open Receive stream.
type reader struct {
	t      apptest.TB
	stream pb.MessageService_ReceiveClient
	end    context.CancelFunc
	at     int64 // the revision of the last page
}

func (a *agent) reader(r *pb.ReceiveRequest) *reader {
	a.Helper()
	ctx, end := context.WithCancel(a.Ctx)
	a.Cleanup(end)
	stream, err := a.Receive(ctx, r)
	apptest.NoError(a, err)
	return &reader{t: a, stream: stream, end: end}
}

// take waits for n messages. Pages must not go back.
func (r *reader) take(n int) []*pb.InboxItem {
	r.t.Helper()
	var items []*pb.InboxItem
	for len(items) < n {
		items = append(items, r.page().Items...)
	}
	want(r.t, "items", len(items), n)
	return items
}

func (r *reader) page() *pb.ReceiveResponse {
	r.t.Helper()
	page, err := r.stream.Recv()
	apptest.NoError(r.t, err)
	if page.Revision < r.at {
		r.t.Fatalf("revision %d after %d", page.Revision, r.at)
	}
	r.at = page.Revision
	return page
}

func TestReceive_ShowsByArrivalAndTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	late := lead.send(to("a", subject("delayed"), due(w.now(time.Minute))))
	lead.sendAll(to("a", subject("low"), priority(1)), to("a", subject("high"), priority(10)), toChannel("news", subject("copy")),
		toRole("builder", subject("queue")), toChannel("news", one, subject("queue")))
	first, at := a.receive(&pb.ReceiveRequest{})
	wantList(t, "first", subjectsIn(first), "low", "high", "copy")
	w.Clock.Advance(time.Minute)
	w.awaitState(late.Id, pending)
	items, _ := a.receive(&pb.ReceiveRequest{})
	wantList(t, "all", subjectsIn(items), "low", "high", "copy", "delayed")
	rest, _ := a.receive(&pb.ReceiveRequest{AfterRevision: at})
	wantList(t, "after the first", subjectsIn(rest), "delayed")
	for _, i := range items {
		want(t, "state", i.Delivery.State, pending)
		want(t, "mailbox", i.Delivery.Mailbox, "a")
	}
	want(t, "claims", len(a.claim(10)), 6)
}

func TestReceive_MarksDeliveredNotRead(t *testing.T) {
	t.Parallel()
	s := staged(t)
	s.Clock.Advance(time.Second)
	s.worker.receive(&pb.ReceiveRequest{})
	d := s.lead.delivery(s.id)
	want(t, "delivered_at", d.DeliveredAt.AsTime(), s.Clock.Now())
	if d.ReadAt != nil {
		t.Error("it is marked as read")
	}
	s.Clock.Advance(time.Second)
	s.worker.receive(&pb.ReceiveRequest{})
	s.worker.claim1()
	want(t, "the first time stays", s.lead.delivery(s.id).DeliveredAt.AsTime(), s.Clock.Now().Add(-time.Second))
}

func TestReceive_ShowsClaimedAndRetriedAndNotWhatIsFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a", subject("done")), to("a", subject("dead")), to("a", subject("held")), to("a", subject("retried")),
		to("a", subject("cancelled")), to("a", subject("expired"), ttl(time.Second)))
	c := a.claim(4)
	a.ack(c[0].ClaimId)
	a.nack(&pb.Nack{ClaimId: c[1].ClaimId, Fatal: true})
	a.nack(&pb.Nack{ClaimId: c[3].ClaimId, Delay: durationpb.New(time.Hour)})
	rest, _ := a.receive(&pb.ReceiveRequest{AfterRevision: c[3].Message.Revision})
	a.cancel(rest[0].Message.Id)
	w.Clock.Advance(time.Second)
	w.awaitState(rest[1].Message.Id, expired)
	items, at := a.receive(&pb.ReceiveRequest{})
	wantList(t, "items", subjectsIn(items), "held", "retried")
	want(t, "held", items[0].Delivery.State, claimed)
	want(t, "retried", items[1].Delivery.State, delayed)
	a.redrive(c[1].Message.Id)
	items, _ = a.receive(&pb.ReceiveRequest{AfterRevision: at})
	wantList(t, "redriven arrives again", subjectsIn(items), "dead")
}

func TestReceive_FollowGoesOnWithWhatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	r := a.reader(&pb.ReceiveRequest{Follow: true})
	want(t, "a first page comes at once", len(r.page().Items), 0)
	lead.send(to("a", subject("1")))
	wantList(t, "own", subjectsIn(r.take(1)), "1")
	lead.send(toRole("builder"))
	lead.send(toChannel("news", subject("2")))
	wantList(t, "copy", subjectsIn(r.take(1)), "2")
	lead.send(to("a", subject("3"), due(w.now(time.Minute))))
	w.Clock.Advance(time.Minute)
	wantList(t, "delayed", subjectsIn(r.take(1)), "3")
	a.kill()
	a.redrive(a.deadLetters()[0].Message.Id)
	want(t, "redriven", len(r.take(1)), 1)
}

func TestReceive_FollowAlsoShowsWhatAConsumerTakesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	r := a.reader(&pb.ReceiveRequest{Follow: true})
	c := a.taker(&pb.ClaimOpen{})
	lead.send(to("a", subject("1")))
	wantList(t, "taken", subjectsOf(c.take(1)), "1")
	wantList(t, "shown", subjectsIn(r.take(1)), "1")
}

func TestReceive_BlockedIsShownWhenItIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	r := a.reader(&pb.ReceiveRequest{Follow: true})
	lead.send(to("a", key("k"), subject("1")))
	wantList(t, "head", subjectsIn(r.take(1)), "1")
	lead.send(to("a", key("k"), subject("2")))
	wantList(t, "blocked", subjectsIn(r.take(1)), "2")
}

func TestReceive_WaitEndsWithTheFirstMessageOrItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	r := a.reader(&pb.ReceiveRequest{Wait: durationpb.New(apptest.LongWait)})
	w.begun()
	lead.send(to("a", subject("1")))
	wantList(t, "items", subjectsIn(r.take(1)), "1")
	_, err := r.stream.Recv()
	want(t, "end", err, io.EOF)

	r = a.reader(&pb.ReceiveRequest{Wait: durationpb.New(apptest.LongWait), AfterRevision: r.at})
	w.begun()
	w.Clock.Advance(apptest.LongWait)
	if _, err := r.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestReceive_EndsAtItsLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 5 {
		a.send(to("a", subject(strconv.Itoa(i))))
	}
	items, at := a.receive(&pb.ReceiveRequest{Limit: 2})
	wantList(t, "first", subjectsIn(items), "0", "1")
	items, at = a.receive(&pb.ReceiveRequest{Limit: 2, AfterRevision: at, Follow: true})
	wantList(t, "second", subjectsIn(items), "2", "3")
	items, _ = a.receive(&pb.ReceiveRequest{Limit: 2, AfterRevision: at})
	wantList(t, "rest", subjectsIn(items), "4")
}

func TestReceive_Filters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", ""), w.agent("b", "")
	a.subscribe("news")
	with := func(s string, c change) *pb.Message { return to("a", subject(s), c) }
	thread := lead.send(with("thread", func(*pb.Message) {})).Id
	lead.sendAll(with("type", kind("t")), with("correlation", func(m *pb.Message) { m.CorrelationId = "c" }),
		with("task", func(m *pb.Message) { m.TaskId = "k" }), with("high", priority(8)),
		with("label", func(m *pb.Message) { m.Channel = "news" }), toChannel("news", subject("news")),
		with("reply", func(m *pb.Message) { m.InReplyTo = thread }))
	b.send(to("a", subject("from b")))
	for _, c := range []struct {
		f    *pb.MessageFilter
		want []string
	}{
		{&pb.MessageFilter{Types: []string{"t", "u"}}, []string{"type"}},
		{&pb.MessageFilter{Channels: []string{"news"}}, []string{"label", "news"}},
		{&pb.MessageFilter{Senders: []string{"b"}}, []string{"from b"}},
		{&pb.MessageFilter{CorrelationId: "c"}, []string{"correlation"}},
		{&pb.MessageFilter{TaskId: "k"}, []string{"task"}},
		{&pb.MessageFilter{ThreadId: thread}, []string{"thread", "reply"}},
		{&pb.MessageFilter{LowestPriority: 6}, []string{"high"}},
		{&pb.MessageFilter{LowestPriority: 6, Senders: []string{"b"}}, nil},
	} {
		items, at := a.receive(&pb.ReceiveRequest{Filter: c.f})
		wantList(t, c.f.String(), subjectsIn(items), c.want...)
		if len(items) > 0 && at == 0 {
			t.Error("no revision")
		}
		wantList(t, "list "+c.f.String(), subjectsIn(a.list(&pb.ListMessagesRequest{Filter: c.f}).Items), c.want...)
		every := a.list(&pb.ListMessagesRequest{Filter: c.f, Box: pb.MessageBox_MESSAGE_BOX_ALL}).Items
		wantList(t, "all "+c.f.String(), subjectsIn(every), c.want...)
	}
	r := a.reader(&pb.ReceiveRequest{Follow: true, Filter: &pb.MessageFilter{Types: []string{"t"}}})
	r.take(1)
	before := r.at
	lead.send(with("noise", priority(1)))
	if page := r.page(); len(page.Items) != 0 || page.Revision <= before {
		t.Errorf("progress is not told: %v after %d", page, before)
	}
}

// What is read until the daemon stops, and what comes then, is all there is, each once.
func TestReceive_ResumesOverARestartWithoutLossOrDouble(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	var seen []string
	at := int64(0)
	for round := range 5 {
		n := strconv.Itoa(round)
		lead.sendAll(to("a", subject("now "+n)), to("a", subject("later "+n), due(w.now(time.Minute))))
		r := a.reader(&pb.ReceiveRequest{AfterRevision: at, Follow: true})
		seen = append(seen, subjectsIn(r.take(min(round, 1)+1))...)
		at = r.at
		r.end()
		w.Restart()
		w.Clock.Advance(time.Minute) // the one of this round is due
		w.await("it is due", func() bool { return len(w.Root().Events("message.ready")) > round })
	}
	items, _ := a.receive(&pb.ReceiveRequest{AfterRevision: at})
	seen = append(seen, subjectsIn(items)...)
	wantList(t, "seen", seen, "now 0", "later 0", "now 1", "later 1", "now 2", "later 2", "now 3", "later 3", "now 4", "later 4")
}

func TestReceive_CursorRemembersOverARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", subject("1")), to("a", subject("2")), to("a", subject("3"), due(w.now(time.Minute))))
	items, _ := a.receive(&pb.ReceiveRequest{Cursor: "c", Limit: 1})
	wantList(t, "first", subjectsIn(items), "1")
	w.Restart()
	items, _ = a.receive(&pb.ReceiveRequest{Cursor: "c"})
	wantList(t, "second", subjectsIn(items), "2")
	items, _ = a.receive(&pb.ReceiveRequest{Cursor: "c"})
	wantList(t, "nothing", subjectsIn(items))
	w.Clock.Advance(time.Minute)
	w.await("it is due", func() bool { return len(w.Root().Events("message.ready")) == 1 })
	items, _ = a.receive(&pb.ReceiveRequest{Cursor: "c"})
	wantList(t, "delayed", subjectsIn(items), "3")
	items, _ = a.receive(&pb.ReceiveRequest{Cursor: "other"})
	want(t, "another cursor", len(items), 3)
	items, _ = lead.receive(&pb.ReceiveRequest{Cursor: "c"})
	want(t, "another agent's", len(items), 0)
}

func TestReceive_FollowEndsWhenTheBrokerStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.agent("a", "").reader(&pb.ReceiveRequest{Follow: true})
	r.page()
	done := make(chan struct{})
	go func() { defer close(done); w.Restart() }()
	_, err := r.stream.Recv()
	want(t, "code", status.Code(err), codes.Unavailable)
	<-done
}

func TestReceive_NeedsARegisteredAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.in("default", "ghost").reader(&pb.ReceiveRequest{}).stream.Recv()
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}
