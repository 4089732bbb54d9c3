package work

import (
	"slices"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

// MostHeld is how many of each kind Holdings have at most.
const MostHeld = 1000

// Holdings are what an agent holds, waits for and owes, oldest first.
type Holdings struct {
	Claims   []OpenClaim
	Locks    []HeldLock
	Tokens   []HeldToken
	Tickets  []WaitingTicket
	Asked    []OpenQuestion // by the agent
	ToAnswer []OpenQuestion // by it
	Work     []Item
}

// An OpenClaim is a claim on a message.
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

// Held counts the claims of one kind that an agent of a session holds.
type Held struct {
	Session int64 // row id
	Agent   string
	Claims  int64
	Since   time.Time // the time of the oldest claim
}

// A TokenPass passes a token on.
type TokenPass struct {
	Token string // TYPE/SCOPE
	Fence int64  // of the grant to pass; or
	From  string // the agent that holds the token
	Agent string // that receives it; or
	Role  string // a role. With neither, the token is released
	Note  string
}

// A Mailbox counts the deliveries in a mailbox.
type Mailbox struct {
	ID      int64
	Name    string // an agent's, role:NAME or channel:NAME
	Waiting int64  // pending, delayed and blocked deliveries
	Claimed int64
	Dead    int64 // up to 1,000
}

// Coordination counts what agents share in a session.
type Coordination struct {
	Locks   int64
	Tokens  int64 // held
	Tickets int64 // requests that wait for locks and tokens
	Keys    int64 // of the state
	Work    []Count
}

// Features are the features with work that concerns agents, in the order in which reports have them.
type Features []Feature

// A Feature knows pieces of work that concern agents.
type Feature interface {
	// Items returns the unfinished work that concerns an agent, at most limit, oldest first.
	Items(q store.Querier, session int64, a directory.Agent, limit int) ([]Item, error)
	// Counts counts the unfinished work of a session by state, up to MostCounted each.
	Counts(q store.Querier, session int64) ([]Count, error)
}

// Holdings adds the unfinished work that concerns an agent, at most MostHeld pieces of each feature.
func (all Features) Holdings(q store.Querier, a directory.Agent, to *Holdings) error {
	for _, f := range all {
		items, err := f.Items(q, a.Session, a, MostHeld)
		if err != nil {
			return err
		}
		to.Work = slices.Concat(to.Work, items)
	}
	return nil
}

// Counts counts the unfinished work of a session by kind and state.
func (all Features) Counts(q store.Querier, session int64) (counts []Count, err error) {
	for _, f := range all {
		some, err := f.Counts(q, session)
		if err != nil {
			return nil, err
		}
		counts = slices.Concat(counts, some)
	}
	return counts, nil
}
