package conversations

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// The writer function that sends a reply assigns it to the waiting call: it notes the reply as finished and
// removes the call from the list. A call whose wait has ended removes itself from the list in the writer, and then
// checks again for a reply. So a reply is either the call's or ordinary mail, and the writer's order decides which.
//
// A cancelled call cannot return a reply. If the writer has already assigned a reply to it, the call delivers that
// reply to the asking agent's mailbox, unless the agent has retried the question.

// A call waits for the reply to a question.
type call struct {
	question int64
	session  int64
	agent    string
	result   chan verdict // capacity 1
	over     atomic.Bool  // its wait has ended
}

// A verdict ends a wait: with a reply, or without one, because none can come any more or the asker has failed or
// deregistered.
type verdict struct {
	reply *mail.Message
	none  NoReply
	err   error
	share *sharedReply
}

// send sends the verdict to calls, which are no longer on the list.
func (v verdict) send(calls []*call) {
	v.share = &sharedReply{}
	v.share.left.Store(int32(len(calls)))
	for _, c := range calls {
		c.result <- v
	}
}

// A sharedReply counts the calls that have received the same reply.
type sharedReply struct {
	left     atomic.Int32 // that have not yet returned
	returned atomic.Bool  // one of them has returned the reply
}

// leave notes that a call returns, with the reply or without it. It reports whether the call is the last one and
// no call has returned the reply.
func (s *sharedReply) leave(withReply bool) (lost bool) {
	if withReply {
		s.returned.Store(true)
	}
	return s.left.Add(-1) == 0 && !s.returned.Load()
}

// list adds a call to the list of those that wait for the reply to a question.
func (r *Registry) list(tx *store.Tx, a mail.Actor, question int64) *call {
	c := &call{question: question, session: a.Session.ID, agent: a.Name, result: make(chan verdict, 1)}
	r.calls.Set(tx, question, append(slices.Clip(r.calls.Get(question)), c))
	return c
}

// waitingFor returns the calls that wait for the reply to a question.
func (r *Registry) waitingFor(question int64) []*call {
	var waiting []*call
	for _, c := range r.calls.Get(question) {
		if !c.over.Load() {
			waiting = append(waiting, c)
		}
	}
	return waiting
}

// unlist removes a call from the list.
func (r *Registry) unlist(tx *store.Tx, c *call) {
	rest := slices.DeleteFunc(slices.Clone(r.calls.Get(c.question)), func(o *call) bool { return o == c })
	if len(rest) == 0 {
		r.calls.Delete(tx, c.question)
	} else {
		r.calls.Set(tx, c.question, rest)
	}
}

// endWaits removes the calls that wait for the reply to a question from the list, and sends them v after the
// commit. waiting are the calls that waitingFor has found. The wait of some of them may have ended since; they check
// again for a verdict.
func (r *Registry) endWaits(tx *store.Tx, question int64, waiting []*call, v verdict) {
	if len(waiting) == 0 {
		return
	}
	r.calls.Delete(tx, question)
	tx.OnCommit(func() { v.send(waiting) })
}

// endCalls ends the calls of an agent, or of a whole session, with an error.
func (r *Registry) endCalls(tx *store.Tx, session int64, agent string, err error) {
	for question, calls := range r.calls.All() {
		c := calls[0] // all of one question are the asker's
		if c.session == session && (agent == "" || c.agent == agent) {
			r.endWaits(tx, question, r.waitingFor(question), verdict{err: err})
		}
	}
}

// await waits until the question is settled, or for as long as the caller wants to.
func (r *Registry) await(ctx context.Context, c *call, wait time.Duration) (verdict, error) {
	timer := r.clock.NewTimer(wait)
	defer timer.Stop()
	var v verdict
	var err error
	select {
	case v = <-c.result:
	case <-timer.Chan():
	case <-r.broker.Stopping():
		err = fault.Stopping()
	case <-ctx.Done():
	}
	if v.share == nil {
		c.over.Store(true)
		drained := r.store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			r.unlist(tx, c)
			return nil
		})
		// A reply that was sent before has reached c.result. A later reply finds no call on the list.
		select {
		case v = <-c.result:
		default:
			if err == nil {
				err = drained
			}
		}
	}
	broken := ctx.Err()
	if v.share != nil {
		err = v.err
		if lost := v.share.leave(v.reply != nil && broken == nil); lost && v.reply != nil {
			r.putBack(c, v.reply)
		}
	}
	if broken != nil {
		return verdict{}, broken
	}
	return v, err
}

// putBack turns a reply into ordinary mail that was assigned to a call that was cancelled.
func (r *Registry) putBack(c *call, reply *mail.Message) {
	err := r.store.Drain(context.Background(), func(tx *store.Tx) error {
		session, err := r.dir.ByID(tx, c.session)
		if err != nil || session.Closed() {
			return err
		}
		agent, found, err := r.dir.Find(tx, c.session, c.agent)
		if c.agent == identity.System {
			agent, found = directory.Agent{Name: identity.System}, true
		}
		if err != nil || !found {
			return err
		}
		a := mail.Actor{Agent: agent, Session: session}
		own := mail.AgentRef(c.agent)
		if a.Mailbox, err = r.broker.Mailboxes.Find(tx, c.session, own); err != nil {
			return err
		}
		var rank int64
		var expires time.Time
		err = tx.QueryRow(selectAwaited, c.question, reply.Revision, a.Mailbox).Scan(&rank, &expires)
		if errors.Is(err, store.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		arrival, err := r.resent(tx, mail.System(c.session), reply.Revision, []string{c.agent})
		if err != nil {
			return err
		}
		tx.Exec(updateUnawaited, arrival, reply.Revision, a.Mailbox)
		s := r.broker.NewSettleTx(tx, a)
		s.Wait(a.Mailbox, mail.Pending, rank, reply.Revision)
		s.Expire(expires)
		_, err = s.Finish()
		return err
	})
	if err != nil {
		r.zap.Warn("a reply whose asker broke off was not put into its mailbox; "+
			"asking again under the same request id returns it",
			zap.Int64("reply", reply.Revision), zap.Error(err))
	}
}
