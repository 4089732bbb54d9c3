package agents

import (
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// MostHeld is how many of each kind Holdings have at most.
const MostHeld = 1000

// Holdings are what hangs on an agent, oldest first.
type Holdings struct {
	Claims   []OpenClaim
	Locks    []HeldLock
	Tokens   []HeldToken
	Tickets  []WaitingTicket
	Asked    []OpenQuestion // by the agent
	ToAnswer []OpenQuestion // by it
	Work     []work.Item
}

// An OpenClaim is a claim that an agent holds.
type OpenClaim struct {
	ClaimID   string
	Consumer  string
	MessageID string
	Revision  int64 // of the message
	Type      string
	Subject   string
	Sender    string
	Attempt   int
	ClaimedAt time.Time
}

// A HeldLock is a lock that an agent holds.
type HeldLock struct {
	Paths     []string
	Holder    string
	Fence     int64
	Shared    bool
	HeldUntil time.Time
}

// A HeldToken is a token that an agent holds.
type HeldToken struct {
	Type, Scope string
	Holder      string
	Fence       int64
	HeldUntil   time.Time
}

// A WaitingTicket is a request of an agent that waits for locks or a token.
type WaitingTicket struct {
	Ticket    int64
	Resources []string // the paths, or TYPE/SCOPE
	Token     bool
	Position  int
	CreatedAt time.Time
}

// An OpenQuestion is one that waits for its response.
type OpenQuestion struct {
	ID       string
	Revision int64
	Sender   string
	Subject  string
	Deadline time.Time
	Overdue  bool
}

// A Holder knows what agents hold.
type Holder interface {
	// Holdings adds what it knows of an agent's, at most 1,000 of each kind, oldest first.
	Holdings(q store.Querier, a Agent, to *Holdings) error
}

// UseHolders plugs in who knows what agents hold.
func (r *Registry) UseHolders(h ...Holder) { r.holders = append(r.holders, h...) }

// Own returns the calling agent, all but LastSeen, Health and Gate, with what it holds. Errors: as
// Acting; fault.Precondition for a call that names no agent.
func (r *Registry) Own(q store.Querier, who identity.Caller) (Agent, Holdings, error) {
	var held Holdings
	a, err := r.calling(q, who)
	for i := 0; i < len(r.holders) && err == nil; i++ {
		err = r.holders[i].Holdings(q, a, &held)
	}
	return a, held, err
}

// size is about what they take in an answer.
func (h *Holdings) size() int {
	n := 64 * (len(h.Claims) + len(h.Locks) + len(h.Tokens) + len(h.Tickets) + len(h.Asked) + len(h.ToAnswer))
	for i := range h.Claims {
		c := &h.Claims[i]
		n += len(c.ClaimID) + len(c.Consumer) + len(c.MessageID) + len(c.Type) + len(c.Subject) + len(c.Sender)
	}
	for i := range h.Locks {
		n += len(h.Locks[i].Holder) + textSize(h.Locks[i].Paths)
	}
	for i := range h.Tokens {
		n += len(h.Tokens[i].Type) + len(h.Tokens[i].Scope) + len(h.Tokens[i].Holder)
	}
	for i := range h.Tickets {
		n += textSize(h.Tickets[i].Resources)
	}
	for i := range h.Work {
		n += 128 + len(h.Work[i].Title)
		for _, command := range h.Work[i].Commands {
			n += textSize(command)
		}
	}
	for _, list := range [][]OpenQuestion{h.Asked, h.ToAnswer} {
		for i := range list {
			n += len(list[i].ID) + len(list[i].Sender) + len(list[i].Subject)
		}
	}
	return n
}

func textSize(texts []string) int {
	n := 0
	for _, t := range texts {
		n += 2 + len(t)
	}
	return n
}
