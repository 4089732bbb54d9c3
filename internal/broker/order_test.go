package broker_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// drain claims and finishes everything, one at a time, and returns the subjects in that order.
func (a *agent) drain() []string {
	a.Helper()
	var order []string
	for {
		got := a.claim(1)
		if len(got) == 0 {
			return order
		}
		order = append(order, got[0].Message.Subject)
		a.ack(got[0].ClaimId)
	}
}

func TestOrder_PriorityFirstThenRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.send(to("a", subject("5"), priority(5)))
	a.sendAll(to("a", subject("1"), priority(1)), to("a", subject("10"), priority(10)), to("a", subject("5 again")))
	a.send(to("a", subject("10 again"), priority(10)))
	wantList(t, "order", a.drain(), "10", "10 again", "5", "5 again", "1")
}

func TestOrder_WaitingIsWorthPriority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.send(to("a", subject("old 3"), priority(3)))
	w.Clock.Advance(10*time.Minute + time.Second) // a little more than two levels
	a.sendAll(to("a", subject("new 5"), priority(5)), to("a", subject("new 6"), priority(6)))
	wantList(t, "order", a.drain(), "new 6", "old 3", "new 5")
}

func TestOrder_StrictWithoutAgeing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(0)})
	a := w.agent("a", "")
	a.send(to("a", subject("old 3"), priority(3)))
	w.Clock.Advance(1000 * time.Hour)
	a.sendAll(to("a", subject("new 4"), priority(4)), to("a", subject("new 3"), priority(3)))
	wantList(t, "order", a.drain(), "new 4", "old 3", "new 3")
}

func TestOrder_ChangedAgeingRanksAllThatWaitsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	send := func() {
		sent := a.sendAll(to("a", subject("old"), priority(3)), to("a", subject("old delayed"), priority(3), due(w.now(time.Second))),
			to("a", subject("head"), priority(3), key("k")), to("a", subject("old blocked"), priority(3), key("k")),
			to("a", subject("held"), priority(3)))
		claims := a.claimWith(&pb.ClaimMessagesRequest{Max: 3}).Claims
		w.Clock.Advance(10*time.Minute + time.Second)
		w.awaitState(sent[1].Id, pending)
		a.send(to("a", subject("new"), priority(5)))
		a.ack(claims[1].ClaimId)
		a.release(claims[0].ClaimId, claims[2].ClaimId)
	}
	strict := &pb.SessionSettings{Ageing: durationpb.New(0)}
	send()
	w.Root().Configure(strict)
	wantList(t, "strict", a.drain(), "new", "old", "old delayed", "old blocked", "held")
	send()
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(time.Minute)})
	wantList(t, "ageing", a.drain(), "old", "old delayed", "old blocked", "held", "new")
}

func TestOrder_ChangedAgeingStarvesNoFilteredConsumer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a", kind("x"), subject("1")), to("a", kind("x"), subject("2")), to("a", kind("x"), subject("3"), priority(9)))
	c := a.taker(&pb.ClaimOpen{Types: []string{"x"}})
	got := c.take(1)
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(0)})
	c.ack(got...)
	got = c.take(1)
	wantList(t, "second", subjectsOf(got), "1")
	c.ack(got...)
	wantList(t, "third", subjectsOf(c.take(1)), "2")
}

func TestOrder_PutBackKeepsItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 4 {
		a.send(to("a", subject(strconv.Itoa(i))))
	}
	claims := a.claim(3)
	a.release(claims[1].ClaimId)
	a.nack(&pb.Nack{ClaimId: claims[0].ClaimId, Delay: durationpb.New(0)})
	a.ack(claims[2].ClaimId)
	a.send(to("a", subject("4")))
	wantList(t, "order", a.drain(), "0", "1", "3", "4")
}

func TestOrder_DelayedComesByItsTimeOfSending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	late := a.send(to("a", subject("first"), due(w.now(time.Minute)))).Id
	a.send(to("a", subject("second")))
	a.wantState(late, delayed)
	want(t, "arrival", a.delivery(late).Arrival, 0)
	w.Clock.Advance(time.Minute)
	w.awaitState(late, pending)
	wantList(t, "order", a.drain(), "first", "second")
}

func TestOrderingKey_OnlyItsHeadIsHandedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.sendAll(to("a", key("k"), subject("k1")), to("a", key("k"), subject("k2"), priority(10)), to("a", key("l"), subject("l1")), to("a", subject("free")))
	a.wantState(sent[1].Id, blocked)
	got := a.claim(10)
	wantList(t, "heads", subjectsOf(got), "k1", "l1", "free")
	a.ack(got[0].ClaimId)
	wantList(t, "next", subjectsOf(a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x", Max: 10}).Claims), "k2")
}

func TestOrderingKey_IsOfOneMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", ""), w.agent("b", "")
	a.sendAll(to("a", key("k")), to("b", key("k")))
	want(t, "a", len(a.claim(1)), 1)
	want(t, "b", len(b.claim(1)), 1)
}

