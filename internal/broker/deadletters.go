package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	maxRedriven   = 1000 // dead letters that one call changes, unless it names them
	deadStretch   = 2000 // dead letters that a walk reads in one snapshot
	deadStretches = 5    // snapshots of one walk
	mostDeadRead  = deadStretch * deadStretches
)

// A DeadChoice chooses dead letters: those of the messages, or all that match the mailbox and the
// filter, from a position on. An empty mailbox means all that the caller may see.
type DeadChoice struct {
	IDs     []Ref
	Mailbox string
	Filter  DeadFilter
	After   DeadPlace
}

// A DeadOutcome is the outcome of a change of dead letters, or of its dry run.
type DeadOutcome struct {
	Count    int
	More     bool      // of a dry run: there may be more than Count
	Next     DeadPlace // of a change: further dead letters may match from here on; zero = there are none
	Until    time.Time // of a dry run: Count is about those from before this time; zero = about named ones
	Revision int64
}

// Redrive redelivers dead letters: those of the messages, or up to 1,000 that match. dry only counts
// them, up to 10,000. Errors: fault.NotFound for a message or mailbox that does not exist,
// fault.Precondition (NOT_DEAD) for a message without a dead letter that the caller may see.
func (b *Broker) Redrive(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch DeadChoice, dry bool,
) (DeadOutcome, error) {
	if dry {
		return b.countDead(ctx, c, ch)
	}
	return b.changeDead(ctx, c, req, ch, "message.redriven", (*SettleTx).redrive)
}

// Purge removes dead letters, chosen as for Redrive: they become CANCELLED.
func (b *Broker) Purge(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch DeadChoice, dry bool,
) (DeadOutcome, error) {
	if dry {
		return b.countDead(ctx, c, ch)
	}
	return b.changeDead(ctx, c, req, ch, "message.purged", (*SettleTx).purge)
}

// countDead counts the chosen dead letters.
func (b *Broker) countDead(ctx context.Context, c identity.Caller, ch DeadChoice) (out DeadOutcome, err error) {
	if !ch.Filter.Empty() || ch.After != (DeadPlace{}) {
		err := b.store.Read(ctx, func(s *store.Snapshot) error { // a walk reads several snapshots
			out.Until = deadUntil(s, ch.Filter.To)
			return nil
		})
		if err != nil {
			return out, err
		}
		ch.Filter.To = out.Until
		var next DeadPlace
		next, out.Revision, err = b.walkDead(ctx, c, ch, func(store.Querier, Actor, key) (bool, error) {
			out.Count++
			return true, nil
		})
		out.More = next != DeadPlace{}
		return out, err
	}
	err = b.store.Read(ctx, func(s *store.Snapshot) error {
		out = DeadOutcome{Revision: s.Revision()}
		a, err := b.Acting(s, c)
		if err != nil {
			return err
		}
		if len(ch.IDs) > 0 {
			keys, err := b.namedDead(s, a, ch)
			out.Count = len(keys)
			return err
		}
		out.Until = deadUntil(s, time.Time{})
		scope, err := b.Visible(s, a, ch.Mailbox)
		if err != nil {
			return err
		}
		n, err := CountDeadIn(s, a.Session.ID, scope, mostDeadRead+1)
		out.Count, out.More = min(n, mostDeadRead), n > mostDeadRead
		return err
	})
	return out, err
}

// deadUntil returns a time after that of every dead letter in a snapshot, or to if that is earlier. It is
// not after that of a later dead letter, unless the wall clock goes back.
func deadUntil(s *store.Snapshot, to time.Time) time.Time {
	until := s.Latest().Add(time.Nanosecond)
	if !to.IsZero() && to.Before(until) {
		return to
	}
	return until
}

