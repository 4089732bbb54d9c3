package broker

import (
	"time"

	"go.uber.org/zap"

	"brokerd/internal/store"
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

// resumeBacklog takes up the chores that were not finished when the broker stopped.
func (b *Broker) resumeBacklog(s *store.Snapshot) error {
	now := b.clock.Now()
	rows := s.Query(selectReranks)
	for rows.Next() {
		c := chore{kind: rerankChore}
		if err := rows.Scan(&c.id); err != nil {
			return err
		}
		b.backlog.Set(c, now)
	}
	return rows.Err()
}

// isStopping reports whether the broker stops. A chore then ends after its page.
func (b *Broker) isStopping() bool {
	select {
	case <-b.stopping:
		return true
	default:
		return false
	}
}

// later leaves the rest of a chore to the backlog once the transaction is committed.
func (b *Broker) later(tx *store.Tx, c chore) {
	tx.OnCommit(func() { b.backlog.Set(c, b.clock.Now()) })
}

// backlogDue works on chores until they are finished or the broker stops.
func (b *Broker) backlogDue(chores []chore) {
	for _, c := range chores {
		var err error
		switch c.kind {
		case rerankChore:
			err = b.rerank(c.id)
		case failChore:
			err = b.failAll(c.id)
		}
		if err != nil {
			b.backlog.Set(c, b.clock.Now().Add(time.Second))
			b.zap.Warn("a page of the backlog could not be written; trying again", zap.Error(err))
		}
	}
}
