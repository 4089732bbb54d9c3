package inbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

const (
	maxQuestions  = 100 // of a summary, by the agent and to it
	maxDirectives = 100 // of a summary
)

// A Summary describes the mail of an agent. It counts the own mailbox as Receive shows it, without
// notices and deliveries that are not due yet, and only the newest 1,000 deliveries of it.
// Claimable and Claimed end at MostCounted.
type Summary struct {
	Total, Unread int64
	Claimable     int64 // in its role's and channels' queues, too
	Claimed       int64
	ByPriority    []Count[int]    // highest first
	ByType        []Count[string] // most frequent first, at most MaxTypes
	Oldest        time.Time       // when the oldest unfinished message was sent; zero = there is none
	Asked, Owed   []mail.Question // at most maxQuestions
	Directives    []mail.Message  // oldest first, at most maxDirectives and MaxAnswer bytes
	Notices       int64           // unread, at most MostNotices
	Halted        bool
	BreakerUntil  time.Time // zero = closed
	Revision      int64     // of the state that this describes
}

// A Count counts the deliveries of one kind.
type Count[K any] struct {
	Of K
	N  int64
}

// Summary returns the summary of the mail of the calling agent, or of an operator without one. Errors:
// fault.Precondition if the agent is not registered.
func (r *Reader) Summary(ctx context.Context, c identity.Caller) (Summary, error) {
	var sum Summary
	err := r.store.Read(ctx, func(s *store.Snapshot) error {
		sum = Summary{Revision: s.Revision()}
		a, err := r.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err
		}
		own := mail.AgentRef(a.Name)
		if a.Mailbox, err = r.broker.Mailboxes.Find(s, a.Session.ID, own); err != nil {
			return err
		}
		if _, sum.Claimable, err = r.broker.Mailboxes.Counts(s, a.Session.ID, a.Agent); err != nil {
			return err
		}
		if err := sum.count(s, a.Mailbox); err != nil {
			return err
		}
		if sum.Notices, err = mail.CountNotices(s, a.Mailbox, "", mail.MostNotices); err != nil {
			return err
		}
		now := r.clock.Now()
		if sum.Asked, err = mail.OpenQuestions(s, a.Session.ID, a.Name, maxQuestions, now); err != nil {
			return err
		}
		if sum.Owed, err = mail.Owed(s, a.Session.ID, a.Name, a.Mailbox, maxQuestions, now); err != nil {
			return err
		}
		if sum.Directives, err = unfinishedDirectives(s, a.Mailbox); err != nil {
			return err
		}
		sum.Halted, sum.BreakerUntil, err = r.gates.HaltAndBreaker(s, a.Mailbox)
		return err
	})
	return sum, err
}

// count counts the deliveries in an agent's own mailbox, and its claims.
func (s *Summary) count(q store.Querier, mailbox int64) error {
	priorities, types := map[int]int64{}, map[string]int64{}
	rows := q.Query(selectSummary, mailbox, mail.MostCounted)
	for rows.Next() {
		var priority int
		var kind string
		var n, unread int64
		var oldest time.Time
		if err := rows.Scan(&priority, &kind, &n, &unread, &oldest); err != nil {
			return err
		}
		s.Total += n
		s.Unread += unread
		s.Oldest = broker.Earliest(s.Oldest, oldest)
		priorities[priority] += n
		types[kind] += n
	}
	if err := rows.Err(); err != nil {
		return err
	}
	s.ByPriority = counts(priorities, func(a, b Count[int]) int { return cmp.Compare(b.Of, a.Of) })
	s.ByType = counts(types, func(a, b Count[string]) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Of, b.Of))
	})
	s.ByType = s.ByType[:min(len(s.ByType), mail.MaxTypes)]
	if s.Total == mail.MostCounted {
		var first time.Time
		if err := q.QueryRow(selectFirstSent, mailbox).Scan(&first); err != nil {
			return err
		}
		s.Oldest = broker.Earliest(s.Oldest, first)
	}
	return q.QueryRow(countClaims, mailbox, mail.MostCounted).Scan(&s.Claimed)
}

// counts returns the entries of a map in an order.
func counts[K comparable](of map[K]int64, order func(a, b Count[K]) int) []Count[K] {
	all := make([]Count[K], 0, len(of))
	for k, n := range of {
		all = append(all, Count[K]{k, n})
	}
	slices.SortFunc(all, order)
	return all
}

// unfinishedDirectives returns the unfinished directives in an agent's mailbox.
func unfinishedDirectives(q store.Querier, mailbox int64) ([]mail.Message, error) {
	var found []mail.Message
	rows := q.Query(selectDirectives, mailbox, int64(mail.DirectiveRank), maxDirectives)
	for bytes := 0; rows.Next(); {
		m, _, err := scanInbox(rows)
		if err != nil {
			return nil, err
		}
		if bytes += len(m.Content); bytes > mail.MaxAnswer && len(found) > 0 {
			break
		}
		found = append(found, m.Message)
	}
	return found, rows.Close()
}
