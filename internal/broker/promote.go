package broker

import (
	"errors"
	"time"

	"brokerd/internal/store"
)

// promote makes the next delivery of the ordering key ready after h was finished, if it was h's turn. One
// that was blocked, or finished before, was in nobody's way: the turn is another's, which need not be the
// oldest after a redrive.
func (s *SettleTx) promote(h *held) error {
	if h.ordering == "" || h.state == Blocked || !h.state.unfinished() {
		return nil
	}
	return s.PromoteNext(h.mailbox, h.ordering)
}

func (s *SettleTx) promoteAfter(k key) error {
	var ordering string
	if err := s.tx.QueryRow(selectOrdering, k.message, k.mailbox).Scan(&ordering); err != nil {
		return err
	}
	return s.PromoteNext(k.mailbox, ordering)
}

// HasOrdered reports whether a mailbox has an unfinished delivery with an ordering key. Another delivery with that key
// is then Blocked until its turn comes.
func HasOrdered(q store.Querier, mailbox int64, ordering string) (found bool, err error) {
	err = q.QueryRow(existsOrdered, mailbox, ordering).Scan(&found)
	return found, err
}

// PromoteNext makes the head of an ordering key ready, if it is blocked.
func (s *SettleTx) PromoteNext(mailbox int64, ordering string) error {
	var n struct {
		message, rank, arrival int64
		state                  int
		due                    time.Time
		queue                  bool
	}
	err := s.tx.QueryRow(selectHead, mailbox, ordering).Scan(&n.message, &n.state, &n.rank, &n.arrival, &n.due, &n.queue)
	if errors.Is(err, store.ErrNoRows) || err == nil && State(n.state) != Blocked {
		return nil
	}
	if err != nil {
		return err
	}
	if n.due.After(s.tx.Now()) {
		s.due = Earliest(s.due, n.due)
		s.tx.Exec(updateState, int(Delayed), n.message, mailbox)
		return nil
	}
	s.ready.add(mailbox, place{n.rank, n.message})
	if n.arrival == 0 {
		s.last, err = s.Calendar.arrive(s.tx, s.actor.Session.ID, key{n.message, mailbox}, n.queue)
		return err
	}
	s.tx.Exec(updateState, int(Pending), n.message, mailbox)
	return nil
}
