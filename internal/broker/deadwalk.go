package broker

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A DeadPlace is the position of a dead letter in their list.
type DeadPlace struct{ Message, Mailbox int64 }

// A DeadFilter chooses dead letters. What is empty does not restrict.
type DeadFilter struct {
	Types, Senders, Holders []string
	Error                   string    // a part of the error of the last attempt, in any case
	From, To                time.Time // when it became a dead letter
}

// Empty reports whether the filter excludes no dead letter.
func (f *DeadFilter) Empty() bool {
	return len(f.Types)+len(f.Senders)+len(f.Holders)+len(f.Error) == 0 && f.From.IsZero() && f.To.IsZero()
}

// matches reports whether a dead letter passes the filter.
func (f *DeadFilter) matches(q store.Querier, k key) (bool, error) {
	if f.Empty() {
		return true, nil
	}
	var kind, sender, holder, failure string
	var died time.Time
	err := q.QueryRow(selectDeadFacts, k.message, k.mailbox).Scan(&kind, &sender, &holder, &died, &failure)
	return (len(f.Types) == 0 || slices.Contains(f.Types, kind)) &&
		(len(f.Senders) == 0 || slices.Contains(f.Senders, sender)) &&
		(len(f.Holders) == 0 || slices.Contains(f.Holders, holder)) &&
		(f.Error == "" || strings.Contains(strings.ToLower(failure), strings.ToLower(f.Error))) &&
		(f.From.IsZero() || !died.Before(f.From)) &&
		(f.To.IsZero() || died.Before(f.To)), err
}

// A DeadPage is one page of the list of dead letters.
type DeadPage struct {
	Items    []Item
	Next     DeadPlace // zero = this is the last
	Revision int64
}

// DeadLetters lists dead letters that match and that the caller may see, newest first: an agent those
// of the mailboxes that it takes from, an operator all. A page may be empty although others follow.
func (b *Broker) DeadLetters(ctx context.Context, c identity.Caller, ch DeadChoice, size int) (p DeadPage, err error) {
	bytes := 0
	p.Next, p.Revision, err = b.walkDead(ctx, c, ch, func(q store.Querier, a Actor, k key) (bool, error) {
		if len(p.Items) == size {
			return false, nil
		}
		m, err := FindMessage(q, a.Session.ID, Ref{Revision: k.message})
		if err != nil {
			return false, err
		}
		if bytes += len(m.Content); bytes > MaxAnswer && len(p.Items) > 0 {
			return false, nil
		}
		d, err := DeliveryOf(q, k.message, k.mailbox)
		p.Items = append(p.Items, Item{Message: m, Delivery: d})
		return true, err
	})
	return p, err
}

// CountDead counts the dead letters that match and that the caller may see, up to 10,000; more reports
// whether there may be further ones.
func (b *Broker) CountDead(ctx context.Context, c identity.Caller, ch DeadChoice) (n int, more bool, err error) {
	ch.After = DeadPlace{}
	out, err := b.countDead(ctx, c, ch)
	return out.Count, out.More, err
}

// walkDead calls visit for the dead letters that match and that the caller may see, newest first,
// until visit does not take one. It returns the position behind the last one that was taken or did
// not match, or zero if there are no more. It reads a bounded number of dead letters, in several
// snapshots, so that no walk keeps a reader from other calls.
func (b *Broker) walkDead(
	ctx context.Context, c identity.Caller, ch DeadChoice, visit func(store.Querier, Actor, key) (bool, error),
) (at DeadPlace, revision int64, err error) {
	at = ch.After
	if at.Message == 0 {
		at.Message = math.MaxInt64 - 1
	}
	for n, more := 0, true; more && n < deadStretches; n++ {
		err := b.store.Read(ctx, func(s *store.Snapshot) error {
			revision = s.Revision()
			a, err := b.Acting(s, c)
			if err != nil {
				return err
			}
			scope, err := b.Visible(s, a, ch.Mailbox)
			if err != nil {
				return err
			}
			w := deadWalk{q: s}
			if err := w.begin(a.Session.ID, scope, at); err != nil {
				return err
			}
			for range deadStretch {
				k, found, err := w.next()
				if err != nil {
					return err
				}
				if !found {
					at, more = DeadPlace{}, false
					return nil
				}
				matches, err := ch.Filter.matches(s, k)
				if err != nil {
					return err
				}
				if matches {
					if more, err = visit(s, a, k); err != nil || !more {
						return err
					}
				}
				at = DeadPlace{k.message, k.mailbox}
			}
			return nil
		})
		if err != nil {
			return DeadPlace{}, 0, err
		}
	}
	return at, revision, nil
}

// A deadWalk merges the dead letters of several mailboxes. It is a heap of mailboxes: the one with the
// newest dead letter is on top.
type deadWalk struct {
	q     store.Querier
	boxes []*deadBox
}

// A deadBox is a mailbox of a walk.
type deadBox struct {
	id    int64
	head  int64   // the message of its newest dead letter that the walk has not returned
	ahead []int64 // those behind head, as far as they were read
	batch int     // how many to read next
}

// Len implements heap.Interface.
func (w *deadWalk) Len() int { return len(w.boxes) }

// Less implements heap.Interface.
func (w *deadWalk) Less(i, j int) bool {
	a, b := w.boxes[i], w.boxes[j]
	return a.head > b.head || a.head == b.head && a.id < b.id
}

// Swap implements heap.Interface.
func (w *deadWalk) Swap(i, j int) { w.boxes[i], w.boxes[j] = w.boxes[j], w.boxes[i] }

// Push implements heap.Interface. No mailbox joins a walk.
func (w *deadWalk) Push(any) {}

// Pop implements heap.Interface.
func (w *deadWalk) Pop() any {
	last := len(w.boxes) - 1
	box := w.boxes[last]
	w.boxes = w.boxes[:last]
	return box
}

// begin finds the mailboxes with dead letters behind a position. More than a stretch has dead letters
// are never needed.
func (w *deadWalk) begin(session int64, scope any, after DeadPlace) error {
	rows := w.q.Query(selectDeadHeads, session, after.Message, after.Mailbox, scope, deadStretch)
	for rows.Next() {
		box := &deadBox{batch: 1}
		if err := rows.Scan(&box.id, &box.head); err != nil {
			return err
		}
		w.boxes = append(w.boxes, box) // sorted, which is a heap
	}
	return rows.Err()
}

// next returns the newest dead letter that it has not returned yet; false if there are no more.
func (w *deadWalk) next() (k key, found bool, err error) {
	if len(w.boxes) == 0 {
		return key{}, false, nil
	}
	box := w.boxes[0]
	k = key{box.head, box.id}
	if len(box.ahead) == 0 {
		if err := box.read(w.q); err != nil {
			return key{}, false, err
		}
	}
	if len(box.ahead) == 0 {
		heap.Pop(w)
		return k, true, nil
	}
	box.head, box.ahead = box.ahead[0], box.ahead[1:]
	heap.Fix(w, 0)
	return k, true, nil
}

// read reads the dead letters behind head, each time twice as many.
func (b *deadBox) read(q store.Querier) error {
	rows := q.Query(selectDeadIn, b.id, b.head, b.batch)
	b.ahead, b.batch = nil, min(2*b.batch, maxRedriven)
	for rows.Next() {
		var message int64
		if err := rows.Scan(&message); err != nil {
			return err
		}
		b.ahead = append(b.ahead, message)
	}
	return rows.Err()
}