// What happens to the head of an ordering key decides when the next one is handed out.
func TestOrderingKey_NextWaitsUntilTheHeadIsFinished(t *testing.T) {
	t.Parallel()
	hold := func(*world, *agent, *pb.SendResult) {}
	nack := func(n *pb.Nack) func(*world, *agent, *pb.SendResult) {
		return func(_ *world, a *agent, head *pb.SendResult) { n.ClaimId = head.Id; a.claim1(); a.nack(n) }
	}
	for name, c := range map[string]struct {
		head change
		do   func(*world, *agent, *pb.SendResult)
		next pb.DeliveryState
	}{
		"waiting":      {key("k"), hold, blocked},
		"claimed":      {key("k"), func(_ *world, a *agent, _ *pb.SendResult) { a.claim1() }, blocked},
		"delayed":      {farAhead, hold, blocked},
		"nacked":       {key("k"), nack(&pb.Nack{}), blocked},
		"nacked at 0":  {key("k"), nack(&pb.Nack{Delay: durationpb.New(0)}), blocked},
		"released":     {key("k"), func(_ *world, a *agent, _ *pb.SendResult) { a.release(a.claim1().ClaimId) }, blocked},
		"acked":        {key("k"), func(_ *world, a *agent, _ *pb.SendResult) { a.ack(a.claim1().ClaimId) }, pending},
		"acked unread": {key("k"), func(_ *world, a *agent, head *pb.SendResult) { a.ack(head.Id) }, pending},
		"cancelled":    {key("k"), func(_ *world, a *agent, head *pb.SendResult) { a.cancel(head.Id) }, pending},
		"dead":         {key("k"), nack(&pb.Nack{Fatal: true}), pending},
		"expired": {ttl(time.Minute), func(w *world, a *agent, head *pb.SendResult) {
			w.Clock.Advance(time.Minute)
			w.awaitState(head.Id, expired)
		}, pending},
		"delayed, gone": {farAhead, func(_ *world, a *agent, head *pb.SendResult) { a.cancel(head.Id) }, pending},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.agent("a", "")
			head := a.send(to("a", key("k"), c.head))
			next := a.send(to("a", key("k"), priority(10)))
			c.do(w, a, head)
			a.wantState(next.Id, c.next)
		})
	}
}

// farAhead is not due in any test: their clock begins in January 2026.
func farAhead(m *pb.Message) {
	m.NotBefore = timestamppb.New(time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC))
}

func TestOrderingKey_LateHeadsArePromotedToDelayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	head := a.send(to("a", key("k")))
	next := a.send(to("a", key("k"), due(w.now(time.Minute))))
	a.wantState(next.Id, blocked)
	a.ack(head.Id)
	d := a.delivery(next.Id)
	want(t, "state", d.State, delayed)
	want(t, "due", d.DueAt.AsTime(), w.Clock.Now().Add(time.Minute))
	w.Clock.Advance(time.Minute)
	if d := w.awaitState(next.Id, pending); d.Arrival <= next.Revision {
		t.Errorf("arrived at %d", d.Arrival)
	}
}

func TestOrderingKey_BlockedInTheMiddleMayGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.sendAll(to("a", key("k"), subject("1")), to("a", key("k"), subject("2")), to("a", key("k"), subject("3")))
	a.cancel(sent[1].Id)
	a.wantState(sent[2].Id, blocked)
	wantList(t, "order", a.drain(), "1", "3")
}

func TestOrderingKey_RedrivenWaitsForTheOneThatIsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.sendAll(to("a", key("k"), subject("1")), to("a", key("k"), subject("2")), to("a", key("k"), subject("3")))
	a.kill()
	second := a.claim1()
	a.redrive(sent[0].Id)
	a.wantState(sent[0].Id, blocked)
	a.ack(second.ClaimId)
	wantList(t, "order", a.drain(), "1", "3")
}

// Eight consumers take from one queue with a few keys; of each key no two are ever out at the same time, and they come in
// the order in which they were sent.
func TestOrderingKey_HoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	const keys, each, consumers = 5, 40, 8
	w := newWorld(t)
	lead := w.agent("lead", "")
	var batch []*pb.Message
	for i := range each {
		for k := range keys {
			batch = append(batch, toRole("builder", key(strconv.Itoa(k)), subject(strconv.Itoa(i))))
		}
	}
	lead.sendAll(batch...)
	var mu sync.Mutex // guards out and next
	out, next, done := map[string]bool{}, map[string]int{}, 0
	finished := make(chan struct{})
	var workers sync.WaitGroup
	defer workers.Wait()
	for i := range consumers {
		a := w.agent("b"+strconv.Itoa(i), "builder")
		stream := a.taker(&pb.ClaimOpen{MaxInFlight: 2})
		workers.Go(func() {
			for n := 0; ; n++ {
				r, err := stream.stream.Recv()
				if err != nil {
					return // the test has ended it
				}
				for _, c := range r.GetDeliver().GetClaims() {
					k := c.Message.OrderingKey
					again := n%5 == 0 && c.Attempt == 1
					mu.Lock()
					if out[k] || c.Message.Subject != strconv.Itoa(next[k]) {
						t.Errorf("key %s: %s is handed out, another is out: %v, next is %d", k, c.Message.Subject, out[k], next[k])
					}
					out[k] = true
					mu.Unlock()
					frame := &pb.ClaimRequest{Acks: []string{c.ClaimId}}
					mu.Lock()
					out[k] = false
					if again {
						frame = &pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: c.ClaimId, Delay: durationpb.New(0)}}}
					} else {
						next[k]++
						if done++; done == keys*each {
							close(finished)
						}
					}
					mu.Unlock()
					if err := stream.stream.Send(frame); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		defer stream.end()
	}
	select {
	case <-finished:
	case <-lead.Ctx.Done():
		t.Errorf("only %d came", done)
	}
	o := w.operator()
	w.await("all is acknowledged", func() bool {
		s := o.status()
		return s.Waiting+s.Claimed == 0
	})
}
