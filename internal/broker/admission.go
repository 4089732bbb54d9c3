package broker

import (
	"context"
	"math"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// Admission decides who may send how much.
type Admission interface {
	// Admit returns when a caller may send n messages in one call: within the deadline of the call, or within 30 s if it
	// has none. Errors: fault.Exhausted (SEND_RATE at once if the wait would be longer, DISK_NEARLY_FULL).
	Admit(ctx context.Context, who identity.Caller, n int) error
	// Judge refuses a draft that its sender's session does not allow, because of its size, its type or its payload. It
	// returns its doubts about a draft that the session allows.
	Judge(session *directory.Session, d *Draft) (doubts []string, err error)
	// Report appends events about the messages that one function has sent in spite of doubts.
	Report(tx *store.Tx, from *Actor, sent []Doubtful) error
}

// A Doubtful is a message that was sent although its type is unknown or its payload does not fit.
type Doubtful struct {
	Revision int64
	Doubt    *msgtype.Doubt
}

// An Advisor says what the sender of a message should know.
type Advisor interface {
	// Warnings returns the warnings about a message that was sent.
	Warnings(tx *store.Tx, from *Actor, d *Draft, out Outcome) ([]string, error)
	// Vacancy returns the warning about a role or channel that no agent has. It is empty if an agent has it.
	Vacancy(tx *store.Tx, session int64, ref MailboxRef) (string, error)
	// AudienceChanged takes note that a subscription has changed.
	AudienceChanged(tx *store.Tx)
}

// UseAdmission sets who decides about sends, and who advises their senders. Call it before the broker is used.
func (b *Broker) UseAdmission(a Admission, d Directives, adv Advisor) {
	b.admission, b.directives, b.advisor = a, d, adv
}

// Vacancy returns the warning about a role or channel that no agent has. It is empty if an agent has it.
func (s *SendTx) Vacancy(ref MailboxRef) (string, error) {
	return s.advisor.Vacancy(s.tx, s.actor.Session.ID, ref)
}

// Admit returns when the caller may send one message. Errors: as Admission.Admit.
func (b *Broker) Admit(ctx context.Context, c identity.Caller) error {
	return b.admission.Admit(ctx, c, 1)
}

// A Pass says which work an agent may be given now.
type Pass int

// The work that an agent may be given.
const (
	Everything     Pass = iota
	OneProbe            // one delivery, and directives
	OnlyDirectives      // nothing else
)

// Gates knows which agents may be given work. An agent is known by its mailbox.
type Gates interface {
	// Pass returns what an agent may be given.
	Pass(tx *store.Tx, agent int64) (Pass, error)
	// Barrier returns why an agent is given only directives: AgentHalted, Draining or BreakerOpen. It returns Nothing if
	// the agent is given more. The time is when an open circuit breaker allows a probe, zero if that is not known.
	Barrier(tx *store.Tx, agent int64) (why Empty, until time.Time, err error)
	// Probed takes note of the delivery that an agent with the pass OneProbe was given.
	Probed(tx *store.Tx, agent int64, d DeliveryID)
}

// Breakers takes note of how the claims of agents end. An agent is known by its mailbox.
type Breakers interface {
	// Failed counts one failure of an agent, for all of these claims together.
	Failed(tx *store.Tx, session, agent int64, claims ...DeliveryID) error
	// Succeeded takes note that an agent has finished a claim.
	Succeeded(tx *store.Tx, session, agent int64, claim DeliveryID) error
	// Released takes note that an agent's claim was put back, uncounted.
	Released(tx *store.Tx, agent int64, claim DeliveryID) error
}

// A DeliveryID names a delivery.
type DeliveryID struct{ Message, Mailbox int64 }

// id returns the name of the delivery for packages beside the core.
func (k key) id() DeliveryID { return DeliveryID{k.message, k.mailbox} }

// UseGates sets who decides which agents are given work, and who takes note of how claims end. Call it before the broker
// is used.
func (b *Broker) UseGates(g Gates, t Breakers) { b.Waiters.gates, b.gates, b.breakers = g, g, t }

// pass returns what a consumer's agent may be given.
func (d *dispatchRun) pass(c *consumer) (Pass, error) { return d.gates.Pass(d.tx, c.actor.Mailbox) }

// capacityOf is how many of the deliveries behind a place may still be given to all of these.
func (d *dispatchRun) capacityOf(waiting []*consumer, at place) (int, error) {
	n := 0
	for _, c := range waiting {
		capacity := d.Waiters.capacity(c)
		if capacity > 0 && !at.directive() {
			p, err := d.pass(c)
			if err != nil {
				return 0, err
			}
			switch p {
			case OneProbe:
				capacity = 1
			case OnlyDirectives:
				capacity = 0
			}
		}
		n += capacity
	}
	return n, nil
}

// fillGated gives a consumer what its agent's gate allows: directives, and a probe if one is due.
func (d *dispatchRun) fillGated(c *consumer, p Pass) error {
	below := func(bound int64) func(Mailbox, int) ([]ready, error) {
		return func(box Mailbox, want int) ([]ready, error) { return d.below(c, box, bound, want) }
	}
	if err := d.merge(c, noLimit, below(DirectiveRank)); err != nil || p != OneProbe {
		return err
	}
	return d.merge(c, 1, below(back.rank))
}

// below reads the first deliveries of a mailbox, of a rank under the bound, that a consumer takes.
func (d *dispatchRun) below(c *consumer, box Mailbox, bound int64, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	return readReady(d.tx.Query(selectReadyBelow, c.filter.args([]any{box.ID, bound, d.tx.Now()}, self, want)...), box)
}

// probed takes note of what a consumer was given while its agent's gate allows one probe.
func (d *dispatchRun) probed(c *consumer, r *ready) error {
	p, err := d.pass(c)
	if err == nil && p == OneProbe && !r.directive() {
		d.gates.Probed(d.tx, c.actor.Mailbox, r.key.id())
	}
	return err
}

// The types of messages that are directives: orders to agents from those who direct the session.
const (
	HaltType      = "halt"
	ResumeType    = "resume"
	nudgeType     = "nudge"
	terminateType = "terminate"
	shutdownType  = "shutdown_request"
)

const (
	// DirectivePriority is the priority of every directive.
	DirectivePriority = 10
	// DirectiveRank is above the rank of every directive, and below the rank of every other delivery.
	DirectiveRank = math.MinInt64 / 2
)

// IsDirective reports whether messages of a type are directives.
func IsDirective(kind string) bool {
	switch kind {
	case nudgeType, HaltType, ResumeType, terminateType, shutdownType:
		return true
	}
	return false
}

// directRank is the rank of a directive. Directives come before all other deliveries, in the order of sending.
func directRank(sent time.Time) int64 { return math.MinInt64 + sent.UnixNano() }

// directive reports whether a delivery is of a directive.
func (p place) directive() bool { return p.rank < DirectiveRank }

// Directives knows who may send directives, and what a directive does beside being delivered.
type Directives interface {
	// MayDirect refuses a directive from a sender who may not send one.
	MayDirect(from *Actor, kind string) error
	// Direct applies a directive that is being sent to those who receive it.
	Direct(tx *store.Tx, from *Actor, d *Draft, message int64, to []Directed) error
}

// A Directed is an agent to whom a directive is sent.
type Directed struct {
	Mailbox int64
	Name    string
	Ended   int64 // Direct sets it: how many deliveries it has ended that waited in the mailbox
}

// direct applies a directive to its recipients.
func (s *SendTx) direct(d *Draft, message int64, to []*recipient) error {
	directed := make([]Directed, len(to))
	for i, r := range to {
		directed[i] = Directed{Mailbox: r.id, Name: r.name}
	}
	err := s.directives.Direct(s.tx, &s.actor, d, message, directed)
	for i, r := range to {
		r.waiting -= directed[i].Ended
	}
	return err
}

// Limits of requests that the rules of the broker need too.
const (
	MaxBatch = 1000                 // items of one call
	MaxTypes = 100                  // types, of a filter and of a summary
	MaxTTL   = 365 * 24 * time.Hour // how far ahead a message may expire, become due, or need its response
)

// maxCopies bounds the rows that the messages of one function of the writer make: a copy counts once, with
// a reminder twice, each recipient twice more, and each message twice, with a question or an answer three
// times, beside its artifacts. It leaves some rows of store.MaxChanged to the rest of the function.
const maxCopies = 9500

// fanOut counts the copies of a message. fault.Invalid (FANOUT_TOO_LARGE) beyond maxCopies.
func (s *SendTx) fanOut(d *Draft, to []*recipient, answers *answer) error {
	copies, each := 2+len(d.Artifacts), 1
	if d.Response || answers.settles() {
		copies++
	}
	if d.ResendAfter > 0 {
		each++
	}
	for _, r := range to {
		copies += each
		if !r.counted {
			copies += 2
		}
	}
	if s.copies+copies > maxCopies {
		return fanOutTooLarge(len(to))
	}
	s.copies += copies
	for _, r := range to {
		r.counted = true
	}
	return nil
}

// reach refuses more recipients than fanOut allows before their mailboxes are read.
func (s *SendTx) reach(names []string) error {
	if s.audience != nil || s.overfull {
		return nil // the broker sends its own copies in pages
	}
	copies := s.copies
	for _, name := range names {
		copies++
		if s.known[MailboxRef{AgentMailbox, name}] == nil {
			copies += 2
		}
	}
	if copies > maxCopies {
		return fanOutTooLarge(len(names))
	}
	return nil
}

func fanOutTooLarge(recipients int) error {
	return fault.New(fault.Invalid, "FANOUT_TOO_LARGE",
		"the messages up to this one, which has %d recipients, make more than %d copies, each recipient and message counted as two more: "+
			"send fewer messages in a call, or to fewer agents", recipients, maxCopies).
		With("limit", strconv.Itoa(maxCopies)).With("recipients", strconv.Itoa(recipients))
}

// MailboxFull refuses a message that must get somewhere and gets nowhere.
func MailboxFull(to Target, limit int64) error {
	e := fault.New(fault.Exhausted, "MAILBOX_FULL",
		"nobody got the message: every mailbox that %s means is full, with %d waiting (session setting mailbox_limit)", to, limit)
	e.RetryAfter = time.Second // a consumer may have taken a message by then
	return e.With("limit", "mailbox_limit").With("mailbox_limit", strconv.FormatInt(limit, 10))
}

const (
	selectReadyBelow = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND d.rank < ? AND (d.expires_at IS NULL OR d.expires_at > ?)
			AND ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
	// SelectDirectiveKeys selects the unfinished directives in an agent's own mailbox (?1), which have a rank below ?2.
	// The agent itself holds a claimed one. A delayed one was nacked, and is among the first that are due.
	SelectDirectiveKeys = `
			SELECT message, arrival FROM deliveries WHERE mailbox = ?1 AND state = 1 AND rank < ?2
			UNION ALL
			SELECT message, arrival FROM deliveries WHERE holder = ?1 AND mailbox = ?1 AND state = 2 AND rank < ?2
			UNION ALL
			SELECT message, arrival
			FROM (SELECT message, arrival, rank FROM deliveries WHERE mailbox = ?1 AND state = 3 ORDER BY due_at LIMIT 1000) AS x
			WHERE rank < ?2`
)
