package broker

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/content"
	"brokerd/internal/tracing"
)

// Attributes of spans: first those of OpenTelemetry's conventions for messaging, then the broker's.
const (
	traceSystem        = "messaging.system"
	traceOperation     = "messaging.operation.name"
	traceOperationType = "messaging.operation.type"
	traceDestination   = "messaging.destination.name"
	traceMessageID     = "messaging.message.id"
	traceClient        = "messaging.client.id" // an agent
	traceSession       = "brokerd.session"
	traceType          = "messaging.brokerd.message.type"
	traceRevision      = "messaging.brokerd.message.revision"
	traceRecipients    = "messaging.brokerd.message.recipients"
	traceSender        = "messaging.brokerd.message.sender"
	traceClaimID       = "messaging.brokerd.claim.id"
	traceAttempt       = "messaging.brokerd.claim.attempt"
	traceOutcome       = "messaging.brokerd.claim.outcome"
)

// UseTracer makes the broker trace messages. Call it before the broker is used; without it, or with
// nil, the broker traces nothing.
func (b *Broker) UseTracer(t *tracing.Tracer) { b.tracer = t }

// An Origin says where the messages of a call come from.
type Origin struct {
	parent tracing.Context // the caller's span; the zero Context if the call names none
	at     time.Time       // when the broker received them
}

// Origin returns the origin of what a call sends; nil if the broker traces nothing.
func (b *Broker) Origin(ctx context.Context) *Origin {
	if b.tracer == nil {
		return nil
	}
	return &Origin{tracing.FromContext(ctx), b.clock.Now()}
}

// trace begins the span of a draft and returns it, with the draft that has this span in its content
// in place of its sender's. The parent of the span is, in this order: the span that the draft
// names, that of the call, that of the sender's claim of the message that the draft answers, or
// that of this message itself.
func (s *sending) trace(d *Draft, a *answer) (*Draft, *tracing.Span, error) {
	span := &tracing.Span{Kind: tracing.Producer, Start: s.tx.Now()}
	if s.origin != nil {
		span.Parent, span.Start = s.origin.parent, s.origin.at
	}
	if named, ok := contextOf(d.Content); ok {
		span.Parent = named
	}
	if !span.Parent.Valid() && a != nil {
		var err error
		if span.Parent, err = s.answered(&a.to); err != nil {
			return nil, nil, err
		}
	}
	span.Context = s.tracer.Child(span.Parent)
	c, added := *d, content.Added{TraceParent: span.Context.String()}
	c.Content = slices.Concat(d.Content, added.Marshal())
	return &c, span, nil
}

// answered returns the span that a reply to a message continues: that of the actor's claim, or that
// of the message if the actor has not claimed it.
func (s *sending) answered(m *Message) (tracing.Context, error) {
	parent, ok := contextOf(m.Content)
	if !ok {
		return parent, nil
	}
	var k key
	var number int
	rows := s.tx.Query(selectClaimOf, m.Revision, s.actor.Session.ID, s.actor.Name)
	if rows.Next() {
		if err := rows.Scan(&k.mailbox, &number); err != nil {
			return parent, err
		}
		k.message = m.Revision
		parent = claimContext(parent, k, number)
	}
	return parent, rows.Close()
}

// traceSent records the span of a message that was sent, once that is committed.
func (s *sending) traceSent(span *tracing.Span, d *Draft, out *Outcome) {
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
		{Key: traceSystem, Value: "brokerd"}, {Key: traceOperation, Value: operation}, {Key: traceOperationType, Value: "send"},
		{Key: traceDestination, Value: to}, {Key: traceMessageID, Value: out.ID.String()},
		{Key: traceClient, Value: s.actor.Name}, {Key: traceSession, Value: s.actor.Session.Name},
		{Key: traceType, Value: d.Type}, {Key: traceRevision, Value: int(out.Revision)}, {Key: traceRecipients, Value: out.Count},
	}
	s.tx.OnCommit(func() {
		span.End = s.clock.Now()
		s.tracer.Record(*span)
	})
}

