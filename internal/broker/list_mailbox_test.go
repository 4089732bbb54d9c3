package broker_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestListMessages_OperatorsListAMailboxByItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	lead.subscribe("news")
	lead.sendAll(to("a", subject("first")), to("a", subject("second")), to("a", subject("third")),
		to("lead", subject("other")))
	lead.sendAll(toRole("builder", subject("part 1")), toRole("builder", subject("part 2")),
		toRole("none", subject("lost")))
	a.claimWith(&pb.ClaimMessagesRequest{Mailboxes: []string{"a"}})
	o := w.operator()
	for mailbox, subjects := range map[string][]string{
		"a": {"first", "second", "third"}, "role:builder": {"part 1", "part 2"}, "role:none": {"lost"}, "channel:news": nil,
		"stranger": nil,
	} {
		wantList(t, mailbox, o.pages(&pb.ListMessagesRequest{Mailbox: mailbox, PageSize: 2}), subjects...)
	}
	items := o.list(&pb.ListMessagesRequest{Mailbox: "a", NewestFirst: true}).Items
	wantList(t, "newest first", subjectsIn(items), "third", "second", "first")
	want(t, "the state of the claimed message", items[2].Delivery.GetState(), pb.DeliveryState_DELIVERY_STATE_CLAIMED)
	wantList(t, "an agent's inbox", a.pages(&pb.ListMessagesRequest{PageSize: 2}), "first", "second", "third")
}

func TestListMessages_AgentsDoNotListAMailboxByItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", ""), w.operator()
	apptest.Refuses(t, a.ListMessages, &pb.ListMessagesRequest{Mailbox: "b"}, codes.PermissionDenied, "NOT_FOR_AGENTS")
	for _, r := range []*pb.ListMessagesRequest{
		{Mailbox: "a", Box: pb.MessageBox_MESSAGE_BOX_ALL}, {Mailbox: "a", MarkRead: true}, {Mailbox: "a", Order: byPriority},
		{Mailbox: "role:a", IncludeQueues: true}, {Mailbox: "a", Ids: []string{"1"}}, {Mailbox: "no/name:"},
	} {
		apptest.Invalid(t, apptest.Err(o.ListMessages(o.Ctx, r)), "mailbox")
	}
}
