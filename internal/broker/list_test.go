package broker_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// pages lists everything in pages of a size.
func (a *agent) pages(r *pb.ListMessagesRequest) []string {
	a.Helper()
	var subjects []string
	for n := 0; ; n++ {
		out := a.list(r)
		if len(out.Items) > int(r.PageSize) || out.Revision == 0 {
			a.Fatalf("%d items, revision %d", len(out.Items), out.Revision)
		}
		subjects = append(subjects, subjectsIn(out.Items)...)
		if r.PageToken = out.NextPageToken; r.PageToken == "" {
			return subjects
		}
		if n > 100 {
			a.Fatal("no end")
		}
	}
}

func TestList_BoxesAndTheirDefaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	lead.sendAll(to("a", subject("for a")), toRole("builder", subject("for a builder")))
	a.send(to("lead", subject("for lead")))
	w.operator().send(to("a", subject("from above")))
	boxes := func(who *agent, b pb.MessageBox) []string {
		return subjectsIn(who.list(&pb.ListMessagesRequest{Box: b}).Items)
	}
	wantList(t, "inbox", boxes(a, pb.MessageBox_MESSAGE_BOX_INBOX), "for a", "from above")
	wantList(t, "default of an agent", boxes(a, 0), "for a", "from above")
	wantList(t, "sent", boxes(a, pb.MessageBox_MESSAGE_BOX_SENT), "for lead")
	wantList(t, "all", boxes(a, pb.MessageBox_MESSAGE_BOX_ALL), "for a", "for a builder", "for lead", "from above")
	wantList(t, "default of an operator", boxes(w.operator(), 0), "for a", "for a builder", "for lead", "from above")
	wantList(t, "sent by operators", boxes(w.operator(), pb.MessageBox_MESSAGE_BOX_SENT), "from above")
	wantList(t, "inbox of operators", boxes(w.operator(), pb.MessageBox_MESSAGE_BOX_INBOX))

	inbox := a.list(&pb.ListMessagesRequest{}).Items
	want(t, "the inbox has the delivery", inbox[0].Delivery.GetState(), pending)
	for _, i := range a.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL}).Items {
		if i.Delivery != nil {
			t.Errorf("%v has a delivery", i)
		}
	}
}

func TestList_PagesBothWays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	var forward []string
	for i := range 25 {
		a.send(to("a", subject(strconv.Itoa(i)), kind("t"+strconv.Itoa(i%2))))
		forward = append(forward, strconv.Itoa(i))
	}
	backward := slices.Clone(forward)
	slices.Reverse(backward)
	for _, box := range []pb.MessageBox{pb.MessageBox_MESSAGE_BOX_INBOX, pb.MessageBox_MESSAGE_BOX_SENT, pb.MessageBox_MESSAGE_BOX_ALL} {
		for _, size := range []int32{1, 7, 25, 1000} {
			wantList(t, "forward", a.pages(&pb.ListMessagesRequest{Box: box, PageSize: size}), forward...)
			wantList(t, "backward", a.pages(&pb.ListMessagesRequest{Box: box, PageSize: size, NewestFirst: true}), backward...)
		}
		odd := a.pages(&pb.ListMessagesRequest{Box: box, PageSize: 5, NewestFirst: true, Filter: &pb.MessageFilter{Types: []string{"t1"}}})
		want(t, "filtered", len(odd), 12)
		want(t, "newest", odd[0], "23")
	}
	want(t, "default size", len(a.list(&pb.ListMessagesRequest{}).Items), 25)
}

func TestList_PageStaysSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 30 {
		a.send(to("a", subject(strconv.Itoa(i)), func(m *pb.Message) { m.Body = strings.Repeat("x", 250_000) }))
	}
	for _, box := range []pb.MessageBox{pb.MessageBox_MESSAGE_BOX_INBOX, pb.MessageBox_MESSAGE_BOX_ALL} {
		for _, newest := range []bool{false, true} {
			got := a.pages(&pb.ListMessagesRequest{Box: box, PageSize: 1000, NewestFirst: newest})
			want(t, "items", len(got), 30)
		}
	}
}

func TestList_ByTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 4 {
		a.send(to("a", subject(strconv.Itoa(i))))
		w.Clock.Advance(time.Minute)
	}
	for _, box := range []pb.MessageBox{pb.MessageBox_MESSAGE_BOX_INBOX, pb.MessageBox_MESSAGE_BOX_ALL} {
		r := &pb.ListMessagesRequest{Box: box, FromTime: w.now(-3 * time.Minute), ToTime: w.now(-time.Minute)}
		wantList(t, "at or after, and before", subjectsIn(a.list(r).Items), "1", "2")
	}
}

func TestList_ThreadHasItsFirstMessageToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", ""), w.agent("b", "")
	question := a.send(to("b", subject("question")))
	answer := func(s, of string) *pb.SendResult {
		return b.send(to("a", subject(s), func(m *pb.Message) { m.InReplyTo = of }))
	}
	one := answer("answer", question.Id)
	a.send(to("b", subject("other")))
	answer("more", one.Id)
	a.send(to("b", subject("named"), func(m *pb.Message) { m.ThreadId = "own name" }))
	r := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{ThreadId: question.Id}, PageSize: 2}
	wantList(t, "thread", a.pages(r), "question", "answer", "more")
	r.NewestFirst = true
	wantList(t, "newest first", a.pages(r), "more", "answer", "question")
	r.Filter.ThreadId = "own name"
	wantList(t, "by name", a.pages(r), "named")
}

func TestList_MarkReadMarksWhatIsListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	sent := lead.sendAll(to("a"), to("a"), to("a"), toRole("builder"), to("a", due(w.now(time.Hour))))
	counts := func() (unread, claimable int64) {
		out := apptest.Must(t, a.Heartbeat, &pb.HeartbeatRequest{})
		return out.Unread, out.Claimable
	}
	unread, claimable := counts()
	want(t, "unread", unread, 3)
	want(t, "claimable", claimable, 4)
	w.Clock.Advance(time.Second)
	a.list(&pb.ListMessagesRequest{PageSize: 2})
	unread, _ = counts()
	want(t, "listing alone marks nothing", unread, 3)
	items := a.list(&pb.ListMessagesRequest{PageSize: 2, MarkRead: true}).Items
	want(t, "read_at in the answer", items[1].Delivery.ReadAt.AsTime(), w.Clock.Now())
	unread, claimable = counts()
	want(t, "unread", unread, 1)
	want(t, "claimable", claimable, 4)
	d := lead.delivery(sent[0].Id)
	want(t, "read_at", d.ReadAt.AsTime(), w.Clock.Now())
	want(t, "delivered_at", d.DeliveredAt.AsTime(), w.Clock.Now())
	if lead.delivery(sent[2].Id).ReadAt != nil {
		t.Error("what was not listed is read")
	}
	w.Clock.Advance(time.Second)
	a.list(&pb.ListMessagesRequest{MarkRead: true})
	want(t, "the first time stays", lead.delivery(sent[0].Id).ReadAt.AsTime(), w.Clock.Now().Add(-time.Second))
	a.ack(sent[0].Id)
	unread, claimable = counts()
	want(t, "unread", unread, 0)
	want(t, "claimable", claimable, 3)
}

func TestGet_TakesIDRevisionAndClaimID(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	for _, id := range []string{s.id, strconv.FormatInt(c.Message.Revision, 10), c.ClaimId, strings.ToUpper(s.id)} {
		want(t, id, s.lead.get(id).Message.Id, s.id)
	}
	for _, id := range []string{"4711000", newUUID()} {
		_, err := s.lead.GetMessage(s.lead.Ctx, &pb.GetMessageRequest{Id: id})
		apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
	}
}

func TestGet_TellsOfEachRecipient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	b := w.agents("builder", "b1", "b2", "b3", "b4", "b5", "b6")
	sent := lead.send(toRole("builder", all))
	b[0].claim1()
	b[1].ack(b[1].claim1().ClaimId)
	b[2].kill()
	b[3].list(&pb.ListMessagesRequest{MarkRead: true})
	b[4].receive(&pb.ReceiveRequest{})
	var got []string
	for _, d := range lead.get(sent.Id).Deliveries {
		got = append(got, d.Mailbox+" "+strings.TrimPrefix(d.State.String(), "DELIVERY_STATE_")+
			" delivered "+strconv.FormatBool(d.DeliveredAt != nil)+" read "+strconv.FormatBool(d.ReadAt != nil)+" by "+d.AckedBy+" of "+d.Holder)
	}
	wantList(t, "deliveries", got,
		"b1 CLAIMED delivered true read false by  of b1", "b2 ACKED delivered true read true by b2 of b2",
		"b3 DEAD delivered true read false by  of b3", "b4 PENDING delivered true read true by  of ",
		"b5 PENDING delivered true read false by  of ", "b6 PENDING delivered false read false by  of ")
}

func TestList_FindsTheFewMessagesOfASmallSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, other := w.operator(), w.in("other", "")
	apptest.Must(t, o.CreateSession,
		&pb.CreateSessionRequest{Name: "other", Settings: &pb.SessionSettings{SendRate: new(0.0)}})
	w.in("other", "a").Register("")
	w.agent("a", "")
	send := func(subjects ...string) {
		for _, s := range subjects {
			other.send(to("a", subject(s)))
		}
	}
	crowd := func() {
		for range 12 {
			batch := make([]*pb.Message, 600)
			for i := range batch {
				batch[i] = to("a")
			}
			o.sendAll(batch...)
		}
	}
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64)})
	send("1", "2")
	crowd()
	send("3")
	crowd()
	subjects := func(newest bool) (all []string) {
		r := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: newest}
		for {
			page := other.list(r)
			if len(page.Items) == 0 && page.NextPageToken != "" {
				t.Fatal("an empty page before the last")
			}
			all = append(all, subjectsIn(page.Items)...)
			if page.NextPageToken == "" {
				return all
			}
			r.PageToken = page.NextPageToken
		}
	}
	wantList(t, "oldest first", subjects(false), "1", "2", "3")
	wantList(t, "newest first", subjects(true), "3", "2", "1")
}
