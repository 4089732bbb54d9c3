package broker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// These tests decide which functions share a batch, and what happens in the middle of one.

// noGates allows all work, and notes nothing.
type noGates struct {
	Gates
	passing func(agent int64) // called with each agent whose gate is read; may be nil
}

func (g *noGates) Pass(_ *store.Tx, agent int64) (Pass, error) {
	if g.passing != nil {
		g.passing(agent)
	}
	return Everything, nil
}

func (*noGates) Barrier(*store.Tx, int64) (Empty, time.Time, error) {
	return Nothing, time.Time{}, nil
}

func (*noGates) Succeeded(*store.Tx, int64, int64, mail.DeliveryID) error { return nil }

func (*noGates) Released(*store.Tx, int64, mail.DeliveryID) error { return nil }

func (*noGates) Failed(*store.Tx, int64, int64, ...mail.DeliveryID) error { return nil }

// noQuestions keeps no questions.
type noQuestions struct{}

func (noQuestions) Unanswered(*store.Tx, int64) error { return nil }

// A core is a broker alone on a store, with the agents a and b. The role of a is r.
type core struct {
	*Broker
	t     *testing.T
	gates *noGates
}

func newCore(t *testing.T, excess func(store.Excess)) *core {
	t.Helper()
	clock := clockwork.NewFakeClock() // a batch lasts as long as there is work
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Sync: store.SyncNormal, Clock: clock, Excess: excess,
		Migrations: slices.Concat(events.Migrations(), idempotency.Migrations(), sessions.Migrations(), agents.Migrations(),
			schema.Migrations())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	testkit.Agents(t, st, "", "a", "b")
	b := &core{New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop()), t, &noGates{}}
	b.UseGates(b.gates, b.gates)
	b.UseQuestions(noQuestions{})
	b.write(func(tx *store.Tx) error {
		tx.Exec(`UPDATE agents SET role = 'r' WHERE name = 'a'`)
		return nil
	})
	return b
}

func named(agent string) identity.Caller { return identity.Caller{Session: "default", Agent: agent} }

func (b *core) write(fn func(*store.Tx) error) {
	b.t.Helper()
	if err := b.store.Write(b.t.Context(), fn); err != nil {
		b.t.Fatal(err)
	}
}

// pass returns when all that the writer has to do by now is done.
func (b *core) pass() {
	b.t.Helper()
	for range 3 { // a batch may leave something to the next one
		b.write(func(*store.Tx) error { return nil })
	}
}

// hold keeps the writer busy until the returned function is called: what is handed over meanwhile goes into one batch.
func (b *core) hold() (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(held) })
	b.store.Submit(b.t.Context(), store.LaneDrain, 0, func(*store.Tx) error {
		begin()
		<-free
		return nil
	}, func(error) {})
	<-held
	return func() { close(free) }
}

// stream opens a stream of claims.
func (b *core) stream(agent string, most int) *ClaimStream {
	b.t.Helper()
	s, _, err := b.Streams.Open(b.t.Context(), named(agent), Wish{
		Consumer: "c", Max: most, MaxBytes: 1 << 30, ClaimFor: time.Minute, MaxTotal: time.Hour,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.pass()
	return s
}

// A message is to be delivered to a mailbox.
type message struct {
	to       mail.MailboxRef
	priority int
	bytes    int
	part     bool // of another change: dispatch gives it to consumers
}

func toA(bytes int) message { return message{to: mail.AgentRef("a"), priority: 5, bytes: bytes} }

// send has the writer deliver messages of agent b in one function, and returns where the revision of the last arrives.
func (b *core) send(messages ...message) <-chan int64 {
	sent := make(chan int64, 1)
	var last int64
	b.store.Submit(b.t.Context(), store.LaneFill, 0, func(tx *store.Tx) error {
		from, err := b.Mailboxes.Acting(tx, named("b"))
		if err != nil {
			return err
		}
		left := mail.Tally{}
		for _, m := range messages {
			box := mail.Mailbox{Ref: m.to}
			if box.ID, err = b.Mailboxes.Open(tx, from.Session.ID, m.to); err != nil {
				return err
			}
			p := &Post{
				Draft: &mail.Draft{Type: "task", Priority: m.priority},
				Message: mail.Message{
					Revision: tx.NextRevision(), Sender: "b", CreatedAt: tx.Now(), Content: make([]byte, m.bytes),
				},
				Rank:     mail.Rank(time.Minute, m.priority, tx.Latest()),
				Attempts: 3, Part: m.part,
			}
			last = p.Message.Revision
			tx.Exec(`INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content)
				VALUES (?, ?, ?, 'b', '', ?, 'task', ?, ?)`,
				last, make([]byte, 16), from.Session.ID, tx.Now(), m.priority, p.Message.Content)
			state, err := b.Deliver(tx, p, box, m.to.String())
			if err != nil {
				return err
			}
			if state.Waits() {
				left[box.ID]++
			}
		}
		left.Flush(tx)
		return nil
	}, func(err error) {
		if err != nil {
			panic(err) // the test would wait for the message
		}
		sent <- last
	})
	return sent
}

// next returns the next claims of a stream.
func (b *core) next(s *ClaimStream) []Claim {
	b.t.Helper()
	f, done, err := s.Next(b.t.Context())
	if err != nil || done {
		b.t.Fatal(err, done)
	}
	claims := slices.Clone(f.Deliver)
	s.Sent(f.Deliver)
	return claims
}

func (b *core) ack(s *ClaimStream, claims []Claim) {
	b.t.Helper()
	items := make([]Settlement, len(claims))
	for i := range claims {
		ref, _ := msgid.ParseRef(claims[i].ClaimID())
		items[i] = Settlement{Verb: Ack, Ref: ref}
	}
	if err := s.Settle(b.t.Context(), items); err != nil {
		b.t.Fatal(err)
	}
}

// A queuedContext tells when a call begins to wait for the writer.
type queuedContext struct {
	context.Context
	once   *sync.Once
	queued chan struct{}
}

func (c queuedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.queued) })
	return c.Context.Done()
}

