package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	maxRedriven = 1000 // dead letters that one call changes, unless it names them
	maxNamed    = 2000 // dead letters that a call by ids may change; each takes about three rows
)

// A Choice chooses dead letters: those of the messages, or all that match the mailbox and the filter, from a position
// on. An empty mailbox means all that the caller may see.
type Choice struct {
	IDs     []msgid.Ref
	Mailbox string
	Filter  Filter
	After   Place
}

// An Outcome is the outcome of a change of dead letters, or of its dry run.
type Outcome struct {
	Count    int
	More     bool      // of a dry run: there may be more than Count
	Next     Place     // of a change: further dead letters may match from here on; zero = there are none
	Until    time.Time // of a dry run: Count is about those from before this time; zero = about named ones
	Revision int64
}

// Redrive redelivers dead letters: those of the messages, or up to 1,000 that match. dry only counts them, up to
// 10,000. Errors: fault.NotFound for a message or mailbox that does not exist, fault.Precondition (NOT_DEAD) for a
// message without a dead letter that the caller may see.
func (q *Queue) Redrive(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch Choice, dry bool,
) (Outcome, error) {
	if dry {
		return q.count(ctx, c, ch)
	}
	return q.change(ctx, c, req, ch, "message.redriven", (*redriveTx).redrive)
}

// Purge removes dead letters, chosen as for Redrive: they become CANCELLED.
func (q *Queue) Purge(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch Choice, dry bool,
) (Outcome, error) {
	if dry {
		return q.count(ctx, c, ch)
	}
	return q.change(ctx, c, req, ch, "message.purged", (*redriveTx).purge)
}

// count counts the chosen dead letters.
func (q *Queue) count(ctx context.Context, c identity.Caller, ch Choice) (out Outcome, err error) {
	if !ch.Filter.Empty() || ch.After != (Place{}) {
		err := q.store.Read(ctx, func(s *store.Snapshot) error { // a walk reads several snapshots
			out.Until = deadUntil(s, ch.Filter.To)
			return nil
		})
		if err != nil {
			return out, err
		}
		ch.Filter.To = out.Until
		var next Place
		next, out.Revision, err = q.walk(ctx, c, ch, func(store.Querier, mail.Actor, Place) (bool, error) {
			out.Count++
			return true, nil
		})
		out.More = next != Place{}
		return out, err
	}
	err = q.store.Read(ctx, func(s *store.Snapshot) error {
		out = Outcome{Revision: s.Revision()}
		a, err := q.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err
		}
		if len(ch.IDs) > 0 {
			keys, err := q.named(s, a, ch)
			out.Count = len(keys)
			return err
		}
		out.Until = deadUntil(s, time.Time{})
		scope, err := q.broker.Mailboxes.Visible(s, a, ch.Mailbox)
		if err != nil {
			return err
		}
		n, err := mail.CountDeadIn(s, a.Session.ID, scope, mostRead+1)
		out.Count, out.More = min(n, mostRead), n > mostRead
		return err
	})
	return out, err
}

// deadUntil returns a time after that of every dead letter in a snapshot, or to if that is earlier. It is not
// after that of a later dead letter, unless the wall clock is set back.
func deadUntil(s *store.Snapshot, to time.Time) time.Time {
	until := s.Latest().Add(time.Nanosecond)
	if !to.IsZero() && to.Before(until) {
		return to
	}
	return until
}

