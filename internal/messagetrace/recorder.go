package messagetrace

import (
	"slices"
	"strconv"
	"strings"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/tracing"
)

// Attributes of spans: first those of OpenTelemetry's conventions for messaging, then the broker's.
const (
	system        = "messaging.system"
	operationName = "messaging.operation.name"
	operationType = "messaging.operation.type"
	destination   = "messaging.destination.name"
	messageID     = "messaging.message.id"
	clientID      = "messaging.client.id" // an agent
	sessionName   = "brokerd.session"
	messageType   = "messaging.brokerd.message.type"
	revision      = "messaging.brokerd.message.revision"
	recipients    = "messaging.brokerd.message.recipients"
	messageSender = "messaging.brokerd.message.sender"
	claimID       = "messaging.brokerd.claim.id"
	claimAttempt  = "messaging.brokerd.claim.attempt"
	claimOutcome  = "messaging.brokerd.claim.outcome"
)

// A Recorder makes the spans of messages and claims. Its methods may be called concurrently.
type Recorder struct {
	tracer *tracing.Tracer
	dir    *directory.Directory
	clock  clockwork.Clock
}

// New returns a recorder that exports spans with the tracer.
func New(tracer *tracing.Tracer, dir *directory.Directory, clock clockwork.Clock) *Recorder {
	return &Recorder{tracer: tracer, dir: dir, clock: clock}
}

// Begin implements router.Tracer. The doc of the package says which span is the parent.
func (r *Recorder) Begin(
	tx *store.Tx, a *mail.Actor, from *router.Origin, d *mail.Draft, answered *mail.Message,
) (*mail.Draft, *tracing.Span, error) {
	span := &tracing.Span{Kind: tracing.Producer, Start: tx.Now()}
	if from != nil {
		span.Parent, span.Start = from.Parent, from.At
	}
	if named, ok := contextOf(d.Content); ok {
		span.Parent = named
	}
	if !span.Parent.Valid() && answered != nil {
		var err error
		if span.Parent, err = continued(tx, a, answered); err != nil {
			return nil, nil, err
		}
	}
	span.Context = r.tracer.Child(span.Parent)
	c, added := *d, content.Added{TraceParent: span.Context.String()}
	c.Content = slices.Concat(d.Content, added.Marshal())
	return &c, span, nil
}

// continued returns the span that a reply to a message continues: that of the actor's claim, or that of the message if
// the actor has not claimed it.
func continued(tx *store.Tx, a *mail.Actor, m *mail.Message) (tracing.Context, error) {
	parent, ok := contextOf(m.Content)
	if !ok {
		return parent, nil
	}
	d := mail.DeliveryID{Message: m.Revision}
	var claim int
	rows := tx.Query(selectClaimOf, m.Revision, a.Session.ID, a.Name)
	if rows.Next() {
		if err := rows.Scan(&d.Mailbox, &claim); err != nil {
			return parent, err
		}
		parent = claimContext(parent, d, claim)
	}
	return parent, rows.Close()
}

// Sent implements router.Tracer.
func (r *Recorder) Sent(tx *store.Tx, a *mail.Actor, span *tracing.Span, d *mail.Draft, out router.Outcome) {
	if !span.Context.Sampled {
		return
	}
	operation := "send"
	if d.ReplyTo.Revision != 0 {
		operation = "reply"
	}
	to := d.Target.String()
	span.Name = operation + " " + to
	span.Attributes = []tracing.Attribute{
		{Key: system, Value: "brokerd"}, {Key: operationName, Value: operation}, {Key: operationType, Value: "send"},
		{Key: destination, Value: to}, {Key: messageID, Value: out.ID.String()},
		{Key: clientID, Value: a.Name}, {Key: sessionName, Value: a.Session.Name},
		{Key: messageType, Value: d.Type}, {Key: revision, Value: int(out.Revision)}, {Key: recipients, Value: out.Count},
	}
	tx.OnCommit(func() {
		span.End = r.clock.Now()
		r.tracer.Record(*span)
	})
}