// One transaction gives a message to a consumer, and then another stream of the consumer takes over.
func TestOpenClaims_TakeoverGetsAloneWhatItsTransactionHandedToTheOldStream(t *testing.T) {
	t.Parallel()
	b := newCore(t, nil)
	ctx := t.Context()
	wish := Wish{Consumer: "c", Max: 10, MaxBytes: 1 << 20, ClaimFor: time.Minute}
	old := b.stream("a", 10)
	release := b.hold()
	var resumed []Claim
	opened := make(chan error, 1)
	sent := b.send(toA(1))
	b.store.Submit(ctx, store.LaneFill, 0, func(*store.Tx) error {
		queued := queuedContext{ctx, &sync.Once{}, make(chan struct{})}
		go func() {
			var err error
			_, resumed, err = b.Streams.Open(queued, named("a"), wish)
			opened <- err
		}()
		<-queued.queued
		return nil
	}, func(error) {})
	release()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if revision := <-sent; len(resumed) != 1 || resumed[0].Revision != revision {
		t.Fatalf("message %d was sent, and the new stream has %v", revision, resumed)
	}
	frame, done, err := old.Next(ctx)
	if err != nil || !done || len(frame.Deliver) > 0 {
		t.Errorf("the old stream says %v, done %v: %v", frame, done, err)
	}
	if old.Ended() == nil {
		t.Error("the old stream has not ended")
	}
}

// A call that finds nothing waits from the end of its batch. A message that is sent in the same batch is for it.
func TestClaim_WaitGetsAMessageThatItsOwnBatchBrings(t *testing.T) {
	t.Parallel()
	for name, types := range map[string][]string{"all": nil, "some types": {"task"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCore(t, nil)
			release := b.hold()
			queued := queuedContext{t.Context(), &sync.Once{}, make(chan struct{})}
			got := make(chan Claims, 1)
			go func() {
				c, err := b.Claim(queued, named("a"), Wish{
					Consumer: "c", Types: types, Max: 5, MaxBytes: 1 << 20, ClaimFor: time.Minute, Wait: time.Hour,
				})
				if err != nil {
					t.Error(err)
				}
				got <- c
			}()
			<-queued.queued
			sent := b.send(toA(1))
			release()
			revision := <-sent
			if c := <-got; len(c.Claims) != 1 || c.Claims[0].Revision != revision {
				t.Errorf("%+v, want message %d", c.Claims, revision)
			}
		})
	}
}

// The acks that wait for the writer together do not make one function that does too much.
func TestAcks_OfManyFramesAreAppliedInBoundedFunctions(t *testing.T) {
	t.Parallel()
	const frames, each = 11, 1000
	b := newCore(t, func(e store.Excess) { t.Errorf("a function of the writer did too much: %+v", e) })
	s := b.stream("a", frames*each)
	for range frames {
		<-b.send(slices.Repeat([]message{toA(0)}, each)...)
	}
	var claims []Claim
	for len(claims) < frames*each {
		claims = append(claims, b.next(s)...)
	}
	release := b.hold()
	for piece := range slices.Chunk(claims, each) {
		s.mu.Lock()
		s.unanswered = 0 // as if each frame came over a stream of its own
		s.mu.Unlock()
		b.ack(s, piece)
	}
	release()
	for results := 0; results < frames*each; {
		f, done, err := s.Next(t.Context())
		if err != nil || done {
			t.Fatal(err, done)
		}
		results += len(f.Results)
	}
	b.write(func(tx *store.Tx) error {
		var left int
		err := tx.QueryRow(`SELECT COUNT(*) FROM deliveries WHERE state <> 5`).Scan(&left)
		if left != 0 || s.consumer.load.Get().claims != 0 {
			t.Errorf("%d deliveries are not acknowledged, the stream holds %d", left, s.consumer.load.Get().claims)
		}
		return err
	})
}

