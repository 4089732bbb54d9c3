package broker

import (
	"context"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A Summary is what an agent has before it. Its own mailbox is counted as Receive shows it: without what is not due yet.
type Summary struct {
	Total, Unread int64
	Claimable     int64 // in its role's and channels' queues, too
	Claimed       int64
	ByPriority    []Count[int]    // highest first
	ByType        []Count[string] // most frequent first, at most maxTypes
	Oldest        time.Time       // when the oldest unfinished message was sent; zero = there is none
	Asked, Owed   []Question      // at most maxQuestions
	Directives    []Message       // oldest first, at most maxDirectives and maxAnswer bytes
	Halted        bool
	BreakerUntil  time.Time // zero = closed
	Revision      int64     // what this is true at
}

// A Count counts the deliveries of one kind.
type Count[K any] struct {
	Of K
	N  int64
}

// Summary returns what the calling agent has before it. Errors: fault.Precondition without a registered agent.
func (b *Broker) Summary(ctx context.Context, c caller.Caller) (Summary, error) {
	var sum Summary
	err := b.store.Read(ctx, func(s *store.Snapshot) error {
		sum = Summary{Revision: s.Revision()}
		a, err := b.acting(s, c)
		if err != nil {
			return err
		}
		if a.system() {
			return fault.New(fault.Precondition, "AGENT_REQUIRED",
				"a summary is of an agent's inbox: name the agent (brokerctl --agent NAME, metadata brokerd-agent)")
		}
		if a.mailbox, err = b.findMailbox(s, a.session.ID, mailboxRef{agentBox, a.Name}); err != nil {
			return err
		}
		if _, sum.Claimable, err = b.Counts(s, a.session.ID, a.Agent); err != nil {
			return err
		}
		if err := s.QueryRow(selectSummary, a.mailbox).Scan(&sum.Total, &sum.Unread, &sum.Oldest, &sum.Claimed); err != nil {
			return err
		}
		if sum.ByPriority, err = counts[int](s.Query(countByPriority, a.mailbox)); err != nil {
			return err
		}
		if sum.ByType, err = counts[string](s.Query(countByType, a.mailbox, maxTypes)); err != nil {
			return err
		}
		now := b.clock.Now()
		if sum.Asked, err = readQuestions(s.Query(selectAsked, a.session.ID, a.Name, maxQuestions), now); err != nil {
			return err
		}
		if sum.Owed, err = readQuestions(s.Query(selectOwed, a.session.ID, a.Name, a.mailbox, maxQuestions), now); err != nil {
			return err
		}
		if sum.Directives, err = unfinishedDirectives(s, a.mailbox); err != nil {
			return err
		}
		g, err := readGate(s, a.mailbox)
		sum.Halted, sum.BreakerUntil = g.halted, g.until
		return err
	})
	return sum, err
}

// counts reads pairs of a kind and a number.
func counts[K any](rows *store.Rows) ([]Count[K], error) {
	var all []Count[K]
	for rows.Next() {
		var c Count[K]
		if err := rows.Scan(&c.Of, &c.N); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}

// unfinishedDirectives returns those in an agent's mailbox.
func unfinishedDirectives(q store.Querier, mailbox int64) ([]Message, error) {
	var found []Message
	rows := q.Query(selectDirectives, mailbox, int64(directiveRank), maxDirectives)
	for bytes := 0; rows.Next(); {
		m, _, err := scanInbox(rows)
		if err != nil {
			return nil, err
		}
		if bytes += len(m.Content); bytes > maxAnswer && len(found) > 0 {
			break
		}
		found = append(found, m.Message)
	}
	return found, rows.Close()
}
