package broker_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A waiting is a call of ClaimMessages that is under way.
type waiting struct {
	t   apptest.TB
	out chan *pb.ClaimMessagesResponse
	err chan error
}

// wait makes a call, and returns once it waits.
func (w *world) wait(a *agent, r *pb.ClaimMessagesRequest) *waiting {
	w.Helper()
	return w.waitIn(a.Ctx, a, r)
}

func (w *world) waitIn(ctx context.Context, a *agent, r *pb.ClaimMessagesRequest) *waiting {
	w.Helper()
	call := &waiting{w, make(chan *pb.ClaimMessagesResponse, 1), make(chan error, 1)}
	r.Wait = durationpb.New(apptest.LongWait)
	go func() {
		out, err := a.ClaimMessages(ctx, r)
		call.out <- out
		call.err <- err
	}()
	w.begun()
	return call
}

// begun returns once somebody waits.
func (w *world) begun() {
	w.Helper()
	select {
	case <-w.Waits:
	case <-time.After(apptest.Patience):
		w.Fatal("no call waits")
	}
}

func (c *waiting) answer() *pb.ClaimMessagesResponse {
	c.t.Helper()
	out := <-c.out
	apptest.NoError(c.t, <-c.err)
	return out
}

func TestClaim_SaysWhyThereIsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	empty := func() *pb.ClaimMessagesResponse { return a.claimWith(&pb.ClaimMessagesRequest{Consumer: newUUID()}) }
	want(t, "empty", empty().EmptyReason, pb.EmptyReason_EMPTY_REASON_EMPTY)
	lead.sendAll(to("a", due(w.now(time.Hour))), toRole("builder", due(w.now(time.Minute))))
	out := empty()
	want(t, "delayed", out.EmptyReason, pb.EmptyReason_EMPTY_REASON_DELAYED)
	want(t, "next", out.NextDue.AsTime(), w.Clock.Now().Add(time.Minute))
	lead.sendAll(to("a", key("k")), to("a", key("k")))
	want(t, "something", empty().EmptyReason, pb.EmptyReason_EMPTY_REASON_UNSPECIFIED)
	out = empty()
	want(t, "blocked", out.EmptyReason, pb.EmptyReason_EMPTY_REASON_BLOCKED_BY_ORDER)
	want(t, "next", out.NextDue.AsTime(), w.Clock.Now().Add(time.Minute))
	own := &pb.ClaimMessagesRequest{Consumer: "x", Mailboxes: []string{"role:builder"}}
	want(t, "of a mailbox", a.claimWith(own).EmptyReason, pb.EmptyReason_EMPTY_REASON_DELAYED)
}

func TestClaim_ReturnsFirstWhatTheConsumerHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", subject("1")), to("a", subject("2")), to("a", subject("3"), priority(1)))
	held := a.claim1()
	w.Clock.Advance(10 * time.Second)
	got := a.claim(2)
	wantList(t, "claims", subjectsOf(got), "1", "2")
	want(t, "same claim", got[0].ClaimId, held.ClaimId)
	want(t, "resumed", got[0].Resumed, true)
	want(t, "left", got[0].ExpiresIn.AsDuration(), 20*time.Second)
	want(t, "new", got[1].Resumed, false)
	want(t, "full time", got[1].ExpiresIn.AsDuration(), lease)
	wantList(t, "no more than asked for", subjectsOf(a.claim(1)), "1")
	wantList(t, "another consumer", subjectsOf(a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x", Max: 5}).Claims), "3")
}

func TestClaim_AnswerStaysSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for range 20 {
		a.send(to("a", func(m *pb.Message) { m.Body = strings.Repeat("x", 250_000) }))
	}
	total := 0
	for total < 20 {
		got := a.claim(100)
		size := 0
		for _, c := range got {
			size += len(c.Message.Body)
			a.ack(c.ClaimId)
		}
		if len(got) == 0 || size > 3<<20 {
			t.Fatalf("%d claims with %d bytes", len(got), size)
		}
		total += len(got)
	}
}

func TestClaim_WaitsForASend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	call := w.wait(a, &pb.ClaimMessagesRequest{Max: 5})
	lead.send(toRole("builder", subject("x")))
	wantList(t, "claims", subjectsOf(call.answer().Claims), "x")
}

func TestClaim_WaitEndsEmptyHanded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(to("a", due(w.now(2*time.Hour))))
	call := w.wait(a, &pb.ClaimMessagesRequest{})
	w.Clock.Advance(apptest.LongWait)
	out := call.answer()
	want(t, "claims", len(out.Claims), 0)
	want(t, "reason", out.EmptyReason, pb.EmptyReason_EMPTY_REASON_DELAYED)
	want(t, "still there", lead.send(to("a")).RefusedCount, 0)
	want(t, "nobody has it", len(a.claim(1)), 1)
}

func TestClaim_WaitIsWokenByADelayThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(to("a", due(w.now(5*time.Second)), subject("late")))
	call := w.wait(a, &pb.ClaimMessagesRequest{})
	w.Clock.Advance(5 * time.Second)
	wantList(t, "claims", subjectsOf(call.answer().Claims), "late")
}

func TestClaim_SeveralWaitersGetOneEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	var calls []*waiting
	for _, a := range w.agents("builder", "b1", "b2", "b3", "b4") {
		calls = append(calls, w.wait(a, &pb.ClaimMessagesRequest{}))
	}
	lead.sendAll(toRole("builder", subject("1")), toRole("builder", subject("2")), toRole("builder", subject("3")), toRole("builder", subject("4")))
	var got []string
	for _, c := range calls {
		got = append(got, subjectsOf(c.answer().Claims)...)
	}
	slices.Sort(got)
	wantList(t, "claims", got, "1", "2", "3", "4")
}