// Ended implements broker.Tracer.
func (r *Recorder) Ended(tx *store.Tx, end broker.ClaimEnd) error {
	var id, stored []byte
	var sender, kind, holder string
	var box mail.MailboxRef
	var boxKind int
	err := tx.QueryRow(selectClaimed, end.Delivery.Mailbox, end.Holder, end.Delivery.Message).
		Scan(&id, &sender, &kind, &stored, &boxKind, &box.Name, &holder)
	if err != nil {
		return err
	}
	parent, _ := contextOf(stored)
	if !parent.Sampled {
		return nil
	}
	session := end.Session
	if session.Name == "" { // the broker itself ends the claim
		if session, err = r.dir.ByID(tx, session.ID); err != nil {
			return err
		}
	}
	box.Kind = mail.MailboxKind(boxKind)
	outcome := outcomeOf(&end)
	span := tracing.Span{
		Context: claimContext(parent, end.Delivery, end.Claim), Parent: parent,
		Name: "process " + box.String(), Kind: tracing.Consumer, Start: end.ClaimedAt, End: tx.Now(),
		Attributes: []tracing.Attribute{
			{Key: system, Value: "brokerd"}, {Key: operationName, Value: "process"}, {Key: operationType, Value: "process"},
			{Key: destination, Value: box.String()}, {Key: messageID, Value: msgid.ID(id).String()},
			{Key: clientID, Value: holder}, {Key: sessionName, Value: session.Name},
			{Key: messageType, Value: kind}, {Key: revision, Value: int(end.Delivery.Message)},
			{Key: messageSender, Value: sender},
			{Key: claimID, Value: msgid.ClaimID(end.Delivery.Message, end.Claim)},
			{Key: claimAttempt, Value: end.Attempt}, {Key: claimOutcome, Value: outcome},
		},
	}
	if outcome == retried || end.State == mail.Dead {
		span.Failure = "nacked"
		if end.RanOut {
			span.Failure = "claim_ran_out"
		}
	}
	tx.OnCommit(func() { r.tracer.Record(span) })
	return nil
}

// Outcomes of a claim that leave its delivery waiting.
const (
	retried  = "retried"
	released = "released"
)

// outcomeOf names what became of a claim.
func outcomeOf(end *broker.ClaimEnd) string {
	switch {
	case !end.State.Waits():
		return strings.ToLower(end.State.String())
	case end.Failed:
		return retried
	}
	return released
}

// OfClaim returns the traceparent of a claim's span; empty if nothing is traced.
func (r *Recorder) OfClaim(c *broker.Claim) string {
	if r == nil {
		return ""
	}
	parent, ok := contextOf(c.Content)
	if !ok {
		return ""
	}
	return claimContext(parent, c.DeliveryID(), c.Number).String()
}

// contextOf returns the span of a message.
func contextOf(stored []byte) (tracing.Context, bool) {
	return tracing.Parse(content.Text(stored, content.TraceParent))
}

// claimContext returns the span of a claim of a message with the span parent.
func claimContext(parent tracing.Context, d mail.DeliveryID, claim int) tracing.Context {
	return parent.Derive(msgid.ClaimID(d.Message, claim) + "@" + strconv.FormatInt(d.Mailbox, 10))
}

const (
	selectClaimed = `
		SELECT m.id, m.sender, m.type, m.content, b.kind, b.name, h.name
		FROM messages m JOIN mailboxes b ON b.id = ? JOIN mailboxes h ON h.id = ?
		WHERE m.revision = ?`
	selectClaimOf = `
		SELECT d.mailbox, d.claims
		FROM deliveries d JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ? AND d.claims > 0 AND d.state IN (2, 5) AND h.session = ? AND h.kind = 1 AND h.name = ?
		LIMIT 1`
)
