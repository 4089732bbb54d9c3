package broker_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAutoAck_FinishesWhatItShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	var ids []string
	for n := range 3 {
		ids = append(ids, lead.send(to("a", subject(strconv.Itoa(n)))).Id)
	}
	items, _ := a.receive(&pb.ReceiveRequest{AutoAck: true, Limit: 2})
	wantList(t, "shown", subjectsIn(items), "0", "1")
	for i, item := range items {
		want(t, "state", item.Delivery.State, acked)
		want(t, "by", item.Delivery.AckedBy, "a")
		d := lead.delivery(ids[i])
		want(t, "state", d.State, acked)
		if d.ReadAt == nil || d.DeliveredAt == nil || d.FinishedAt == nil {
			t.Errorf("marks: %v", d)
		}
	}
	lead.wantState(ids[2], pending) // beyond the limit
	items, _ = a.receive(&pb.ReceiveRequest{AutoAck: true})
	wantList(t, "the rest", subjectsIn(items), "2")
	want(t, "waiting", w.operator().status().Waiting, 0)
	want(t, "events", len(w.Root().Events("message.acked")), 2)
}

func TestAutoAck_TakesOnlyWhatItsFilterTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a", kind("x"), subject("1")), to("a", kind("y"), subject("2")), to("a", kind("x"), subject("3")))
	items, _ := a.receive(&pb.ReceiveRequest{AutoAck: true, Filter: &pb.MessageFilter{Types: []string{"x"}}})
	wantList(t, "shown", subjectsIn(items), "1", "3")
	wantList(t, "left", subjectsOf(a.claim(5)), "2")
}

func TestAutoAck_LeavesOutWhatNobodyCouldClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", subject("claimed"), priority(10)), to("a", subject("retried"), priority(9)), to("a", subject("ready")))
	c := a.claim(2)
	a.nack(&pb.Nack{ClaimId: c[1].ClaimId, Delay: durationpb.New(time.Hour)})
	lead.send(to("a", subject("later"), due(w.now(time.Minute))))
	r := a.reader(&pb.ReceiveRequest{AutoAck: true, Follow: true, Cursor: "c"})
	wantList(t, "shown", subjectsIn(r.take(1)), "ready")
	a.release(c[0].ClaimId)
	wantList(t, "released", subjectsIn(r.take(1)), "claimed")
	w.Clock.Advance(time.Minute)
	wantList(t, "due", subjectsIn(r.take(1)), "later")
	r.end()
	w.awaitStreams(0)
	w.Clock.Advance(time.Hour)
	w.await("it is back", func() bool { return len(w.Root().Events("message.ready")) == 2 })
	items, _ := a.receive(&pb.ReceiveRequest{AutoAck: true, Cursor: "c"})
	wantList(t, "the cursor waits for what was left out", subjectsIn(items), "retried")
}

func TestAutoAck_PromotesOrderingKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", key("k"), subject("k1")), to("a", subject("x")), to("a", key("k"), subject("k2")), to("a", key("k"), subject("k3")))
	items, _ := a.receive(&pb.ReceiveRequest{AutoAck: true})
	wantList(t, "shown", subjectsIn(items), "k1", "x", "k2", "k3")
}

func TestAutoAck_WaitsForAMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	r := a.reader(&pb.ReceiveRequest{AutoAck: true, Wait: durationpb.New(apptest.LongWait), Filter: &pb.MessageFilter{Types: []string{"x"}}})
	w.begun()
	lead.sendAll(to("a"), to("a", kind("x"), subject("1")))
	wantList(t, "shown", subjectsIn(r.take(1)), "1")
}

func TestAutoAck_WhileHaltedOnlyDirectives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	o.sendAll(to("a", kind("halt"), subject("stop")), to("a", subject("work")))
	r := a.reader(&pb.ReceiveRequest{AutoAck: true, Follow: true})
	wantList(t, "while halted", subjectsIn(r.take(1)), "stop")
	o.send(to("a", subject("more")))
	o.send(to("a", kind("resume"), subject("go")))
	wantList(t, "afterwards", subjectsIn(r.take(3)), "work", "more", "go")
}

// Readers that break off, others that go on, and claims beside them: nothing is shown twice.
func TestAutoAck_AtMostOnce(t *testing.T) {
	t.Parallel()
	const n = 400
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	var mu sync.Mutex
	shown := map[string]int{}
	note := func(id string) {
		mu.Lock()
		defer mu.Unlock()
		shown[id]++
	}
	var readers sync.WaitGroup
	for k := range 8 {
		r := a.reader(&pb.ReceiveRequest{AutoAck: true, Follow: true})
		readers.Go(func() {
			for got := 0; k%2 == 0 || got < 20; { // every second one breaks off
				page, err := r.stream.Recv()
				if err != nil {
					return
				}
				for _, item := range page.Items {
					note(item.Message.Id)
					got++
				}
			}
			r.end()
		})
		t.Cleanup(r.end)
	}
	sent := map[string]bool{}
	for k := range n / 10 {
		batch := make([]*pb.Message, 10)
		for i := range batch {
			batch[i] = to("a")
			if k%2 == 0 {
				batch[i].OrderingKey = "k" + strconv.Itoa(i)
			}
		}
		for _, r := range lead.sendAll(batch...) {
			sent[r.Id] = true
		}
		for _, c := range a.claim(3) {
			note(c.Message.Id)
			a.ack(c.ClaimId)
		}
	}
	o := w.operator()
	w.await("all is finished", func() bool {
		s := o.status()
		return s.Waiting == 0 && s.Claimed == 0
	})
	w.Restart() // ends the readers
	readers.Wait()
	for id, times := range shown {
		if times != 1 || !sent[id] {
			t.Errorf("message %s was shown %d times", id, times)
		}
	}
}