// changeDead changes the chosen dead letters, each with an event. It searches for those that match before
// it enters the writer, which checks again that each is still dead.
func (b *Broker) changeDead(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch DeadChoice, kind string,
	do func(*SettleTx, key, int64) error,
) (DeadOutcome, error) {
	var found []key
	var next DeadPlace
	if len(ch.IDs) == 0 {
		var err error
		next, _, err = b.walkDead(ctx, c, ch, func(_ store.Querier, _ Actor, k key) (bool, error) {
			if len(found) == maxRedriven {
				return false, nil
			}
			found = append(found, k)
			return true, nil
		})
		if err != nil {
			return DeadOutcome{}, err
		}
	}
	var answer DeadOutcome
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		var keys []key
		if len(ch.IDs) > 0 {
			keys, err = b.namedDead(tx, a, ch)
		} else {
			keys, err = stillDead(tx, found)
		}
		if err != nil {
			return err
		}
		s := b.NewSettleTx(tx, a)
		answer.Count, answer.Next = len(keys), next
		for _, k := range keys {
			entry := a.Event(kind)
			entry.Summary = fmt.Sprintf("dead letter %d %s", k.message, kind[len("message."):])
			entry.Related = []string{fmt.Sprint(k.message)}
			if entry.Details, err = MailboxDetails(tx, k.mailbox); err != nil {
				return err
			}
			if s.last, err = b.log.Append(tx, entry); err != nil {
				return err
			}
			if err := do(s, k, s.last); err != nil {
				return err
			}
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer, err
}

// maxDead is how many dead letters a call by ids may change. Each takes about three rows.
const maxDead = 2000

// namedDead returns the dead letters of the named messages, each once.
func (b *Broker) namedDead(q store.Querier, a Actor, ch DeadChoice) ([]key, error) {
	scope, err := b.Visible(q, a, ch.Mailbox)
	if err != nil {
		return nil, err
	}
	var keys []key
	for _, ref := range ch.IDs {
		if _, err := FindMessage(q, a.Session.ID, ref); err != nil {
			return nil, err
		}
		found, err := readKeys(q.Query(selectDeadOf, ref.Revision, scope, maxDead+1))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			e := fault.New(fault.Precondition, "NOT_DEAD", "message %s has no dead letter here", ref.Text)
			e.Resource, e.Name = "message", ref.Text
			return nil, e
		}
		if keys = append(keys, found...); len(keys) > maxDead {
			return nil, fault.Field("ids",
				"names messages with more than %d dead letters together; name fewer in one call, or filter by mailbox", maxDead)
		}
	}
	return slices.Compact(oldestFirst(keys)), nil
}

// stillDead returns those of the deliveries that are dead letters.
func stillDead(q store.Querier, found []key) ([]key, error) {
	var keys []key
	for _, k := range found {
		var state int
		err := q.QueryRow(selectState, k.message, k.mailbox).Scan(&state)
		switch {
		case errors.Is(err, store.ErrNoRows):
		case err != nil:
			return nil, err
		case State(state) == Dead:
			keys = append(keys, k)
		}
	}
	return oldestFirst(keys), nil
}

// oldestFirst sorts deliveries so that their redrive makes them ready in the order of their sends.
func oldestFirst(keys []key) []key {
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.mailbox, b.mailbox))
	})
	return keys
}

// redrive makes a dead letter ready again; the revision is its new arrival.
func (s *SettleTx) redrive(k key, revision int64) error {
	h := held{key: k}
	var priority int
	var sent time.Time
	err := s.tx.QueryRow(selectRedriven, k.message, k.mailbox).Scan(&h.rank, &priority, &sent, &h.expiresAt, &h.ordering, &h.queue)
	if err != nil {
		return err
	}
	if h.rank >= DirectiveRank { // the ageing may have changed since it died
		h.rank = Rank(s.actor.Session.Ageing, priority, sent)
	}
	state := Pending
	if h.ordering != "" {
		var earlier bool
		if err := s.tx.QueryRow(existsOrdered, k.mailbox, h.ordering).Scan(&earlier); err != nil {
			return err
		}
		if earlier {
			state = Blocked
		}
	}
	arrival := revision
	if h.queue {
		arrival = -revision
	}
	if !h.expiresAt.After(s.tx.Now()) {
		h.expiresAt = time.Time{} // it would be gone at once
	}
	s.tx.Exec(updateRedriven, int(state), h.rank, arrival, h.expiresAt, k.message, k.mailbox)
	s.left[k.mailbox]++
	s.due = earliest(s.due, h.expiresAt)
	if state == Pending {
		s.ready.add(k.mailbox, place{h.rank, k.message})
	} else {
		s.ready.seen(k.mailbox)
	}
	return nil
}

func (s *SettleTx) purge(k key, _ int64) error {
	s.tx.Exec(updateState, int(Cancelled), k.message, k.mailbox)
	return nil
}
