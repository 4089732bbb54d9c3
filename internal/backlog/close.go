package backlog

import (
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
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
	{name: "ordered", query: selectClosedBlocked, waits: true}, // blocked: the name is in rows of older versions
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
func (q *Chores) SessionClosed(tx *store.Tx, session directory.Session) error {
	tx.Exec(deleteRerank, session.ID)
	q.core.DismissSession(tx, session.ID, fault.SessionClosed(session.Name))
	_, err := q.rows.Do(tx, work.Chore{Kind: closeChore, Session: session.ID})
	return err
}

// closeFurther cancels the next page of what is unfinished in a closed session, and reports whether
// there may be more.
func (q *Chores) closeFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	left := closedPage
	for i, step := range closingSteps {
		if step.name != c.Text {
			continue
		}
		n, err := q.closeStep(tx, c, step, left)
		if err != nil || n == left {
			return true, err
		}
		left -= n
		c.After, c.Text = 0, lastClosingStep
		if i+1 < len(closingSteps) {
			c.Text = closingSteps[i+1].name
		}
	}
	n, err := tx.ExecCount(settleQuestions, tx.Now(), c.Session, left)
	return n == int64(left), err
}

// closeStep cancels up to limit deliveries of a step, and returns how many there were.
func (q *Chores) closeStep(tx *store.Tx, c *work.Chore, step closingStep, limit int) (int, error) {
	if step.query == "" {
		n, err := tx.ExecCount(deleteDepartures, c.Session, limit)
		return int(n), err
	}
	rows := tx.Query(step.query, c.Session, c.After, limit)
	keys, err := store.Collect(rows, func(r *store.Rows) (k mail.DeliveryID, err error) {
		return k, r.Scan(&k.Message, &k.Mailbox, &c.After)
	})
	if err != nil {
		return 0, err
	}
	if step.claims {
		if err := q.core.Running.Forget(tx, c.Session, keys); err != nil {
			return 0, err
		}
	}
	left := mail.Tally{}
	for _, k := range keys {
		tx.Exec(cancelClosed, tx.Now(), k.Message, k.Mailbox)
		tx.Exec(deleteResend, k.Message, k.Mailbox)
		if step.waits {
			left[k.Mailbox]--
		}
	}
	left.Flush(tx)
	return len(keys), nil
}
