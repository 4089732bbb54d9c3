package router

import (
	"context"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
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
	Judge(session *directory.Session, d *mail.Draft) (doubts []string, err error)
	// Report appends events about the messages that one function has sent in spite of doubts.
	Report(tx *store.Tx, from *mail.Actor, sent []Doubtful) error
}

// A Doubtful is a message that was sent although its type is unknown or its payload does not fit.
type Doubtful struct {
	Revision int64
	Doubt    *msgtype.Doubt
}

// An Advisor says what the sender of a message should know.
type Advisor interface {
	// Warnings returns the warnings about a message that was sent.
	Warnings(tx *store.Tx, from *mail.Actor, d *mail.Draft, out Outcome) ([]string, error)
	// Vacancy returns the warning about a role or channel that no agent has. It is empty if an agent has it.
	Vacancy(tx *store.Tx, session int64, ref mail.MailboxRef) (string, error)
}

// Vacancy returns the warning about a role or channel that no agent has. It is empty if an agent has it.
func (s *Tx) Vacancy(ref mail.MailboxRef) (string, error) {
	return s.advisor.Vacancy(s.tx, s.actor.Session.ID, ref)
}

// Admit returns when the caller may send one message. Errors: as Admission.Admit.
func (r *Router) Admit(ctx context.Context, c identity.Caller) error {
	return r.admission.Admit(ctx, c, 1)
}

// Directives knows who may send directives, and what a directive does beside being delivered.
type Directives interface {
	// MayDirect refuses a directive from a sender who may not send one.
	MayDirect(from *mail.Actor, kind string) error
	// Direct applies a directive that is being sent to those who receive it.
	Direct(tx *store.Tx, from *mail.Actor, d *mail.Draft, message int64, to []Directed) error
}

// A Directed is an agent to whom a directive is sent.
type Directed struct {
	Mailbox int64
	Name    string
	Ended   int64 // Direct sets it: how many deliveries it has ended that waited in the mailbox
}

// direct applies a directive to its recipients.
func (s *Tx) direct(d *mail.Draft, message int64, to []*recipient) error {
	directed := make([]Directed, len(to))
	for i, r := range to {
		directed[i] = Directed{Mailbox: r.ID, Name: r.name}
	}
	err := s.directives.Direct(s.tx, &s.actor, d, message, directed)
	for i, r := range to {
		r.waiting -= directed[i].Ended
	}
	return err
}

// maxCopies bounds the rows that the messages of one function of the writer make: a copy counts once, with
// a reminder twice, each recipient twice more, and each message twice, with a question or an answer three
// times, beside its artifacts. It leaves some rows of store.MaxChanged to the rest of the function.
const maxCopies = 9500

// fanOut counts the copies of a message. fault.Invalid (FANOUT_TOO_LARGE) beyond maxCopies.
func (s *Tx) fanOut(d *mail.Draft, to []*recipient, answers *answer) error {
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
func (s *Tx) reach(names []string) error {
	if s.audience != nil || s.overfull {
		return nil // the broker sends its own copies in pages
	}
	copies := s.copies
	for _, name := range names {
		copies++
		if s.known[mail.AgentRef(name)] == nil {
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
		"the messages up to this one, which has %d recipients, make more than %d copies, "+
			"each recipient and message counted as two more: "+
			"send fewer messages in a call, or to fewer agents", recipients, maxCopies).
		With("limit", strconv.Itoa(maxCopies)).With("recipients", strconv.Itoa(recipients))
}

// MailboxFull refuses a message that must get somewhere and gets nowhere.
func MailboxFull(to mail.Target, limit int64) error {
	e := fault.New(fault.Exhausted, "MAILBOX_FULL",
		"no agent received the message: every mailbox that %s means is full, with %d waiting "+
			"(session setting mailbox_limit)", to, limit)
	e.RetryAfter = time.Second // a consumer may have taken a message by then
	return e.With("limit", "mailbox_limit").With("mailbox_limit", strconv.FormatInt(limit, 10))
}