// change changes the chosen dead letters, each with an event. It searches for those that match before it enters the
// writer, which checks again that each is still a dead letter.
func (q *Queue) change(
	ctx context.Context, c identity.Caller, req idempotency.Request, ch Choice, kind string,
	do func(*redriveTx, Place, int64) error,
) (Outcome, error) {
	var found []Place
	var next Place
	if len(ch.IDs) == 0 {
		var err error
		next, _, err = q.walk(ctx, c, ch, func(_ store.Querier, _ mail.Actor, k Place) (bool, error) {
			if len(found) == maxRedriven {
				return false, nil
			}
			found = append(found, k)
			return true, nil
		})
		if err != nil {
			return Outcome{}, err
		}
	}
	var answer Outcome
	err := req.Drain(ctx, q.store, &answer, func(tx *store.Tx) error {
		a, err := q.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		var keys []Place
		if len(ch.IDs) > 0 {
			keys, err = q.named(tx, a, ch)
		} else {
			keys, err = stillDead(tx, found)
		}
		if err != nil {
			return err
		}
		s := &redriveTx{q.broker.NewSettleTx(tx, a), tx, a}
		answer.Count, answer.Next = len(keys), next
		for _, k := range keys {
			entry := a.Event(kind)
			entry.Summary = fmt.Sprintf("dead letter %d %s", k.Message, kind[len("message."):])
			entry.Related = []string{fmt.Sprint(k.Message)}
			if entry.Details, err = mail.MailboxDetails(tx, k.Mailbox); err != nil {
				return err
			}
			revision, err := s.Append(entry)
			if err != nil {
				return err
			}
			if err := do(s, k, revision); err != nil {
				return err
			}
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer, err
}

// named returns the dead letters of the named messages, each once.
func (q *Queue) named(s store.Querier, a mail.Actor, ch Choice) ([]Place, error) {
	scope, err := q.broker.Mailboxes.Visible(s, a, ch.Mailbox)
	if err != nil {
		return nil, err
	}
	var keys []Place
	for _, ref := range ch.IDs {
		if _, err := mail.FindMessage(s, a.Session.ID, ref); err != nil {
			return nil, err
		}
		found, err := store.Collect(s.Query(selectDeadOf, ref.Revision, scope, maxNamed+1),
			func(r *store.Rows) (k Place, err error) { return k, r.Scan(&k.Message, &k.Mailbox) })
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			e := fault.New(fault.Precondition, "NOT_DEAD", "message %s has no dead letter here", ref.Text)
			e.Resource, e.Name = "message", ref.Text
			return nil, e
		}
		if keys = append(keys, found...); len(keys) > maxNamed {
			return nil, fault.Field("ids",
				"names messages with more than %d dead letters together; name fewer in one call, or filter by mailbox", maxNamed)
		}
	}
	return slices.Compact(oldestFirst(keys)), nil
}

// stillDead returns those of the deliveries that are dead letters.
func stillDead(q store.Querier, found []Place) ([]Place, error) {
	var keys []Place
	for _, k := range found {
		var state int
		err := q.QueryRow(selectState, k.Message, k.Mailbox).Scan(&state)
		switch {
		case errors.Is(err, store.ErrNoRows):
		case err != nil:
			return nil, err
		case mail.State(state) == mail.Dead:
			keys = append(keys, k)
		}
	}
	return oldestFirst(keys), nil
}

// oldestFirst sorts deliveries so that their redrive makes them ready in the order of their sends.
func oldestFirst(keys []Place) []Place {
	slices.SortFunc(keys, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Message, b.Message), cmp.Compare(a.Mailbox, b.Mailbox))
	})
	return keys
}

// A redriveTx changes dead letters in one function of the writer.
type redriveTx struct {
	*broker.SettleTx
	tx    *store.Tx
	actor mail.Actor
}

// redrive makes a dead letter ready again; the revision is its new arrival.
func (s *redriveTx) redrive(k Place, revision int64) error {
	var rank int64
	var priority int
	var sent, expires time.Time
	var ordering string
	var queue bool // of a role or channel
	err := s.tx.QueryRow(selectRedriven, k.Message, k.Mailbox).
		Scan(&rank, &priority, &sent, &expires, &ordering, &queue)
	if err != nil {
		return err
	}
	if rank >= mail.DirectiveRank { // the ageing may have changed since it became a dead letter
		rank = mail.Rank(s.actor.Session.Settings.GetAgeing().AsDuration(), priority, sent)
	}
	state := mail.Pending
	if ordering != "" {
		earlier, err := broker.HasOrdered(s.tx, k.Mailbox, ordering)
		if err != nil {
			return err
		}
		if earlier {
			state = mail.Blocked
		}
	}
	arrival := revision
	if queue {
		arrival = -revision
	}
	if !expires.After(s.tx.Now()) {
		expires = time.Time{} // otherwise it would expire at once
	}
	s.tx.Exec(updateRedriven, int(state), rank, arrival, expires, k.Message, k.Mailbox)
	s.Expire(expires)
	s.Wait(k.Mailbox, state, rank, k.Message)
	return nil
}

func (s *redriveTx) purge(k Place, _ int64) error {
	s.tx.Exec(updatePurged, k.Message, k.Mailbox)
	return nil
}
