package broker

import (
	"context"
	"time"

	"brokerd/internal/store"
)

const (
	// failurePage is how many claims of an agent that has failed, or claims that ran out, one function
	// ends. Until the backlog has ended the others, their holder can neither settle nor claim them.
	failurePage = 200
	// mostLost is how many claims AgentFailed reports.
	mostLost = 5000
)

// A failure is an agent whose lease ended while it held more claims than one function ends.
type failure struct {
	session int64
	name    string
	at      time.Time
}

// AgentFailed takes from an agent whose lease is over what it holds: its claims go back as failed
// attempts, which count as one failure for its circuit breaker, and its streams and waiting calls end.
// Its mail and subscriptions stay. If it has more claims than failurePage, the backlog ends the rest;
// if the broker stops meanwhile, these run out by themselves. AgentFailed returns the ids of the claims,
// at most mostLost. It is a hook of the failing.
func (b *Broker) AgentFailed(tx *store.Tx, session Session, agent Agent) ([]Ref, error) {
	b.endAsks(tx, session.ID, agent.Name, errFailed(agent.Name))
	mailbox, err := b.findMailbox(tx, session.ID, mailboxRef{agentBox, agent.Name})
	if err != nil || mailbox == 0 {
		return nil, err
	}
	b.dismiss(tx, mailbox, errFailed(agent.Name)) // before what it held is delivered again
	claims, err := heldBy(tx, mailbox, tx.Latest(), mostLost)
	if err != nil {
		return nil, err
	}
	f := failure{session.ID, agent.Name, tx.Latest()}
	s := settling{Broker: b, tx: tx, actor: system(session.ID), left: tally{}, why: RanOut}
	if err := s.failClaims(claims[:min(len(claims), failurePage)], f); err != nil {
		return nil, err
	}
	lost := make([]Ref, 0, len(claims))
	keys := make([]key, 0, len(claims))
	for _, h := range claims {
		if !b.failed(h) { // then it was reported before
			lost = append(lost, Ref{Text: h.claimID(), Revision: h.message, Claim: h.claims})
			keys = append(keys, h.key)
		}
	}
	if len(keys) > 0 {
		if err := b.strike(tx, session.ID, mailbox, keys...); err != nil {
			return nil, err
		}
	}
	if len(claims) > failurePage {
		tx.OnCommit(func() { b.failures[mailbox] = f })
		b.later(tx, chore{failChore, mailbox})
	}
	s.ready.seen(mailbox) // its readers check whether they may continue
	_, err = s.finish(nil)
	return lost, err
}

// failed reports whether a claim is one that its holder has lost because it failed, and that the backlog
// has not ended yet.
func (b *Broker) failed(h *held) bool {
	f, known := b.failures[h.holder]
	return known && h.claimedAt.Before(f.at)
}

// failClaims ends claims of an agent that has failed.
func (s *settling) failClaims(claims []*held, f failure) error {
	for _, h := range claims {
		if _, _, err := s.fail(h, f.name+" failed: its lease was over", false, nil); err != nil {
			return err
		}
	}
	return nil
}

// failAll ends the claims that an agent had when it failed, one page per function, unless the broker
// stops.
func (b *Broker) failAll(mailbox int64) error {
	for more := true; more && !b.isStopping(); {
		err := b.store.Drain(context.Background(), func(tx *store.Tx) (err error) {
			more, err = b.failFurther(tx, mailbox)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// failFurther ends the next page of claims that an agent had when it failed, and reports whether there
// may be more.
func (b *Broker) failFurther(tx *store.Tx, mailbox int64) (more bool, err error) {
	f, known := b.failures[mailbox]
	if !known {
		return false, nil
	}
	claims, err := heldBy(tx, mailbox, f.at, failurePage)
	if err != nil {
		return false, err
	}
	s := settling{Broker: b, tx: tx, actor: system(f.session), left: tally{}, why: RanOut}
	if err := s.failClaims(claims, f); err != nil {
		return false, err
	}
	if more = len(claims) == failurePage; !more {
		tx.OnCommit(func() { delete(b.failures, mailbox) })
	}
	_, err = s.finish(nil)
	return more, err
}
