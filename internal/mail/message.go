package mail

import (
	"time"

	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
)

// TargetKind says what a message is addressed to.
type TargetKind int

// The kinds of target.
const (
	ToAgent TargetKind = iota + 1
	ToRole
	ToChannel
	ToPattern
	ToEveryone
)

// A Target is who gets a message. Name is an agent, role, channel or pattern; empty for everyone.
type Target struct {
	Kind TargetKind
	Name string
}

// String returns the target as a person writes it.
func (t Target) String() string {
	switch t.Kind {
	case ToRole:
		return "role:" + t.Name
	case ToChannel:
		return "channel:" + t.Name
	case ToEveryone:
		return "everyone"
	default:
		return t.Name
	}
}

// A Draft is a checked message that is to be sent. Content is the wire form of all that the sender
// gave; the broker stores and delivers it without decoding it.
type Draft struct {
	Target      Target
	One         bool // one of those who match gets it, rather than all
	Type        string
	Subject     string
	Priority    int // 1 to 10
	Channel     string
	Thread      string
	Correlation string
	ReplyTo     msgid.Ref // zero = no answer to anything
	Task        string
	Artifacts   []string
	TTL         time.Duration // 0 = the channel's default
	NotBefore   time.Time
	OrderingKey string
	MaxAttempts int  // 0 = the session's setting
	PayloadSize int  // bytes
	Textless    bool // there is neither subject nor body nor payload
	Response    bool
	Deadline    time.Time     // Response: until when; zero = after Within
	Within      time.Duration // Response: 0 = the session's setting
	ResendAfter time.Duration // 0 = never
	Content     []byte
	Doubt       *msgtype.Doubt // what the catalog has against the type or the payload; nil = nothing
	Fault       error          // why this draft is refused; then nothing else is set
}

// A Message is one that was sent.
type Message struct {
	Revision   int64
	ID         msgid.ID
	Sender     string
	SenderRole string
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero = never
	Thread     string    // empty = its own id
	Content    []byte
}

// ThreadID returns the thread that a message belongs to: its own id if it names none.
func (m *Message) ThreadID() string {
	if m.Thread == "" {
		return m.ID.String()
	}
	return m.Thread
}

// State is the state of a delivery. The numbers are those of the API and of the database.
type State int

// The states of a delivery.
const (
	Pending State = iota + 1
	Claimed
	Delayed
	Blocked
	Acked
	Dead
	Expired
	Cancelled
	NoticeUnread
)

// String returns the state as the API spells it.
func (s State) String() string {
	names := [...]string{"UNKNOWN", "PENDING", "CLAIMED", "DELAYED", "BLOCKED", "ACKED", "DEAD", "EXPIRED", "CANCELLED", "NOTICE"}
	if s < 0 || int(s) >= len(names) {
		return names[0]
	}
	return names[s]
}

// Waits reports whether a delivery in this state counts against the limit of its mailbox.
func (s State) Waits() bool { return s == Pending || s == Delayed || s == Blocked }

// Unfinished reports whether a delivery in this state waits or is worked on.
func (s State) Unfinished() bool { return s.Waits() || s == Claimed }

// A Delivery is one mailbox's copy of a message.
type Delivery struct {
	Mailbox     string // as a person writes it: builder-1, role:builder, channel:general
	State       State
	Arrival     int64
	Claims      int
	Attempts    int
	MaxAttempts int
	Holder      string
	Consumer    string
	ClaimedAt   time.Time
	DeliveredAt time.Time
	ReadAt      time.Time
	FinishedAt  time.Time
	DueAt       time.Time
	History     []Attempt
	Offers      []Offer
}

// A DeliveryID names a delivery.
type DeliveryID struct{ Message, Mailbox int64 }

// An Attempt is one claim that failed or ran out.
type Attempt struct {
	Number    int
	Agent     string
	Consumer  string
	ClaimedAt time.Time
	EndedAt   time.Time
	Error     string
}

// An Item is a message with one of its deliveries.
type Item struct {
	Message
	Delivery Delivery

	Directive bool // by its type; in a page of arrivals alone
	Queued    bool // in the queue of a role or channel
}
