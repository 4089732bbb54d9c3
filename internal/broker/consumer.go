package broker

import (
	"encoding/json"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// maxUnsent is how many bytes of claims a stream may hold that are not written to it yet. The last one
// may exceed it.
const maxUnsent = 256 << 10

// A consumer takes work: a Claim stream, or a unary call that waits. What changes belongs to the writer, unless a comment
// says otherwise.
type consumer struct {
	actor    mail.Actor
	name     string
	boxes    []mail.Mailbox
	filter   filter
	max      int // claims at the same time
	maxBytes int
	claimFor time.Duration
	lasts    time.Duration // until the running deadline: claimFor, or a stream's longest total
	// deliver is called by the writer after the commit and must not block.
	deliver func([]Claim)
	stream  *ClaimStream // nil for a unary call
	// dismissed is called by the writer when the agent is gone or the session closed; nil for a stream.
	dismissed func(error)
	ended     error // set by dismissed, before anybody is told

	implicit bool // boxes are all that the agent may take from, whatever these are
	turn     int  // claims given in this turn
	entered  bool
	load     store.Value[load]
	from     store.Value[map[int64]place] // filtered consumers: nothing below this place matches
	leaving  store.Value[bool]            // it leaves when this batch is committed

	freed bool // it has gained capacity, and dispatch has not checked it since; guarded by the mutex of Waiters

	// Any goroutine changes these.
	gone    atomic.Bool  // it takes no more claims
	full    atomic.Bool  // it had no capacity when the writer looked last
	written atomic.Int64 // bytes of claims that were written to its stream, or need not be written any more
	behind  atomic.Bool  // it has no capacity until more bytes are written
}

// A load is what a consumer holds.
type load struct {
	claims int
	bytes  int     // of their messages
	given  int64   // bytes that its stream was ever given
	fresh  []Claim // given in this batch, and not yet delivered
}

func (c *consumer) key() consumerKey { return consumerKey{c.actor.Mailbox, c.name} }

// capacity is how many more claims it may be given.
func (c *consumer) capacity() int {
	l := c.load.Get()
	n := max(0, c.max-l.claims)
	if c.gone.Load() || c.leaving.Get() || l.claims > 0 && l.bytes >= c.maxBytes || c.stream != nil && c.isBehind(l.given) {
		n = 0
	}
	c.full.Store(n == 0)
	return n
}

// isBehind reports whether its stream holds as many bytes as it may that are not written yet. If so, wrote has dispatch
// check the consumer again.
func (c *consumer) isBehind(given int64) bool {
	if given-c.written.Load() < maxUnsent {
		return false
	}
	c.behind.Store(true)
	return given-c.written.Load() >= maxUnsent // they may have been written meanwhile
}

// take adds a claim to those that it holds.
func (c *consumer) take(tx *store.Tx, claim *Claim) {
	l, bytes := c.load.Get(), claim.size()
	c.load.Set(tx, load{l.claims + 1, l.bytes + bytes, l.given + int64(bytes), append(l.fresh, *claim)})
}

// isEnded reports whether it was ended with an error: what it held is another consumer's or was put
// back. The writer calls it.
func (c *consumer) isEnded() bool {
	return c.ended != nil || c.stream != nil && c.stream.Ended() != nil
}

// takes reports whether a delivery from a mailbox of that kind is for it: it matches, and is not its own ONE message.
func (c *consumer) takes(kind mail.MailboxKind, r *ready) bool {
	return c.filter.matches(r) && (kind == mail.AgentMailbox || r.Sender != c.actor.Name)
}

// A place is a position in a mailbox.
type place struct{ rank, message int64 }

var (
	front = place{math.MinInt64, 0}
	back  = place{math.MaxInt64, math.MaxInt64}
)

// justBefore is the last place in front of p.
func (p place) justBefore() place { return place{p.rank, p.message - 1} }

func (p place) before(o place) bool {
	return p.rank < o.rank || p.rank == o.rank && p.message < o.message
}

// A Topic narrows claims to the messages of one thread, task or correlation, or to those of some
// senders. Empty fields do not restrict.
type Topic struct {
	Thread      string
	Task        string
	Correlation string
	Senders     []string
}

// Empty reports whether the topic names nothing.
func (t *Topic) Empty() bool {
	return t.Thread == "" && t.Task == "" && t.Correlation == "" && len(t.Senders) == 0
}

// covers reports whether a message belongs to the topic.
func (t *Topic) covers(d *ready) bool {
	return (len(t.Senders) == 0 || slices.Contains(t.Senders, d.Sender)) &&
		(t.Thread == "" || t.Thread == d.ThreadID()) &&
		(t.Task == "" || t.Task == d.task) &&
		(t.Correlation == "" || t.Correlation == d.correlation)
}

// ThreadStart returns revision and id of the message that a thread is named after. That message
// does not name the thread itself. The revision is -1 if the thread has another name.
func ThreadStart(name string) (revision int64, id []byte) {
	if ref, ok := msgid.ParseRef(name); ok && ref.ID != (msgid.ID{}) && ref.ID.String() == name {
		return ref.Revision, ref.ID[:]
	}
	return -1, nil
}

// A filter chooses among the ready deliveries.
type filter struct {
	types    []string
	priority int // this or higher
	topic    Topic
}

func (f *filter) empty() bool { return len(f.types) == 0 && f.priority <= 1 && f.topic.Empty() }

func (f *filter) matches(d *ready) bool {
	return d.priority >= f.priority && (len(f.types) == 0 || slices.Contains(f.types, d.kind)) &&
		(f.topic.Empty() || f.topic.covers(d))
}

// args are the arguments of the condition filtered: those before it, the name of the agent whose
// own messages it leaves out, its values, and the limit.
func (f *filter) args(before []any, self string, limit int) []any {
	t := &f.topic
	first, id := ThreadStart(t.Thread)
	types, senders := listJSON(f.types), listJSON(t.Senders)
	return append(before, self, types, types, f.priority, senders, senders,
		t.Thread, t.Thread, first, id, t.Task, t.Task, t.Correlation, t.Correlation, limit)
}

// listJSON is a list as queries take it, nil for an empty one.
func listJSON(list []string) any {
	if len(list) == 0 {
		return nil
	}
	b, _ := json.Marshal(list) // strings always marshal
	return string(b)
}
