package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A chore is a change of many deliveries that would stop the writer for too long in one function.
// Its first page is part of the change that causes it; the backlog does the rest, one page per
// function, between other work. A row says that a chore is not finished, so that the backlog
// resumes it after a restart.
type chore struct {
	kind choreKind
	id   int64
}

type choreKind int

const (
	rerankChore choreKind = iota // compute the ranks of a session again
	failChore                    // end the claims of an agent whose lease has expired; it has no row
)

// The kinds of chores that have a row in work_backlog.
const (
	// closeChore cancels what is unfinished in a closed session. Text is the step, and After the mailbox
	// at which it continues.
	closeChore = "close"
	// The rest of the copies of the message Item, which reports a change. Text is the last agent that has
	// its copy. Name is the role of a notice, or the agent that caused an event and receives no copy.
	noticeChore = "notice"
	eventChore  = "event"
	// The rest of the withdrawal of the messages about Item: see Moot. Name is the agent, Text the type.
	withdrawChore = "withdraw"
)

// Chores does what is left of changes that are too large for one function of the writer. Its methods may be called
// concurrently.
type Chores struct {
	broker *Broker
	queue  *deadline.Queue[chore]
	rows   *work.Backlog // the chores that have a row in work_backlog
}

func newChores(b *Broker, clock clockwork.Clock) *Chores {
	q := &Chores{broker: b}
	q.queue = deadline.New(clock, q.due)
	q.rows = work.NewBacklog(b.store, "broker", clock, b.zap, q.further)
	return q
}

// resume takes up the chores that were not finished when the broker stopped.
func (q *Chores) resume(s *store.Snapshot) error {
	now := q.broker.clock.Now()
	rows := s.Query(selectReranks)
	for rows.Next() {
		c := chore{kind: rerankChore}
		if err := rows.Scan(&c.id); err != nil {
			return err
		}
		q.queue.Set(c, now)
	}
	return rows.Err()
}

// isStopping reports whether the broker stops. A chore then ends after its page.
func (q *Chores) isStopping() bool {
	select {
	case <-q.broker.stopping:
		return true
	default:
		return false
	}
}

// later leaves the rest of a chore to the backlog once the transaction is committed.
func (q *Chores) later(tx *store.Tx, c chore) {
	tx.OnCommit(func() { q.queue.Set(c, q.broker.clock.Now()) })
}

// due works on chores until they are finished or the broker stops.
func (q *Chores) due(chores []chore) {
	for _, c := range chores {
		var err error
		switch c.kind {
		case rerankChore:
			err = q.rerank(c.id)
		case failChore:
			err = q.broker.Failures.endAll(c.id)
		}
		if err != nil {
			q.queue.Set(c, q.broker.clock.Now().Add(time.Second))
			q.broker.zap.Warn("a page of the backlog could not be written; trying again", zap.Error(err))
		}
	}
}

// further does the next page of a chore, and reports whether there may be more.
func (q *Chores) further(tx *store.Tx, c *work.Chore) (more bool, err error) {
	switch c.Kind {
	case noticeChore, eventChore:
		return q.copyFurther(tx, c)
	case withdrawChore:
		return q.withdrawFurther(tx, c)
	default:
		return q.closeFurther(tx, c)
	}
}

// AwaitClosed cancels what is still unfinished in a closed session, and returns when that is done.
func (q *Chores) AwaitClosed(ctx context.Context, session int64) error {
	return q.rows.FinishSession(ctx, session)
}

// ranksPage is how many ranks one function computes.
const ranksPage = 200

// SessionConfigured makes the ranks of a session follow its ageing. It is a hook of the configuration.
func (b *Broker) SessionConfigured(tx *store.Tx, before, now directory.Session) error {
	if now.Ageing == before.Ageing {
		return nil
	}
	keys, err := readKeys(tx.Query(selectRanked, now.ID, ranksPage+1))
	if err != nil {
		return err
	}
	if len(keys) > ranksPage {
		tx.Exec(upsertRerank, now.ID)
		b.Chores.later(tx, chore{rerankChore, now.ID})
		return nil
	}
	updateRanks(tx, now, keys)
	tx.Exec(deleteRerank, now.ID)
	b.Waiters.reread(tx, keys)
	return nil
}

// rerank computes the ranks of all that is unfinished in a session, one page per function, unless
// the broker stops. Until the last page, a mailbox has ranks by the old and by the new ageing:
// every delivery can be claimed, only the order is mixed.
//
// One snapshot names the deliveries, and a page finds each of them whatever its state is by then.
// Deliveries that are sent or redriven after the change have the new rank already.
func (q *Chores) rerank(session int64) error {
	var version int64
	var keys []key
	ctx := context.Background()
	err := q.broker.store.Read(ctx, func(s *store.Snapshot) (err error) {
		if err := s.QueryRow(selectRerank, session).Scan(&version); err != nil {
			return err
		}
		keys, err = readKeys(s.Query(selectRanked, session, noLimit))
		return err
	})
	if errors.Is(err, store.ErrNoRows) {
		return nil // the session has ended, or a later change did it all
	}
	if err != nil {
		return err
	}
	for page := range slices.Chunk(keys, ranksPage) {
		if q.isStopping() {
			return nil
		}
		if err := q.broker.store.Write(ctx, func(tx *store.Tx) error { return q.rerankPage(tx, session, page) }); err != nil {
			return err
		}
	}
	return q.broker.store.Write(ctx, func(tx *store.Tx) error {
		q.broker.Waiters.reread(tx, keys)
		tx.Exec(deleteRerankVersion, session, version)
		return nil
	})
}

// rerankPage computes some ranks by the ageing that the session has now.
func (q *Chores) rerankPage(tx *store.Tx, session int64, keys []key) error {
	now, err := q.broker.dir.ByID(tx, session)
	if errors.Is(err, store.ErrNoRows) {
		return nil // it is deleted
	}
	if err != nil {
		return err
	}
	updateRanks(tx, now, keys)
	return nil
}

func readKeys(rows *store.Rows) ([]key, error) {
	var keys []key
	for rows.Next() {
		var k key
		if err := rows.Scan(&k.message, &k.mailbox); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

func updateRanks(tx *store.Tx, session directory.Session, keys []key) {
	for _, k := range keys {
		tx.Exec(updateRank, session.Ageing, k.message, k.mailbox)
	}
}

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
func (b *Broker) SessionClosed(tx *store.Tx, session directory.Session) error {
	tx.Exec(deleteRerank, session.ID)
	b.Waiters.dismissSession(tx, session.ID, ErrSessionClosed(session.Name))
	tx.OnCommit(b.Waiters.signalAll) // the readers of the session end
	_, err := b.Chores.rows.Do(tx, work.Chore{Kind: closeChore, Session: session.ID})
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
