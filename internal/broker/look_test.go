package broker_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const (
	byArrival  = pb.MessageOrder_MESSAGE_ORDER_ARRIVAL
	byPriority = pb.MessageOrder_MESSAGE_ORDER_PRIORITY
)

// whole lists and reads the same without a limit, and checks that both show the same.
func (a *agent) whole(order pb.MessageOrder, queues bool, filter *pb.MessageFilter) []string {
	a.Helper()
	listed := a.pages(&pb.ListMessagesRequest{Order: order, IncludeQueues: queues, Filter: filter, PageSize: 2})
	read, revision := a.receive(&pb.ReceiveRequest{Order: order, IncludeQueues: queues, Filter: filter})
	wantList(a, "read as listed", subjectsIn(read), listed...)
	if order == byPriority || queues {
		want(a, "revision", revision, 0)
	}
	return listed
}

func TestLook_ByPriorityShowsTheOrderOfClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	for i, p := range []int32{3, 7, 5, 7, 10, 1} {
		a.send(to("a", subject(strconv.Itoa(i)+"/"+strconv.Itoa(int(p))), priority(p)))
	}
	wanted := []string{"4/10", "1/7", "3/7", "2/5", "0/3", "5/1"}
	wantList(t, "by priority", a.whole(byPriority, false, nil), wanted...)
	wantList(t, "by arrival", a.whole(byArrival, false, nil), "0/3", "1/7", "2/5", "3/7", "4/10", "5/1")
	wantList(t, "filtered", a.whole(byPriority, false, &pb.MessageFilter{LowestPriority: 5}), wanted[:4]...)
	items, _ := a.receive(&pb.ReceiveRequest{Order: byPriority, Limit: 3})
	wantList(t, "at most three", subjectsIn(items), wanted[:3]...)
	// Waiting raises the priority: ten minutes are worth two levels, and a tie goes to the older
	// one.
	w.Clock.Advance(10 * time.Minute)
	a.send(to("a", subject("late/5"), priority(5)))
	wanted = slices.Insert(wanted, 5, "late/5")
	wantList(t, "aged", a.whole(byPriority, false, nil), wanted...)
	wantList(t, "claims", subjectsOf(a.claim(10)), wanted...)
	wantList(t, "claimed mail is unfinished", a.whole(byPriority, false, nil), wanted...)
}

func TestLook_ShowsTheQueuesOfTheRoleAndTheChannelsAndTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", "builder"), w.agent("b", "builder")
	a.subscribe("news")
	b.subscribe("other")
	sent := lead.sendAll(
		toRole("builder", subject("role")), to("a", subject("own"), priority(7)), toChannel("news", one, subject("channel"), priority(9)),
		toRole("critic", subject("another role")), toChannel("other", one, subject("another channel")), to("b", subject("another agent")),
		toRole("builder", subject("first of k"), key("k")), toRole("builder", subject("second of k"), key("k")),
		toRole("builder", subject("not yet"), due(w.now(time.Hour))), toRole("builder", subject("failed once")), toRole("builder", subject("taken")),
	)
	got := b.claim(6)
	wantList(t, "claims of b", subjectsOf(got), "role", "another channel", "another agent", "first of k", "failed once", "taken")
	b.nack(&pb.Nack{ClaimId: got[4].ClaimId, Delay: durationpb.New(time.Minute)})
	b.release(got[0].ClaimId, got[3].ClaimId)

	wantList(t, "own alone", a.whole(byArrival, false, nil), "own")
	byTime := []string{"role", "own", "channel", "first of k", "second of k", "failed once"}
	wantList(t, "by arrival", a.whole(byArrival, true, nil), byTime...)
	wantList(t, "by priority", a.whole(byPriority, true, nil), "channel", "own", "role", "first of k", "second of k", "failed once")
	wantList(t, "filtered", a.whole(byPriority, true, &pb.MessageFilter{Channels: []string{"news"}}), "channel")
	slices.Reverse(byTime)
	wantList(t, "newest first", a.pages(&pb.ListMessagesRequest{IncludeQueues: true, NewestFirst: true, PageSize: 2}), byTime...)

	states := map[string]string{}
	for _, i := range a.list(&pb.ListMessagesRequest{IncludeQueues: true, MarkRead: true}).Items {
		d := i.Delivery
		if d.Arrival <= 0 {
			t.Errorf("no arrival: %v", d)
		}
		states[i.Message.Subject] = strings.TrimPrefix(d.State.String(), "DELIVERY_STATE_") + " in " + d.Mailbox +
			", read " + strconv.FormatBool(d.ReadAt != nil)
	}
	for subject, wanted := range map[string]string{
		"role": "PENDING in role:builder, read false", "own": "PENDING in a, read true", "channel": "PENDING in channel:news, read false",
		"second of k": "BLOCKED in role:builder, read false", "failed once": "DELAYED in role:builder, read false",
	} {
		want(t, subject, states[subject], wanted)
	}
	// The own message counts as delivered and read. The messages in the queues stay as they were.
	want(t, "own delivered", lead.delivery(sent[1].Id).DeliveredAt != nil, true)
	channel := lead.delivery(sent[2].Id)
	want(t, "channel", channel.State, pending)
	want(t, "channel delivered or read", channel.DeliveredAt != nil || channel.ReadAt != nil, false)
	want(t, "next claim", a.claim1().Message.Subject, "channel")
}

