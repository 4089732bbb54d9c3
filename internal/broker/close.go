package broker

import (
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// closedPage is how many deliveries one function cancels.
const closedPage = 200

// A closingStep cancels the unfinished deliveries of a closed session that are in some states.
type closingStep struct {
	name   string
	query  string // empty = the departures, which have no deliveries
	claims bool   // those that agents have claimed
	waits  bool   // those that count as waiting in their mailboxes
}

// closingSteps come in this order: departures end first, because the rest cancels what they would
// dead-letter; what leaves the states of one step meanwhile, because a claim runs
// out or a delay ends, comes into those of a later one.
var closingSteps = [...]closingStep{
	{name: ""},
	{name: "claims", query: selectClosedClaims, claims: true},
	{name: "ordered", query: selectClosedOrdered, waits: true},
	{name: "delayed", query: selectClosedDelayed, waits: true},
	{name: "ready", query: selectClosedReady, waits: true},
	{name: "notices", query: selectClosedNotices},
}

// lastClosingStep settles the questions.
const lastClosingStep = "questions"

// SessionClosed ends what happens in a session that is closed: streams and waiting calls end, and what
// is unfinished is CANCELLED. If that is more than a page, the backlog does the rest: until then,
// messages that are not yet CANCELLED can be read, and no call changes them, since every call refuses
// the session. It is a hook of the closing.
func (b *Broker) SessionClosed(tx *store.Tx, session Session) error {
	tx.Exec(deleteRerank, session.ID)
	b.Waiters.dismissSession(tx, session.ID, ErrSessionClosed(session.Name))
	tx.OnCommit(b.Waiters.signalAll) // the readers of the session end
	_, err := b.Chores.rows.Do(tx, work.Chore{Kind: closeChore, Session: session.ID})
	return err
}

// closeFurther cancels the next page of what is unfinished in a closed session, and reports whether
// there may be more.
func (q *Chores) closeFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	room := closedPage
	for i, step := range closingSteps {
		if step.name != c.Text {
			continue
		}
		n, err := q.closeStep(tx, c, step, room)
		if err != nil || n == room {
			return true, err
		}
		room -= n
		c.After, c.Text = 0, lastClosingStep
		if i+1 < len(closingSteps) {
			c.Text = closingSteps[i+1].name
		}
	}
	n, err := tx.ExecCount(settleQuestions, tx.Now(), c.Session, room)
	return n == int64(room), err
}

// closeStep cancels up to limit deliveries of a step, and returns how many there were.
func (q *Chores) closeStep(tx *store.Tx, c *work.Chore, step closingStep, limit int) (int, error) {
	if step.query == "" {
		n, err := tx.ExecCount(deleteDepartures, c.Session, limit)
		return int(n), err
	}
	keys, err := store.Collect(tx.Query(step.query, c.Session, c.After, limit), func(r *store.Rows) (k key, err error) {
		return k, r.Scan(&k.message, &k.mailbox, &c.After)
	})
	if err != nil {
		return 0, err
	}
	if step.claims {
		s := SettleTx{Broker: q.broker, tx: tx, actor: system(c.Session)}
		if err := s.traceClosed(keys); err != nil {
			return 0, err
		}
		tx.OnCommit(func() {
			for _, k := range keys {
				q.broker.Running.ends.Remove(k)
			}
		})
	}
	left := tally{}
	for _, k := range keys {
		tx.Exec(cancelClosed, tx.Now(), k.message, k.mailbox)
		tx.Exec(deleteResend, k.message, k.mailbox)
		if step.waits {
			left[k.mailbox]--
		}
	}
	left.flush(tx)
	return len(keys), nil
}

// ErrSessionClosed is the error of a change in a closed session.
func ErrSessionClosed(name string) error {
	return fault.New(fault.Precondition, "SESSION_CLOSED",
		"the session %q is closed: it can be read, exported and deleted, and nothing in it changes any more", name)
}
