package broker_test

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// purge removes dead letters for good.
func (a *agent) purge(ids ...string) int32 {
	a.Helper()
	return apptest.Must(a, a.PurgeDeadLetters, &pb.PurgeDeadLettersRequest{Ids: ids}).Purged
}

func TestDeadLetters_ListsNewestFirstInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	a := w.agent("a", "")
	for i := range 10 {
		a.send(to("a", subject(strconv.Itoa(i))))
		a.kill()
	}
	var got []string
	r := &pb.ListDeadLettersRequest{PageSize: 4}
	for {
		out := apptest.Must(t, a.ListDeadLetters, r)
		got = append(got, subjectsIn(out.Items)...)
		if r.PageToken = out.NextPageToken; r.PageToken == "" {
			break
		}
	}
	wantList(t, "dead letters", got, "9", "8", "7", "6", "5", "4", "3", "2", "1", "0")
	d := a.deadLetters()[0].Delivery
	want(t, "state", d.State, dead)
	want(t, "error", d.History[0].Error, "hopeless")
}

func TestDeadLetters_PagesAcrossTheDeliveriesOfOneMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	crowd := w.agents("builder", "b1", "b2", "b3", "b4", "b5")
	lead.send(toRole("builder", all))
	for _, b := range crowd {
		b.kill()
	}
	o := w.operator()
	var boxes []string
	r := &pb.ListDeadLettersRequest{PageSize: 2}
	for {
		out := apptest.Must(t, o.ListDeadLetters, r)
		for _, i := range out.Items {
			boxes = append(boxes, i.Delivery.Mailbox)
		}
		if r.PageToken = out.NextPageToken; r.PageToken == "" {
			break
		}
	}
	wantList(t, "mailboxes", boxes, "b1", "b2", "b3", "b4", "b5")
}

func TestDeadLetters_AnAgentSeesItsOwnMailboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", "lead"), w.agent("a", "builder"), w.agent("b", "tester")
	a.subscribe("news")
	b.subscribe("news")
	w.agent("c", "builder")
	kill := func(who *agent, m *pb.Message) string { id := lead.send(m).Id; who.kill(); return id }
	kill(a, to("a", subject("a")))
	kill(a, toRole("builder", subject("builder")))
	kill(a, toChannel("news", one, subject("news")))
	other := kill(b, to("b", subject("b")))
	wantList(t, "a", subjectsIn(a.deadLetters()), "news", "builder", "a")
	wantList(t, "b", subjectsIn(b.deadLetters()), "b", "news")
	wantList(t, "another of the role", subjectsIn(w.in("default", "c").deadLetters()), "builder")
	wantList(t, "lead", subjectsIn(lead.deadLetters()))
	wantList(t, "operator", subjectsIn(w.operator().deadLetters()), "b", "news", "builder", "a")

	box := func(who *agent, name string) ([]string, error) {
		out, err := who.ListDeadLetters(who.Ctx, &pb.ListDeadLettersRequest{Mailbox: name})
		return subjectsIn(out.GetItems()), err
	}
	for _, name := range []string{"a", "role:builder", "channel:news"} {
		got, err := box(a, name)
		apptest.NoError(t, err)
		want(t, name, len(got), 1)
	}
	_, err := box(a, "b")
	apptest.Refused(t, err, codes.NotFound, "MAILBOX_NOT_FOUND")
	_, err = box(w.operator(), "role:nothing")
	apptest.Refused(t, err, codes.NotFound, "MAILBOX_NOT_FOUND")
	_, err = a.RedriveDeadLetters(a.Ctx, &pb.RedriveDeadLettersRequest{Ids: []string{other}})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_DEAD")
	_, err = a.RedriveDeadLetters(a.Ctx, &pb.RedriveDeadLettersRequest{Mailbox: "b"})
	apptest.Refused(t, err, codes.NotFound, "MAILBOX_NOT_FOUND")
}

func TestRedrive_AttemptsStartAgainAndHistoryStays(t *testing.T) {
	t.Parallel()
	s := staged(t, attempts(2))
	s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId, Error: "first", Delay: durationpb.New(0)})
	s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId, Error: "second"})
	arrived := s.lead.delivery(s.id).Arrival
	want(t, "redriven", s.worker.redrive(s.id), 1)
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, pending)
	want(t, "attempts", d.Attempts, 0)
	want(t, "history", len(d.History), 2)
	if d.Arrival <= arrived || d.FinishedAt != nil {
		t.Errorf("arrival %d after %d, finished %v", d.Arrival, arrived, d.FinishedAt)
	}
	want(t, "dead letters", len(s.worker.deadLetters()), 0)
	c := s.worker.claim1()
	want(t, "message", c.Message.Id, s.id)
	want(t, "attempt", c.Attempt, 1)
	s.worker.nack(&pb.Nack{ClaimId: c.ClaimId, Error: "third", Delay: durationpb.New(0)})
	s.worker.ack(s.worker.claim1().ClaimId)
	want(t, "history", len(s.lead.delivery(s.id).History), 3)
}

