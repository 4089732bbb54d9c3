package broker

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/tracing"
)

// A Tracer makes spans of messages and claims. The broker calls its methods in the writer.
type Tracer interface {
	// Begin begins the span of a draft that an actor sends. It returns the span, and the draft with this span in its
	// content in place of its sender's. from is nil if the broker itself sends; answered is nil if the draft answers
	// no message.
	Begin(tx *store.Tx, a *Actor, from *Origin, d *Draft, answered *Message) (*Draft, *tracing.Span, error)
	// Sent records the span of a draft that was sent, once that is committed.
	Sent(tx *store.Tx, a *Actor, span *tracing.Span, d *Draft, out Outcome)
	// Ended records the span of a claim, from the claim to its end, once the end is committed.
	Ended(tx *store.Tx, end ClaimEnd) error
}

// An Origin says where the messages of a call come from.
type Origin struct {
	Parent tracing.Context // the caller's span; the zero Context if the call names none
	At     time.Time       // when the broker received them
}

// A ClaimEnd says how a claim ends.
type ClaimEnd struct {
	Delivery  DeliveryID
	Holder    int64 // the mailbox of the agent that holds the claim
	Claim     int   // the number of the claim
	Attempt   int   // which attempt it is, from 1
	ClaimedAt time.Time
	Session   directory.Session // its id alone if the broker itself ends the claim
	State     State             // of the delivery from now on
	Failed    bool              // the attempt counts as a failed one
	RanOut    bool
}

// Traces knows who traces messages.
type Traces struct {
	clock  clockwork.Clock
	tracer Tracer // nil = nothing is traced
}

// Use makes the broker trace messages. Call it before the broker is used.
func (t *Traces) Use(tracer Tracer) { t.tracer = tracer }

// Origin returns the origin of what a call sends; nil if the broker traces nothing.
func (t *Traces) Origin(ctx context.Context) *Origin {
	if t.tracer == nil {
		return nil
	}
	return &Origin{tracing.FromContext(ctx), t.clock.Now()}
}

// traceEnd traces a claim that ends because its delivery goes to a state, with so many attempts.
func (s *SettleTx) traceEnd(h *held, state State, attempts int) error {
	t := s.Traces.tracer
	if t == nil || h.state != Claimed {
		return nil
	}
	return t.Ended(s.tx, ClaimEnd{
		Delivery: h.id(), Holder: h.holder, Claim: h.claims, Attempt: h.attempts + 1, ClaimedAt: h.claimedAt,
		Session: s.actor.Session, State: state, Failed: attempts > h.attempts, RanOut: s.why == RanOut,
	})
}

// traceClosed traces claims that end with their session.
func (s *SettleTx) traceClosed(claims []key) error {
	if s.Traces.tracer == nil {
		return nil
	}
	for _, k := range claims {
		h, _, err := claimedDelivery(s.tx, k)
		if err != nil {
			return err
		}
		if err := s.traceEnd(h, Cancelled, h.attempts); err != nil {
			return err
		}
	}
	return nil
}
