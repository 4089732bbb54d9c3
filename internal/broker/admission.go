package broker

import (
	"context"

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
	Judge(session *Session, d *Draft) (doubts []string, err error)
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

// vacancy returns the warning about a role or channel that no agent has. It is empty if an agent has it.
func (s *sending) vacancy(ref MailboxRef) (string, error) {
	return s.advisor.Vacancy(s.tx, s.actor.Session.ID, ref)
}

// Admit returns when the caller may send one message. Errors: as Admission.Admit.
func (b *Broker) Admit(ctx context.Context, c identity.Caller) error {
	return b.admission.Admit(ctx, c, 1)
}
