package broker

import (
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Tracer makes spans of claims. The broker calls its method in the writer.
type Tracer interface {
	// Ended records the span of a claim, from the claim to its end, once the end is committed.
	Ended(tx *store.Tx, end ClaimEnd) error
}

// UseTracer makes the broker trace claims. Call it before the broker is used.
func (b *Broker) UseTracer(t Tracer) { b.tracer = t }

// A ClaimEnd says how a claim ends.
type ClaimEnd struct {
	Delivery  mail.DeliveryID
	Holder    int64 // the mailbox of the agent that holds the claim
	Claim     int   // the number of the claim
	Attempt   int   // which attempt it is, from 1
	ClaimedAt time.Time
	Session   directory.Session // its id alone if the broker itself ends the claim
	State     mail.State        // of the delivery from now on
	Failed    bool              // the attempt counts as a failed one
	RanOut    bool
}

// traceEnd traces a claim that ends because its delivery goes to a state, with so many attempts.
func (s *SettleTx) traceEnd(h *held, state mail.State, attempts int) error {
	if s.tracer == nil || h.state != mail.Claimed {
		return nil
	}
	return s.tracer.Ended(s.tx, ClaimEnd{
		Delivery: h.DeliveryID, Holder: h.holder, Claim: h.claims, Attempt: h.attempts + 1, ClaimedAt: h.claimedAt,
		Session: s.actor.Session, State: state, Failed: attempts > h.attempts, RanOut: s.why == RanOut,
	})
}

// traceClosed traces claims that end with their session.
func (s *SettleTx) traceClosed(claims []mail.DeliveryID) error {
	if s.tracer == nil {
		return nil
	}
	for _, k := range claims {
		h, _, err := claimedDelivery(s.tx, k)
		if err != nil {
			return err
		}
		if err := s.traceEnd(h, mail.Cancelled, h.attempts); err != nil {
			return err
		}
	}
	return nil
}