// A client may cancel a call after the broker has sent the answer. It cannot tell this from a call
// that ended before, and the claim in the answer remains until its time limit. The broker's metrics
// show how many answers it has sent.
func TestClaim_CallerWhoGivesUpTakesNothingAlong(t *testing.T) {
	t.Parallel()
	const calls = 10
	w := newWorld(t, apptest.WithMetrics())
	lead := w.agent("lead", "")
	received := 0
	var cancelled []string
	for i := range calls {
		a := w.agent("a"+strconv.Itoa(i), "")
		ctx, giveUp := context.WithCancel(a.Ctx)
		call := w.waitIn(ctx, a, &pb.ClaimMessagesRequest{})
		done := make(chan struct{})
		go func() { defer close(done); giveUp() }()
		sent := lead.send(to(a.Name))
		<-done
		<-call.out
		if err := <-call.err; err == nil {
			received++
			a.ack(sent.Id)
		} else {
			cancelled = append(cancelled, sent.Id)
		}
	}
	unknown := w.Ended("MessageService/ClaimMessages", calls)["OK"] - received // answers that no client has received
	var remain []string
	w.await("only the claims in unknown answers remain", func() bool {
		remain = slices.DeleteFunc(slices.Clone(cancelled), func(id string) bool { return lead.state(id) != claimed })
		return len(remain) == unknown
	})
	for _, id := range cancelled {
		want(t, "attempts", lead.delivery(id).Attempts, 0)
	}
	w.Clock.Advance(lease)
	for _, id := range remain {
		w.awaitState(id, delayed)
	}
}

func TestClaim_WaitEndsWhenTheBrokerStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	call := w.wait(a, &pb.ClaimMessagesRequest{})
	w.Restart()
	<-call.out
	want(t, "code", status.Code(<-call.err), codes.Unavailable)
}

func TestClaim_EightConsumersOnOneQueueShareItWithoutADouble(t *testing.T) {
	t.Parallel()
	const total, consumers = 10_000, 8
	w := newWorld(t)
	lead := w.agent("lead", "")
	batch := make([]*pb.Message, 1000)
	for i := range batch {
		batch[i] = toRole("builder")
	}
	for range total / len(batch) {
		lead.sendAll(batch...)
	}
	var mu sync.Mutex // guards seen
	seen := map[string]string{}
	finished := make(chan struct{})
	var workers sync.WaitGroup
	defer workers.Wait()
	for i := range consumers {
		name := "b" + strconv.Itoa(i)
		c := w.agent(name, "builder").taker(&pb.ClaimOpen{MaxInFlight: 64})
		defer c.end()
		workers.Go(func() {
			for {
				r, err := c.stream.Recv()
				if err != nil {
					return // the test has ended it
				}
				var ids []string
				mu.Lock()
				for _, m := range r.GetDeliver().GetClaims() {
					if other, double := seen[m.Message.Id]; double {
						t.Errorf("%s got what %s has: %s", name, other, m.ClaimId)
					}
					seen[m.Message.Id] = name
					ids = append(ids, m.ClaimId)
				}
				if len(ids) > 0 && len(seen) == total {
					close(finished)
				}
				mu.Unlock()
				if len(ids) > 0 {
					if err := c.stream.Send(&pb.ClaimRequest{Acks: ids}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	select {
	case <-finished:
	case <-lead.Ctx.Done():
		t.Errorf("%d of %d came", len(seen), total)
	}
	o := w.operator()
	w.await("all is acknowledged", func() bool {
		s := o.status()
		return s.Waiting+s.Claimed+s.Dead == 0
	})
}

func TestClaim_StuckConsumersStopNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(500))})
	lead, worker := w.agent("lead", ""), w.agent("worker", "builder")
	stuck := w.agent("stuck", "builder")
	stuck.taker(&pb.ClaimOpen{MaxInFlight: 100, MaxBytes: 64 << 20})                     // never reads another frame
	apptest.NoError(t, drop(stuck.Receive(stuck.Ctx, &pb.ReceiveRequest{Follow: true}))) // nor is this one read
	body := strings.Repeat("x", 20_000)
	heavy := func(m *pb.Message) { m.Body = body }
	c := worker.taker(&pb.ClaimOpen{MaxInFlight: 100})
	refused := 0
	for range 80 {
		batch := make([]*pb.Message, 0, 20)
		for range 10 {
			batch = append(batch, to("stuck", heavy), to("worker", heavy))
		}
		for _, r := range lead.sendAll(batch...) {
			refused += int(r.RefusedCount)
		}
		c.ack(c.take(10)...)
	}
	if least := 800 - 100 - 500; refused < least || refused > least+100 { // it was granted up to 100
		t.Errorf("beyond the stuck one's claims and the limit: %d", refused)
	}
	lead.sendAll(toRole("builder", subject("r")))
	wantList(t, "the role's", subjectsOf(c.take(1)), "r")
}

func TestClaim_ConsumerThatNeverReadsFailsAtNothingItWasNotGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	const n = 100
	for range n {
		lead.send(to("a", func(m *pb.Message) { m.Body = strings.Repeat("x", 100_000) }))
	}
	c := a.taker(&pb.ClaimOpen{MaxInFlight: n, MaxBytes: 64 << 20, Consumer: "x"})
	o := w.operator()
	w.await("as much is claimed as an unread stream may hold", func() bool {
		s := o.status()
		return s.Claimed >= 3
	})
	c.end()
	w.awaitStreams(0)
	w.await("most are back", func() bool {
		s := o.status()
		return s.Waiting > n/2
	})
	for _, item := range lead.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT, PageSize: n}).Items {
		want(t, "attempts", lead.delivery(item.Message.Id).Attempts, 0)
	}
}
