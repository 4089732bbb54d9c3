package broker

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
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
			err = q.broker.failAll(c.id)
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