// traceClaim records the span of a claim that ends, from the claim on, once that is committed.
func (s *SettleTx) traceClaim(h *held, outcome string) error {
	if s.tracer == nil || h.state != Claimed {
		return nil
	}
	var id, content []byte
	var sender, kind, holder string
	var box MailboxRef
	var boxType int
	err := s.tx.QueryRow(selectTraced, h.mailbox, h.holder, h.message).Scan(&id, &sender, &kind, &content, &boxType, &box.Name, &holder)
	if err != nil {
		return err
	}
	parent, _ := contextOf(content)
	if !parent.Sampled {
		return nil
	}
	session := s.actor.Session
	if session.Name == "" { // the broker itself ends the claim
		if session, err = s.dir.ByID(s.tx, session.ID); err != nil {
			return err
		}
	}
	box.Kind = MailboxKind(boxType)
	span := tracing.Span{
		Context: claimContext(parent, h.key, h.claims), Parent: parent, Name: "process " + box.String(), Kind: tracing.Consumer,
		Start: h.claimedAt, End: s.tx.Now(),
		Attributes: []tracing.Attribute{
			{Key: traceSystem, Value: "brokerd"}, {Key: traceOperation, Value: "process"}, {Key: traceOperationType, Value: "process"},
			{Key: traceDestination, Value: box.String()}, {Key: traceMessageID, Value: ID(id).String()},
			{Key: traceClient, Value: holder}, {Key: traceSession, Value: session.Name},
			{Key: traceType, Value: kind}, {Key: traceRevision, Value: int(h.message)}, {Key: traceSender, Value: sender},
			{Key: traceClaimID, Value: h.claimID()}, {Key: traceAttempt, Value: h.attempts + 1}, {Key: traceOutcome, Value: outcome},
		},
	}
	if outcome == outcomeRetried || outcome == outcomeOf(Dead) {
		span.Failure = "nacked"
		if s.why == RanOut {
			span.Failure = "claim_ran_out"
		}
	}
	s.tx.OnCommit(func() { s.tracer.Record(span) })
	return nil
}

// Outcomes of a claim that leave its delivery waiting.
const (
	outcomeRetried  = "retried"
	outcomeReleased = "released"
)

// outcome names what became of a claim whose delivery goes to another state with so many attempts.
func (h *held) outcome(state State, attempts int) string {
	switch {
	case !state.Waits():
		return outcomeOf(state)
	case attempts > h.attempts:
		return outcomeRetried
	}
	return outcomeReleased
}

// outcomeOf names the outcome of a claim whose delivery is finished.
func outcomeOf(state State) string { return strings.ToLower(state.String()) }

// traceClosed records the spans of claims that end with their session.
func (s *SettleTx) traceClosed(claims []key) error {
	if s.tracer == nil {
		return nil
	}
	for _, k := range claims {
		h, _, err := claimedDelivery(s.tx, k)
		if err != nil {
			return err
		}
		if err := s.traceClaim(h, outcomeOf(Cancelled)); err != nil {
			return err
		}
	}
	return nil
}

// ClaimTrace returns the traceparent of a claim's span; empty if the broker traces nothing.
func (b *Broker) ClaimTrace(c *Claim) string {
	if b.tracer == nil {
		return ""
	}
	parent, ok := contextOf(c.Content)
	if !ok {
		return ""
	}
	return claimContext(parent, c.key, c.Number).String()
}

// contextOf returns the span of a message.
func contextOf(stored []byte) (tracing.Context, bool) {
	return tracing.Parse(content.Text(stored, content.TraceParent))
}

// claimContext returns the span of a claim of a message with the span parent.
func claimContext(parent tracing.Context, k key, number int) tracing.Context {
	return parent.Derive(ClaimID(k.message, number) + "@" + strconv.FormatInt(k.mailbox, 10))
}