func TestRedrive_IsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	dead1 := a.send(to("a")).Id
	a.kill()
	alive := a.send(to("a")).Id
	for _, other := range []string{alive, "4711000"} {
		_, err := a.RedriveDeadLetters(a.Ctx, &pb.RedriveDeadLettersRequest{Ids: []string{dead1, other}})
		if err == nil {
			t.Fatal("redriven")
		}
		a.wantState(dead1, dead)
	}
	_, err := a.RedriveDeadLetters(a.Ctx, &pb.RedriveDeadLettersRequest{Ids: []string{alive}})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_DEAD")
}

func TestRedrive_AWholeMailboxAtMostAThousandAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	a := w.agent("a", "")
	batch := make([]*pb.Message, 1000)
	for i := range batch {
		batch[i] = to("a", attempts(1))
	}
	a.sendAll(batch...)
	a.sendAll(batch[:1]...)
	for left := 1001; left > 0; {
		claims := a.claim(1000)
		nacks := make([]*pb.Nack, len(claims))
		for i, c := range claims {
			nacks[i] = &pb.Nack{ClaimId: c.ClaimId}
		}
		apptest.Must(t, a.NackMessages, &pb.NackMessagesRequest{Nacks: nacks})
		left -= len(claims)
	}
	for _, n := range []int32{1000, 1, 0} {
		out := apptest.Must(t, a.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{Mailbox: "a"})
		want(t, "redriven", out.Redriven, n)
	}
}

func TestRedrive_OfAFanOutOnlyWhatIsDeadAndTheCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	b := w.agents("builder", "b1", "b2", "b3")
	id := lead.send(toRole("builder", all)).Id
	b[0].kill()
	b[1].kill()
	want(t, "its own", b[0].redrive(id), 1)
	o := w.operator()
	out := apptest.Must(t, o.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{Ids: []string{id}, Mailbox: "b2"})
	want(t, "that of a mailbox", out.Redriven, 1)
	var states []pb.DeliveryState
	for _, d := range lead.get(id).Deliveries {
		states = append(states, d.State)
	}
	wantList(t, "states", states, pending, pending, pending)
}

func TestRedrive_AfterTheTimeToLiveHasNoneLeft(t *testing.T) {
	t.Parallel()
	s := staged(t, ttl(time.Minute))
	s.worker.kill()
	s.Clock.Advance(time.Hour)
	s.worker.redrive(s.id)
	s.lead.send(to("worker", ttl(time.Second)))
	s.Clock.Advance(time.Second)
	s.await("the other has expired", func() bool { return len(s.Root().Events("message.expired")) == 1 })
	s.lead.wantState(s.id, pending)
}

func TestPurge_CancelsAndIsForOperators(t *testing.T) {
	t.Parallel()
	s := staged(t)
	s.worker.kill()
	_, err := s.worker.PurgeDeadLetters(s.worker.Ctx, &pb.PurgeDeadLettersRequest{Ids: []string{s.id}})
	apptest.Refused(t, err, codes.PermissionDenied, "OPERATOR_ONLY")
	o := s.operator()
	want(t, "purged", o.purge(s.id), 1)
	d := o.delivery(s.id)
	want(t, "state", d.State, cancelled)
	want(t, "history stays", len(d.History), 1)
	want(t, "dead letters", len(o.deadLetters()), 0)
	_, err = o.PurgeDeadLetters(o.Ctx, &pb.PurgeDeadLettersRequest{Ids: []string{s.id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_DEAD")
	_, err = s.worker.AckMessages(s.worker.Ctx, &pb.AckMessagesRequest{Ids: []string{s.id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
}

func TestDeadLetters_RequestIDDoesNothingTwice(t *testing.T) {
	t.Parallel()
	s := staged(t)
	s.worker.kill()
	r := &pb.RedriveDeadLettersRequest{RequestId: newUUID(), Ids: []string{s.id}}
	one, err := s.worker.RedriveDeadLetters(s.worker.Ctx, r)
	apptest.NoError(t, err)
	s.worker.kill()
	two, err := s.worker.RedriveDeadLetters(s.worker.Ctx, r)
	apptest.NoError(t, err)
	want(t, "revision", two.Revision, one.Revision)
	want(t, "redriven", two.Redriven, 1)
	s.lead.wantState(s.id, dead)
	o := s.operator()
	p := &pb.PurgeDeadLettersRequest{RequestId: newUUID(), Ids: []string{s.id}}
	apptest.Must(t, o.PurgeDeadLetters, p)
	apptest.Must(t, o.PurgeDeadLetters, p)
	c := &pb.CancelMessageRequest{RequestId: newUUID(), Id: s.id}
	apptest.NoError(t, drop(s.lead.CancelMessage(s.lead.Ctx, c)))
	c.Reason = "another body"
	_, err = s.lead.CancelMessage(s.lead.Ctx, c)
	apptest.Refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestRedrive_NamedMessagesHaveALimitOfDeadLettersTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.crowd("builder", 1001)
	first, second := lead.send(toRole("builder", all)), lead.send(toRole("builder", all))
	w.sql(`UPDATE deliveries SET state = 6`)
	o := w.operator()
	_, err := o.PurgeDeadLetters(o.Ctx, &pb.PurgeDeadLettersRequest{Ids: []string{first.Id, second.Id}})
	apptest.Invalid(t, err, "ids")
	w.sql(`UPDATE deliveries SET state = 1`)
}
