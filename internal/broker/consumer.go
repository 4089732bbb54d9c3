package broker

import (
	"math"
	"time"
)

// maxUnsent is how many bytes of claims a stream may hold that are not written to it yet. The last one
// may exceed it.
const maxUnsent = 256 << 10

// A consumer takes work: a Claim stream, or a unary call that waits. The mutex of Waiters guards what changes.
type consumer struct {
	actor    Actor
	name     string
	boxes    []Mailbox
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

	turn     int  // claims given in this turn
	implicit bool // boxes are all that the agent may take from, whatever these are
	entered  bool
	eager    bool // has room and was not looked at since
	gone     bool
	inFlight int
	bytes    int
	unsent   int             // bytes of claims of a stream that are not written to it yet
	from     map[int64]place // filtered consumers: nothing below this place matches
}

func (c *consumer) key() consumerKey { return consumerKey{c.actor.Mailbox, c.name} }

// room is how many more claims it may be given.
func (c *consumer) room() int {
	if c.gone || c.inFlight > 0 && c.bytes >= c.maxBytes || c.unsent >= maxUnsent {
		return 0
	}
	return max(0, c.max-c.inFlight)
}

// roomBeside is how many more claims it may be given beside these.
func (c *consumer) roomBeside(g granted) int {
	inFlight := c.inFlight + len(g.claims)
	if c.gone || inFlight > 0 && c.bytes+g.bytes >= c.maxBytes {
		return 0
	}
	if c.stream != nil && c.unsent+g.bytes >= maxUnsent {
		return 0
	}
	return max(0, c.max-inFlight)
}

// isEnded reports whether it was ended with an error: what it held is another consumer's or was put
// back. The writer calls it.
func (c *consumer) isEnded() bool {
	return c.ended != nil || c.stream != nil && c.stream.Ended() != nil
}

// takes reports whether a delivery from a mailbox of that kind is for it: it matches, and is not its own ONE message.
func (c *consumer) takes(kind MailboxKind, r *ready) bool {
	return c.filter.matches(r) && (kind == AgentMailbox || r.Sender != c.actor.Name)
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
