package broker

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"brokerd/internal/msgtype"
	"brokerd/internal/validate"
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
// gave; the broker stores it and hands it on without looking into it.
type Draft struct {
	Target      Target
	One         bool // one of those who match gets it, rather than all
	Type        string
	Subject     string
	Priority    int // 1 to 10
	Channel     string
	Thread      string
	Correlation string
	ReplyTo     Ref // zero = no answer to anything
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

// channel returns the channel that the draft goes to or has as its label; empty for none.
func (d *Draft) channel() string {
	if d.Target.Kind == ToChannel {
		return d.Target.Name
	}
	return d.Channel
}

// A Message is one that was sent.
type Message struct {
	Revision   int64
	ID         ID
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

// State is where a delivery stands. The numbers are those of the API and of the database.
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

// unfinished reports whether a delivery in this state waits or is worked on.
func (s State) unfinished() bool { return s.Waits() || s == Claimed }

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

// A Claim is a delivery that somebody works on.
type Claim struct {
	Message
	Mailbox     string
	Number      int // counts the claims of this delivery
	Attempt     int // which attempt this is, from 1
	MaxAttempts int
	ExpiresIn   time.Duration
	Resumed     bool

	key     key
	ordered bool   // it has an ordering key, so finishing it promotes another
	fresh   bool   // the first delivery to any agent
	unread  int    // bytes of a content that is only in the database; else 0
	id      string // ClaimID, once it was asked for
}

// size returns the bytes of the content.
func (c *Claim) size() int { return len(c.Content) + c.unread }

// ClaimID returns the claim's id: the message's revision and the claim's number.
func (c *Claim) ClaimID() string {
	if c.id == "" {
		c.id = ClaimID(c.Revision, c.Number)
	}
	return c.id
}

// DeliveryID returns the name of the delivery.
func (c *Claim) DeliveryID() DeliveryID { return c.key.id() }

// key names a delivery.
type key struct{ message, mailbox int64 }

// ClaimID returns the id of the nth claim of a message.
func ClaimID(revision int64, number int) string {
	return strconv.FormatInt(revision, 10) + "." + strconv.Itoa(number)
}

// An ID is a message id: a UUID of version 7 whose last 48 bits are the message's revision, so that it
// needs no index of its own (RFC 9562 leaves these bits to the maker).
type ID [16]byte

// newID returns the id of the message with this revision. 26 bits are random, so that two brokers do not
// give the same id in the same millisecond.
func newID(at time.Time, revision int64) (id ID) {
	random := rand.Uint32()
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|0x7000|uint64(random&0xfff))
	binary.BigEndian.PutUint64(id[8:], 0x8000_0000_0000_0000|uint64(random>>12&0x3fff)<<48|uint64(revision)&(1<<48-1))
	return id
}

// String returns the id in the usual form with hyphens.
func (id ID) String() string {
	var b [36]byte
	return string(id.AppendTo(b[:0]))
}

// AppendTo appends what String returns.
func (id ID) AppendTo(b []byte) []byte {
	b = append(hex.AppendEncode(b, id[0:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:])
}

func (id ID) revision() int64 { return int64(binary.BigEndian.Uint64(id[8:]) & (1<<48 - 1)) }

// A Ref is how a caller names a message or a claim: a message id, a revision, or a claim id.
type Ref struct {
	Text     string // as the caller wrote it
	Revision int64
	ID       ID  // zero unless it was a message id
	Claim    int // 0 unless it was a claim id
}

// ParseRef reads a message id, a revision ("4711") or a claim id ("4711.2").
func ParseRef(s string) (Ref, bool) {
	ref := Ref{Text: s}
	if len(s) == 36 {
		if u, err := uuid.Parse(s); err == nil {
			ref.ID = ID(u)
			ref.Revision = ref.ID.revision()
			return ref, ref.Revision > 0
		}
	}
	revision, number, isClaim := strings.Cut(s, ".")
	var ok bool
	if ref.Revision, ok = digits(revision); !ok {
		return Ref{}, false
	}
	if isClaim {
		n, ok := digits(number)
		if !ok || n > 1<<31-1 {
			return Ref{}, false
		}
		ref.Claim = int(n)
	}
	return ref, true
}

// digits reads a positive number written without sign or leading zero.
func digits(s string) (int64, bool) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// CheckRef checks a field of a request that names a message, or with claims a message or a claim.
func CheckRef(c *validate.Check, field, s string, claims bool) Ref {
	ref, ok := ParseRef(s)
	switch {
	case s == "":
		c.Fail(field, "is empty; a message id or revision is required")
	case !ok && claims:
		c.Fail(field, "%.60q is neither a claim id (4711.2), a message id (a UUID) nor a revision (4711)", s)
	case !ok || ref.Claim != 0 && !claims:
		c.Fail(field, "%.60q is neither a message id (a UUID) nor a revision (4711)", s)
	}
	return ref
}

// CheckRefs checks a field with at most MaxBatch such names.
func CheckRefs(c *validate.Check, field string, ids []string, claims bool) []Ref {
	c.Count(field, len(ids), MaxBatch)
	refs := make([]Ref, 0, min(len(ids), MaxBatch))
	for i, id := range ids[:min(len(ids), MaxBatch)] {
		refs = append(refs, CheckRef(c, fmt.Sprintf("%s[%d]", field, i), id, claims))
	}
	return refs
}

// names reports whether the ref can mean the message with this id.
func (r Ref) names(id ID) bool { return r.ID == ID{} || r.ID == id }
