package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// offer offers what is unread to a session of the agent's coding agent, by a hook after a tool call.
func (a *agent) offer(harness, mark string) *pb.OfferMessagesResponse {
	a.Helper()
	return a.offerWith(&pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_TOOL_CALL, Harness: harness, Mark: mark})
}

func (a *agent) offerWith(r *pb.OfferMessagesRequest) *pb.OfferMessagesResponse {
	a.Helper()
	return apptest.Must(a, a.OfferMessages, r)
}

// settle settles offers and returns how many.
func (a *agent) settleOffers(r *pb.SettleOffersRequest) int32 {
	a.Helper()
	return apptest.Must(a, a.SettleOffers, r).Settled
}

func accepted(harness string, marks ...string) *pb.SettleOffersRequest {
	return &pb.SettleOffersRequest{Harness: harness, Marks: marks, Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true}}
}

func returned(harness, why string) *pb.SettleOffersRequest {
	return &pb.SettleOffersRequest{Harness: harness, Outcome: &pb.SettleOffersRequest_Returned{Returned: why}}
}

func TestOffer_IsReadOnlyWhenItIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	first, second := lead.send(to("builder", subject("first"))), lead.send(to("builder", subject("second")))
	out := builder.offer("s1", "mark-0001")
	wantList(t, "offered", subjectsIn(out.Items), "first", "second")
	want(t, "more", out.More, 0)
	d := builder.delivery(first.Id)
	want(t, "read", d.ReadAt == nil, true)
	want(t, "delivered", d.DeliveredAt != nil, true)
	want(t, "offers", len(d.Offers), 1)
	o := d.Offers[0]
	want(t, "number", o.Number, 1)
	want(t, "way", o.Way, pb.OfferWay_OFFER_WAY_TOOL_CALL)
	want(t, "harness", o.Harness, "s1")
	want(t, "mark", o.Mark, "mark-0001")
	want(t, "offered at", o.OfferedAt.AsTime(), w.Clock.Now())
	want(t, "open", o.AcceptedAt == nil && o.ReturnedAt == nil, true)
	wantList(t, "open offers of the inbox", harnesses(builder.list(&pb.ListMessagesRequest{}).Items), "s1", "s1")

	wantList(t, "offered to another session", subjectsIn(builder.offer("s2", "mark-0002").Items))
	wantList(t, "offered again with its mark", subjectsIn(builder.offer("s1", "mark-0001").Items), "first", "second")
	want(t, "offers", len(builder.delivery(first.Id).Offers), 1)

	w.Clock.Advance(time.Second)
	want(t, "accepted by another session", builder.settleOffers(accepted("s2")), 0)
	want(t, "accepted by another session with its mark", builder.settleOffers(accepted("s2", "mark-0001")), 0)
	want(t, "accepted", builder.settleOffers(accepted("s1")), 2)
	for _, m := range []*pb.SendResult{first, second} {
		d := builder.delivery(m.Id)
		want(t, "read at", d.ReadAt.AsTime(), w.Clock.Now())
		want(t, "accepted at", d.Offers[0].AcceptedAt.AsTime(), w.Clock.Now())
	}
	want(t, "accepted again", builder.settleOffers(accepted("s1")), 0)
	want(t, "accepted again by its mark", builder.settleOffers(accepted("", "mark-0001")), 0)
	wantList(t, "open offers of the inbox", harnesses(builder.list(&pb.ListMessagesRequest{}).Items), "", "")
	_, err := builder.OfferMessages(builder.Ctx,
		&pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_TOOL_CALL, Harness: "s1", Mark: "mark-0001"})
	apptest.Refused(t, err, codes.FailedPrecondition, "MARK_USED")

	e := w.Root().Events("message.accepted")
	want(t, "events", len(e), 1)
	want(t, "summary", e[0].Summary, "2 messages accepted by builder (tool_call)")
	want(t, "details", e[0].Details, fmt.Sprintf(`{"agent":"builder","way":"tool_call","harness":"s1","messages":[%d,%d]}`,
		first.Revision, second.Revision))
	want(t, "events", len(w.Root().Events("message.offered")), 1)
}

// harnesses returns the session of the coding agent to which each item is offered now.
func harnesses(items []*pb.InboxItem) (all []string) {
	for _, i := range items {
		to := ""
		for _, o := range i.Delivery.Offers {
			to += o.Harness
		}
		all = append(all, to)
	}
	return all
}

func TestOffer_WithoutEvidenceIsReturnedAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
			m := lead.send(to("builder", subject("hello")))
			builder.offer("s1", "mark-0001")
			if restart {
				w.Restart()
			}
			w.Clock.Advance(time.Minute)
			e := w.awaitEvents("message.returned", 1)[0]
			want(t, "source", e.Source, "system")
			want(t, "summary", e.Summary,
				"1 message not accepted by builder (tool_call): no evidence within 1m that the text stands in the conversation")
			d := builder.delivery(m.Id)
			want(t, "read", d.ReadAt == nil, true)
			explained := apptest.Must(t, w.operator().Explain, &pb.ExplainRequest{
				Subject: &pb.ExplainRequest_Message{Message: m.Id}})
			reasons := strings.Join(explained.Findings[0].Reasons, "\n")
			if !strings.Contains(reasons, "it was offered to session s1 of builder (tool_call) at 03:04:05 UTC (1m ago), without success: no evidence") {
				t.Errorf("explained: %s", reasons)
			}
			want(t, "returned", d.Offers[0].ReturnedAt.AsTime(), w.Clock.Now())
			wantList(t, "offered to the next session", subjectsIn(builder.offer("s2", "mark-0002").Items), "hello")
			want(t, "offers", len(builder.delivery(m.Id).Offers), 2)

			// Evidence comes late.
			want(t, "accepted late", builder.settleOffers(accepted("", "mark-0001")), 1)
			d = builder.delivery(m.Id)
			want(t, "read", d.ReadAt != nil, true)
			want(t, "the first offer", d.Offers[0].AcceptedAt != nil && d.Offers[0].ReturnedAt == nil && d.Offers[0].Why == "", true)
			want(t, "the other one is accepted too, as the message was read", builder.settleOffers(returned("s2", "Esc")), 1)
			want(t, "the second offer", builder.delivery(m.Id).Offers[1].AcceptedAt != nil, true)
		})
	}
}

func TestOffer_EvidenceOfItsSessionMayComeLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	late, dismissed := lead.send(to("builder")), lead.send(to("builder"))
	offer := func(mark string) {
		builder.offerWith(&pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_TURN_END, Harness: "s", Mark: mark, Limit: 1})
	}
	offer("mark-0001")
	offer("mark-0002")
	byMark := returned("s", "Esc")
	byMark.Marks = []string{"mark-0002"}
	want(t, "dismissed", builder.settleOffers(byMark), 1)
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.returned", 2)
	unsettled := builder.offer("s", "mark-0003").Unsettled // by another way
	want(t, "unsettled", len(unsettled), 1)
	want(t, "its mark", unsettled[0].Mark, "mark-0001")
	want(t, "its way", unsettled[0].Way, pb.OfferWay_OFFER_WAY_TURN_END)
	byWay := accepted("s")
	byWay.Ways = []pb.OfferWay{pb.OfferWay_OFFER_WAY_TURN_END}
	want(t, "accepted", builder.settleOffers(byWay), 1)
	want(t, "the late one is read", builder.delivery(late.Id).ReadAt != nil, true)
	want(t, "the dismissed one is not", builder.delivery(dismissed.Id).ReadAt == nil, true)
}

func TestOffer_IsReturnedWhenItsSessionOrTheAgentEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*agent){
		"the session has ended": func(a *agent) {
			want(a, "returned", a.settleOffers(returned("s1", "the session has ended")), 1)
		},
		"the agent has stopped": func(a *agent) {
			apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_STOPPED})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
			m := lead.send(to("builder"))
			builder.offer("s1", "mark-0001")
			end(builder)
			o := builder.delivery(m.Id).Offers[0]
			want(t, "why", o.Why, name)
			want(t, "returned", o.ReturnedAt != nil, true)
			want(t, "offered again", len(builder.offer("s1", "mark-0002").Items), 1)
		})
	}
}

func TestOffer_AnAckAcceptsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	m := lead.send(to("builder"))
	builder.offer("s1", "mark-0001")
	builder.ack(m.Id)
	at := w.Clock.Now()
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.accepted", 1)
	want(t, "accepted at", builder.delivery(m.Id).Offers[0].AcceptedAt.AsTime(), at)
	want(t, "returned", len(w.Root().Events("message.returned")), 0)
}