// A message is handed to a stream, and before that is delivered, a call of the agent releases the claim.
func TestRelease_OfAClaimThatIsNotDeliveredYet(t *testing.T) {
	t.Parallel()
	b := newCore(t, nil)
	s := b.stream("a", 2)
	release := b.hold()
	sent := b.send(toA(1))
	released := make(chan error, 1)
	b.store.Submit(t.Context(), store.LaneFill, 0, func(tx *store.Tx) error {
		a, err := b.Mailboxes.Owner(tx, named("a"))
		if err != nil {
			return err
		}
		only, err := OnlyClaim(tx, a)
		if err != nil {
			return err
		}
		done := b.NewSettleTx(tx, a)
		if _, err := done.Settle(&Settlement{Verb: Release, Ref: only}); err != nil {
			return err
		}
		_, err = done.Finish()
		return err
	}, func(err error) { released <- err })
	release()
	revision := <-sent
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	got := b.next(s)
	if len(got) != 1 || got[0].ClaimID() != msgid.ClaimID(revision, 2) {
		t.Fatalf("%+v are delivered, want the second claim of message %d alone", got, revision)
	}
	b.ack(s, got)
	b.pass()
	b.write(func(*store.Tx) error {
		if l := s.consumer.load.Get(); l.claims != 0 || l.bytes != 0 || len(s.open) != 0 {
			t.Errorf("after the ack, the stream holds %+v and %d claims", l, len(s.open))
		}
		return nil
	})
}

// A message to the role has become ready in the batch, when a message to the agent itself is sent, which goes after it.
func TestHandOver_NothingOvertakesWhatIsReadyInAnotherMailbox(t *testing.T) {
	t.Parallel()
	b := newCore(t, nil)
	s := b.stream("a", 1)
	release := b.hold()
	first := b.send(message{to: mail.RoleRef("r"), priority: 9, bytes: 1, part: true})
	low := toA(1)
	low.priority = 1
	sent := b.send(low)
	release()
	<-sent
	if got := b.next(s); len(got) != 1 || got[0].Revision != <-first {
		t.Errorf("got %+v, want the message to the role", got)
	}
}

// While dispatch runs, bytes are written to a stream, which has capacity again. It does not get the newest message before
// an older one that is ready.
func TestDispatch_ConsumerThatGainsCapacityMeanwhileIsLeftToTheNext(t *testing.T) {
	t.Parallel()
	b := newCore(t, nil)
	s, other := b.stream("a", 10), b.stream("b", 10)
	<-b.send(toA(maxUnsent))
	f, _, err := s.Next(context.WithoutCancel(t.Context()))
	if err != nil || len(f.Deliver) != 1 {
		t.Fatal(err, len(f.Deliver))
	}
	second := <-b.send(toA(1)) // the stream holds as much as it may
	b.pass()
	release := b.hold()
	b.Waiters.free(other.consumer)
	b.gates.passing = func(agent int64) {
		if agent == other.consumer.actor.Mailbox {
			b.gates.passing = nil
			s.Sent(f.Deliver)
		}
	}
	sent := b.send(toA(1))
	release()
	third := <-sent
	b.pass()
	var got []int64
	for _, c := range b.next(s) {
		got = append(got, c.Revision)
	}
	if diff := cmp.Diff([]int64{second, third}, got); diff != "" {
		t.Error(diff)
	}
}

// A check for sleeping mailboxes may look at a consumer while the writer moves it to other mailboxes.
func TestIdle_IsSafeWhileConsumersMove(t *testing.T) {
	t.Parallel()
	b := newCore(t, nil)
	s := b.stream("a", 1)
	idle := b.Waiters.Idle()
	named := make(chan string, 1)
	go func() {
		var name string
		for range 100 {
			name = idle[0].String()
		}
		named <- name
	}()
	for range 20 {
		b.write(func(tx *store.Tx) error {
			return b.AgentRegistered(tx, s.consumer.actor.Agent)
		})
	}
	if name := <-named; name != `agent "a" (consumer "c")` {
		t.Error(name)
	}
}
