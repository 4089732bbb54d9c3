package deadletters

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	stretch  = 2000 // dead letters that a walk reads in one snapshot
	most     = 5    // snapshots of one walk
	mostRead = stretch * most
)

// A Place names a dead letter, and is its position in the list.
type Place struct{ Message, Mailbox int64 }

// A Filter chooses dead letters. An empty field does not restrict.
type Filter struct {
	Types, Senders, Holders []string
	Error                   string    // a part of the error of the last attempt, in any case
	From, To                time.Time // when it became a dead letter
}

// Empty reports whether the filter excludes no dead letter.
func (f *Filter) Empty() bool {
	return len(f.Types)+len(f.Senders)+len(f.Holders)+len(f.Error) == 0 && f.From.IsZero() && f.To.IsZero()
}

// matches reports whether a dead letter passes the filter.
func (f *Filter) matches(q store.Querier, k Place) (bool, error) {
	if f.Empty() {
		return true, nil
	}
	var kind, sender, holder, failure string
	var died time.Time
	err := q.QueryRow(selectDeadFacts, k.Message, k.Mailbox).Scan(&kind, &sender, &holder, &died, &failure)
	return (len(f.Types) == 0 || slices.Contains(f.Types, kind)) &&
		(len(f.Senders) == 0 || slices.Contains(f.Senders, sender)) &&
		(len(f.Holders) == 0 || slices.Contains(f.Holders, holder)) &&
		(f.Error == "" || strings.Contains(strings.ToLower(failure), strings.ToLower(f.Error))) &&
		(f.From.IsZero() || !died.Before(f.From)) &&
		(f.To.IsZero() || died.Before(f.To)), err
}

// A Page is one page of the list of dead letters.
type Page struct {
	Items    []mail.Item
	Next     Place // zero = this is the last
	Revision int64
}

// List lists dead letters that match and that the caller may see, newest first: for an agent those of the
// mailboxes that it takes from, for an operator all. A page may be empty although others follow.
func (q *Queue) List(ctx context.Context, c identity.Caller, ch Choice, size int) (p Page, err error) {
	bytes := 0
	p.Next, p.Revision, err = q.walk(ctx, c, ch, func(s store.Querier, a mail.Actor, k Place) (bool, error) {
		if len(p.Items) == size {
			return false, nil
		}
		m, err := mail.FindMessage(s, a.Session.ID, msgid.Ref{Revision: k.Message})
		if err != nil {
			return false, err
		}
		if bytes += len(m.Content); bytes > mail.MaxAnswer && len(p.Items) > 0 {
			return false, nil
		}
		found, err := mail.DeliveriesOf(s, k.Message, k.Mailbox)
		for _, d := range found { // the one delivery
			p.Items = append(p.Items, mail.Item{Message: m, Delivery: d})
		}
		return true, err
	})
	return p, err
}

// Count counts the dead letters that match and that the caller may see, up to 10,000; more reports whether there may be
// further ones.
func (q *Queue) Count(ctx context.Context, c identity.Caller, ch Choice) (n int, more bool, err error) {
	ch.After = Place{}
	out, err := q.count(ctx, c, ch)
	return out.Count, out.More, err
}

// A visit receives a dead letter, and reports whether it has taken it.
type visit func(store.Querier, mail.Actor, Place) (taken bool, err error)

// walk calls visit for the dead letters that match and that the caller may see, newest first, until visit does not
// take one. It returns the position behind the last one that visit has taken or that did not match, or zero if
// there are no more. It reads a bounded number of dead letters, in several snapshots, so that no walk keeps a
// reader from other calls.
func (q *Queue) walk(
	ctx context.Context, c identity.Caller, ch Choice, visit visit,
) (at Place, revision int64, err error) {
	at = ch.After
	if at.Message == 0 {
		at.Message = math.MaxInt64 - 1
	}
	for n, more := 0, true; more && n < most; n++ {
		err := q.store.Read(ctx, func(s *store.Snapshot) error {
			revision = s.Revision()
			a, err := q.broker.Mailboxes.Acting(s, c)
			if err != nil {
				return err
			}
			scope, err := q.broker.Mailboxes.Visible(s, a, ch.Mailbox)
			if err != nil {
				return err
			}
			w := walker{q: s}
			if err := w.begin(a.Session.ID, scope, at); err != nil {
				return err
			}
			for range stretch {
				k, found, err := w.next()
				if err != nil {
					return err
				}
				if !found {
					at, more = Place{}, false
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
				at = k
			}
			return nil
		})
		if err != nil {
			return Place{}, 0, err
		}
	}
	return at, revision, nil
}

// A walker merges the dead letters of several mailboxes. It is a heap of mailboxes: the one with the newest dead letter
// is on top.
type walker struct {
	q     store.Querier
	boxes []*mailbox
}

// A mailbox is one of those of a walk.
type mailbox struct {
	id    int64
	head  int64   // the message of its newest dead letter that the walk has not returned
	ahead []int64 // those behind head, as far as the walk has read them
	batch int     // how many to read next
}

// Len implements heap.Interface.
func (w *walker) Len() int { return len(w.boxes) }

// Less implements heap.Interface.
func (w *walker) Less(i, j int) bool {
	a, b := w.boxes[i], w.boxes[j]
	return a.head > b.head || a.head == b.head && a.id < b.id
}

// Swap implements heap.Interface.
func (w *walker) Swap(i, j int) { w.boxes[i], w.boxes[j] = w.boxes[j], w.boxes[i] }

// Push implements heap.Interface. No mailbox joins a walk.
func (w *walker) Push(any) {}

// Pop implements heap.Interface.
func (w *walker) Pop() any {
	last := len(w.boxes) - 1
	box := w.boxes[last]
	w.boxes = w.boxes[:last]
	return box
}

// begin finds the mailboxes with dead letters behind a position. A walk needs no more of them than a stretch has dead
// letters.
func (w *walker) begin(session int64, scope any, after Place) error {
	rows := w.q.Query(selectDeadHeads, session, after.Message, after.Mailbox, scope, stretch)
	for rows.Next() {
		box := &mailbox{batch: 1}
		if err := rows.Scan(&box.id, &box.head); err != nil {
			return err
		}
		w.boxes = append(w.boxes, box) // sorted, which is a heap
	}
	return rows.Err()
}

// next returns the newest dead letter that it has not returned yet; false if there are no more.
func (w *walker) next() (k Place, found bool, err error) {
	if len(w.boxes) == 0 {
		return Place{}, false, nil
	}
	box := w.boxes[0]
	k = Place{box.head, box.id}
	if len(box.ahead) == 0 {
		if err := box.read(w.q); err != nil {
			return Place{}, false, err
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
func (b *mailbox) read(q store.Querier) error {
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