func TestOffer_HasDirectivesFirstAndIsLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, builder := w.operator(), w.agent("builder", "")
	for i := range 4 {
		o.send(to("builder", subject(fmt.Sprint("m", i)), body(strings.Repeat("x", 1000))))
	}
	o.send(to("builder", kind("nudge"), subject("directive")))
	offer := func(mark string, limit, bytes int32) *pb.OfferMessagesResponse {
		return builder.offerWith(&pb.OfferMessagesRequest{
			Way: pb.OfferWay_OFFER_WAY_TURN_END, Harness: "s", Mark: mark, Limit: limit, MaxBytes: bytes})
	}
	out := offer("mark-0001", 2, 0)
	wantList(t, "two", subjectsIn(out.Items), "directive", "m0")
	want(t, "more", out.More, 3)
	out = offer("mark-0002", 10, 100)
	wantList(t, "one that is larger than the limit", subjectsIn(out.Items), "m1")
	want(t, "more", out.More, 2)
	want(t, "only those of another way", builder.settleOffers(&pb.SettleOffersRequest{Harness: "s",
		Ways:    []pb.OfferWay{pb.OfferWay_OFFER_WAY_TOOL_CALL},
		Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true}}), 0)
	want(t, "accepted", builder.settleOffers(accepted("", "mark-0001", "mark-0002")), 3)
	wantList(t, "the rest", subjectsIn(offer("mark-0003", 0, 0).Items), "m2", "m3")
	want(t, "unread", builder.delivery(builder.list(&pb.ListMessagesRequest{}).Items[2].Message.Id).ReadAt == nil, true)
}

func TestOffer_IncludesNoticesWhichAcceptingFinishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"boss"}}})
	lead, boss := w.agent("lead", "lead"), w.agent("boss", "boss")
	w.agent("builder", "")
	w.overdue(lead)
	notice := boss.notice()
	want(t, "offered", len(boss.offer("s", "mark-0001").Items), 1)
	want(t, "state", boss.state(notice), unread)
	want(t, "accepted", boss.settleOffers(accepted("s")), 1)
	boss.wantState(notice, acked)
}

func TestOffer_AClaimOffersNoticesInsteadOfReadingThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"boss"}}})
	lead, boss := w.agent("lead", "lead"), w.agent("boss", "boss")
	w.agent("builder", "")
	claim := func(harness, mark string) *pb.ClaimMessagesResponse {
		t.Helper()
		return apptest.Must(t, boss.ClaimMessages, &pb.ClaimMessagesRequest{
			Notices: true, Wait: durationpb.New(apptest.LongWait),
			Offer: &pb.NoticeOffer{Way: pb.OfferWay_OFFER_WAY_MCP, Harness: harness, Mark: mark},
		})
	}
	w.overdue(lead)
	notice := boss.notice()
	want(t, "notices", len(claim("s", "mark-0001").Notices), 1)
	want(t, "state", boss.state(notice), unread)
	want(t, "offer", boss.delivery(notice).Offers[0].Mark, "mark-0001")
	want(t, "notices of a call that is repeated", len(claim("s", "mark-0001").Notices), 1)
	want(t, "offers", len(boss.delivery(notice).Offers), 1)
	// One that is offered already neither comes again nor ends a wait.
	waiting := make(chan *pb.ClaimMessagesResponse, 1)
	go func() { waiting <- claim("other", "mark-0002") }()
	lead.send(to("boss"))
	out := <-waiting
	want(t, "claims of another session", len(out.Claims), 1)
	want(t, "its notices", len(out.Notices), 0)
	apptest.Must(t, boss.AckMessages, &pb.AckMessagesRequest{Ids: []string{out.Claims[0].ClaimId}})
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.returned", 1)
	want(t, "after it was returned", len(claim("s", "mark-0003").Notices), 1)
	want(t, "accepted, the one that was returned too", boss.settleOffers(accepted("s")), 2)
	boss.wantState(notice, acked)
	for field, o := range map[string]*pb.NoticeOffer{
		"offer.way":     {Harness: "s", Mark: "mark-0004"},
		"offer.harness": {Way: pb.OfferWay_OFFER_WAY_MCP, Mark: "mark-0004"},
		"offer.mark":    {Way: pb.OfferWay_OFFER_WAY_MCP, Harness: "s"},
	} {
		_, err := boss.ClaimMessages(boss.Ctx, &pb.ClaimMessagesRequest{Notices: true, Offer: o})
		apptest.Invalid(t, err, field)
	}
}

func TestOffer_KeepsTheLast20OfADelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	m := lead.send(to("builder"))
	for i := range 25 {
		builder.offer("s", fmt.Sprintf("mark-%04d", i))
		builder.settleOffers(returned("s", "Esc"))
	}
	o := builder.delivery(m.Id).Offers
	want(t, "kept", len(o), 20)
	want(t, "the first", o[0].Number, 6)
	want(t, "the last", o[19].Number, 25)
}