func TestLook_WaitsForAMessageInAQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	type answer struct {
		items []*pb.InboxItem
		err   error
	}
	read := func() <-chan answer {
		got := make(chan answer, 1)
		stream, err := a.Receive(a.Ctx, &pb.ReceiveRequest{IncludeQueues: true, Order: byPriority, Wait: durationpb.New(apptest.LongWait)})
		apptest.NoError(t, err)
		go func() {
			page, err := stream.Recv()
			got <- answer{page.GetItems(), err}
		}()
		<-w.Waits
		return got
	}
	got := read()
	lead.send(toRole("builder", subject("for one of them")))
	out := <-got
	apptest.NoError(t, out.err)
	wantList(t, "came", subjectsIn(out.items), "for one of them")
	a.claim1()
	got = read()
	w.Clock.Advance(apptest.LongWait)
	if out := <-got; len(out.items) != 0 {
		t.Errorf("%v", out)
	}
}

func TestLook_RefusesWhatDoesNotGoTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	id := a.send(to("a")).Id
	for field, r := range map[string]*pb.ListMessagesRequest{
		"newest_first":   {Order: byPriority, NewestFirst: true},
		"order":          {Order: byPriority, Box: pb.MessageBox_MESSAGE_BOX_ALL},
		"include_queues": {IncludeQueues: true, Box: pb.MessageBox_MESSAGE_BOX_SENT},
		"ids":            {Ids: []string{id}, Filter: &pb.MessageFilter{}},
		"ids[0]":         {Ids: []string{nonsense}},
	} {
		_, err := a.ListMessages(a.Ctx, r)
		apptest.Invalid(t, err, field)
	}
	_, err := a.ListMessages(a.Ctx, &pb.ListMessagesRequest{Order: 7})
	apptest.Invalid(t, err, "order")
	for field, r := range map[string]*pb.ReceiveRequest{
		"order": {Order: 7}, "follow": {Order: byPriority, Follow: true}, "cursor": {IncludeQueues: true, Cursor: "c"},
		"after_revision": {Order: byPriority, AfterRevision: 1}, "auto_ack": {IncludeQueues: true, AutoAck: true},
	} {
		stream, err := a.Receive(a.Ctx, r)
		apptest.NoError(t, err)
		apptest.Invalid(t, drop(stream.Recv()), field)
	}
	o := w.operator()
	wantList(t, "of operators", subjectsIn(o.list(&pb.ListMessagesRequest{Order: byPriority, IncludeQueues: true}).Items))
	_, err = o.ListMessages(o.Ctx, &pb.ListMessagesRequest{Ids: []string{id}}) // of another mailbox
	apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
}

func TestLook_NeedsARegisteredAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.deregister()
	stream, err := a.Receive(a.Ctx, &pb.ReceiveRequest{IncludeQueues: true})
	apptest.NoError(t, err)
	apptest.Refused(t, drop(stream.Recv()), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestList_MarksGivenMessagesAsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	sent := lead.sendAll(to("a", subject("one")), to("a", subject("two")), to("a", subject("three")), toRole("builder"), to("lead"))
	a.ack(sent[2].Id)
	out := a.list(&pb.ListMessagesRequest{Ids: []string{rev(sent[1]), sent[2].Id}, MarkRead: true})
	wantList(t, "given", subjectsIn(out.Items), "two", "three")
	want(t, "state", out.Items[1].Delivery.State, acked)
	read := func(n int) bool { return lead.delivery(sent[n].Id).ReadAt != nil }
	wantList(t, "read", []bool{read(0), read(1), read(2)}, false, true, true)
	for _, id := range []string{sent[3].Id, sent[4].Id, newUUID()} {
		_, err := a.ListMessages(a.Ctx, &pb.ListMessagesRequest{Ids: []string{sent[0].Id, id}, MarkRead: true})
		apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
	}
	want(t, "after refusals", read(0), false)
	wantList(t, "in pages", a.pages(&pb.ListMessagesRequest{Ids: []string{sent[2].Id, sent[0].Id, sent[1].Id}, PageSize: 1}), "three", "one", "two")
	want(t, "listing alone marks nothing", read(0), false)
}
