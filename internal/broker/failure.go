package broker

import (
	"context"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

const (
	// failurePage is how many claims of an agent that has failed or stopped, or claims that ran out, one function
	// ends. Until later functions have ended the others, their holder can neither settle nor claim them.
	failurePage = 200
	// mostLost is how many claims AgentEnded reports.
	mostLost = 5000
)

// A failure is an agent that failed or stopped while it held more claims than one function ends.
type failure struct {
	session int64
	name    string
	at      time.Time // its claims are older
	stopped bool      // its program ended well
}

// Failures ends what agents hold that have failed or stopped.
type Failures struct {
	broker *Broker
	open   map[int64]failure      // unfinished, by mailbox; it belongs to the writer
	rest   *deadline.Queue[int64] // ends what is left of them
}

func newFailures(b *Broker) *Failures {
	f := &Failures{broker: b, open: map[int64]failure{}}
	f.rest = deadline.New(b.clock, f.endRest)
	return f
}

// AgentEnded takes from an agent that has failed or stopped what it holds, and ends its streams and
// waiting calls. Its mail and subscriptions stay. The claims of one that has failed go back as failed
// attempts, which count as one failure for its circuit breaker; the claims of one that has stopped go
// back uncounted. If there are more than failurePage, later functions end the rest; if the broker stops
// meanwhile, these run out by themselves. AgentEnded returns the claims, at most mostLost.
// It is a hook of the agent's end.
func (f *Failures) AgentEnded(tx *store.Tx, agent directory.Agent) ([]directory.Loss, error) {
	stopped := agent.Stopped()
	why := fault.AgentFailed(agent.Name)
	if stopped {
		why = fault.AgentStopped(agent.Name)
	}
	mailbox, err := f.broker.Mailboxes.Find(tx, agent.Session, mail.AgentRef(agent.Name))
	if err != nil || mailbox == 0 {
		return nil, err
	}
	f.broker.Waiters.dismissAgent(tx, mailbox, why) // before what it held is delivered again
	ended := "the agent has failed"
	if stopped {
		ended = "the agent has stopped"
	}
	if err := f.broker.offers.AgentEnded(tx, agent.Session, mailbox, agent.Name, ended); err != nil {
		return nil, err
	}
	end := failure{agent.Session, agent.Name, tx.Latest(), stopped}
	if stopped { // it may have claimed at this very moment
		end.at = end.at.Add(1)
	}
	claims, err := heldBy(tx, mailbox, end.at, mostLost)
	if err != nil {
		return nil, err
	}
	s := SettleTx{Broker: f.broker, tx: tx, actor: mail.System(agent.Session), left: mail.Tally{}, why: RanOut}
	if err := s.endClaims(claims[:min(len(claims), failurePage)], end); err != nil {
		return nil, err
	}
	lost := make([]directory.Loss, 0, len(claims))
	ids := make([]mail.DeliveryID, 0, len(claims))
	for _, h := range claims {
		if !f.lost(h) { // then it was reported before
			lost = append(lost, directory.Loss{Kind: directory.LostClaim, Name: h.claimID(), Revision: h.Message})
			ids = append(ids, h.DeliveryID)
		}
	}
	if len(ids) > 0 && !stopped {
		if err := f.broker.breakers.Failed(tx, agent.Session, mailbox, ids...); err != nil {
			return nil, err
		}
	}
	if len(claims) > failurePage {
		tx.OnCommit(func() {
			f.open[mailbox] = end
			f.rest.Set(mailbox, f.broker.clock.Now())
		})
	}
	f.broker.Waiters.Arrived(tx, mailbox) // its readers check whether they may continue
	_, err = s.Finish()
	return lost, err
}

// lost reports whether the holder of a claim has lost it because it failed or stopped, and no function has ended it
// yet.
func (f *Failures) lost(h *held) bool {
	end, known := f.open[h.holder]
	return known && h.claimedAt.Before(end.at)
}

// unfinished reports whether an agent has lost claims that are not ended yet.
func (f *Failures) unfinished(mailbox int64) bool {
	_, known := f.open[mailbox]
	return known
}

// endClaims ends claims of an agent that has failed or stopped.
func (s *SettleTx) endClaims(claims []*held, f failure) error {
	for _, h := range claims {
		var err error
		if f.stopped {
			_, err = s.release(h)
		} else {
			_, _, err = s.fail(h, f.name+" failed: its lease was over", false, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endRest ends what is left of the claims of agents.
func (f *Failures) endRest(mailboxes []int64) {
	for _, mailbox := range mailboxes {
		if err := f.endAll(mailbox); err != nil {
			f.rest.Set(mailbox, f.broker.clock.Now().Add(time.Second))
			f.broker.zap.Warn("a page of the backlog could not be written; trying again", zap.Error(err))
		}
	}
}

// endAll ends the claims that an agent had when it failed or stopped, one page per function, unless the broker stops.
func (f *Failures) endAll(mailbox int64) error {
	for more := true; more && !f.broker.isStopping(); {
		err := f.broker.store.Drain(context.Background(), func(tx *store.Tx) (err error) {
			more, err = f.endSome(tx, mailbox)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// endSome ends the next page of claims that an agent had when it failed or stopped, and reports whether there may be
// more.
func (f *Failures) endSome(tx *store.Tx, mailbox int64) (more bool, err error) {
	end, known := f.open[mailbox]
	if !known {
		return false, nil
	}
	claims, err := heldBy(tx, mailbox, end.at, failurePage)
	if err != nil {
		return false, err
	}
	s := SettleTx{Broker: f.broker, tx: tx, actor: mail.System(end.session), left: mail.Tally{}, why: RanOut}
	if err := s.endClaims(claims, end); err != nil {
		return false, err
	}
	if more = len(claims) == failurePage; !more {
		tx.OnCommit(func() { delete(f.open, mailbox) })
	}
	_, err = s.Finish()
	return more, err
}