func TestOffer_MovesWithItsMessageAndGoesWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, other := w.agent("lead", "lead"), w.agent("builder", ""), w.agent("other", "")
	m := lead.send(to("builder"))
	builder.offer("s", "mark-0001")
	apptest.Must(t, w.operator().MoveMessages, &pb.MoveMessagesRequest{From: "builder", To: "other"})
	o := other.delivery(m.Id).Offers[0]
	want(t, "why", o.Why, "the message was moved")
	want(t, "returned", o.ReturnedAt != nil, true)
	other.offer("s", "mark-0002")
	want(t, "offers", len(other.delivery(m.Id).Offers), 2)
	other.settleOffers(accepted("s"))
	other.ack(m.Id)
	w.Clock.Advance(2 * time.Second)
	apptest.Must(t, w.operator().PruneData, &pb.PruneDataRequest{OlderThan: durationpb.New(time.Second)})
	w.awaitNone(`SELECT COUNT(*) FROM offers`)
}

func TestOffer_RefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, o := w.agent("builder", ""), w.operator()
	good := pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_MCP, Harness: "s", Mark: "mark-0001"}
	apptest.Refuses(t, o.OfferMessages, &good, codes.FailedPrecondition, "AGENT_REQUIRED")
	apptest.Refuses(t, o.SettleOffers, accepted("s"), codes.FailedPrecondition, "AGENT_REQUIRED")
	for field, r := range map[string]*pb.OfferMessagesRequest{
		"way":       {Harness: "s", Mark: "mark-0001"},
		"harness":   {Way: good.Way, Mark: "mark-0001"},
		"mark":      {Way: good.Way, Harness: "s", Mark: "mark_0001"},
		"limit":     {Way: good.Way, Harness: "s", Mark: "mark-0001", Limit: 101},
		"max_bytes": {Way: good.Way, Harness: "s", Mark: "mark-0001", MaxBytes: -1},
	} {
		apptest.Invalid(t, apptest.Err(builder.OfferMessages(builder.Ctx, r)), field)
	}
	for field, r := range map[string]*pb.SettleOffersRequest{
		"harness":  accepted(""),
		"marks[0]": accepted("s", "short"),
		"accepted": {Harness: "s"},
		"returned": returned("s", ""),
		"ways[0]": {Harness: "s", Ways: []pb.OfferWay{99},
			Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true}},
	} {
		apptest.Invalid(t, apptest.Err(builder.SettleOffers(builder.Ctx, r)), field)
	}
}

// What an agent wants to hear of unasked: see Attention.
func TestOffer_HoldsBackWhatTheAgentDoesNotWant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	question := builder.send(to("lead", subject("which port?"), func(m *pb.Message) { m.RequiresResponse = true }))
	lead.send(to("builder", subject("news")))
	_, err := lead.replyWith(&pb.ReplyRequest{Id: question.Id, Message: &pb.Message{Subject: "8080"}})
	apptest.NoError(t, err)
	lead.send(to("builder", subject("stop that"), func(m *pb.Message) { m.Type = "nudge" }))
	attend := func(mode pb.Attention) {
		t.Helper()
		apptest.Must(t, pb.NewAgentServiceClient(w.Conn("builder")).Heartbeat, &pb.HeartbeatRequest{Attention: mode})
	}

	attend(pb.Attention_ATTENTION_OFF)
	out := builder.offer("s", "mark-0001")
	wantList(t, "off", subjectsIn(out.Items))
	want(t, "more", out.More, 3)
	want(t, "attention", out.Attention, pb.Attention_ATTENTION_OFF)

	attend(pb.Attention_ATTENTION_DIRECTIVES)
	out = builder.offer("s", "mark-0002")
	wantList(t, "directives", subjectsIn(out.Items), "stop that", "8080")
	want(t, "more", out.More, 1)

	attend(pb.Attention_ATTENTION_OFF)
	out = builder.offerWith(&pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_MCP, Harness: "s", Mark: "mark-0003"})
	wantList(t, "asked for", subjectsIn(out.Items), "news")

	lead.send(to("builder", subject("more news")))
	attend(pb.Attention_ATTENTION_OPEN)
	wantList(t, "open", subjectsIn(builder.offer("s", "mark-0004").Items), "more news")
}

// Mail that an agent reads and never finishes does not keep new mail from it.
func TestOffer_LooksBehindMailThatWasReadAndIsNotFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{SendRate: new(float64)})
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "")
	for range 11 {
		var batch []*pb.Message
		for range 100 {
			batch = append(batch, to("builder", subject("old")))
		}
		lead.sendAll(batch...)
	}
	for i := range 11 {
		mark := fmt.Sprintf("mark-%04d", i)
		out := builder.offerWith(&pb.OfferMessagesRequest{Way: pb.OfferWay_OFFER_WAY_TOOL_CALL, Harness: "s", Mark: mark, Limit: 100})
		want(t, "old ones", len(out.Items), 100)
		want(t, "accepted", builder.settleOffers(accepted("s", mark)), 100)
	}
	lead.send(to("builder", subject("new")))
	wantList(t, "behind 1,100 that were read", subjectsIn(builder.offer("s", "mark-last").Items), "new")
}
