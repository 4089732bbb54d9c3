package inbox

import (
	"context"
	"math"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A BoxOrder is the order in which mailboxes are listed. The numbers are those of the API.
type BoxOrder int

// The orders. ByAge, by the oldest message that a claim could take, is the default.
const (
	ByAge BoxOrder = iota + 1
	ByWaiting
)

// A BoxPlace is a position in the list of mailboxes: the key of the order, then the id.
type BoxPlace struct{ Key, Mailbox int64 }

// A BoxSummary is a mailbox that holds messages. Oldest is the time at which the oldest message that
// a claim could take was sent; zero if there is none. Dead counts up to MostCounted.
type BoxSummary struct {
	Mailbox                string
	Waiting, Claimed, Dead int64
	Oldest                 time.Time
}

// A BoxPage is one page of the list of mailboxes.
type BoxPage struct {
	Boxes    []BoxSummary
	Next     BoxPlace // zero = this is the last
	Revision int64
}

// Mailboxes lists the mailboxes that hold messages and that the caller may see: an agent those that
// it takes from, an operator all of the session. It reads the row of each mailbox, all claims and,
// for the mailboxes of the page, up to MostCounted dead letters.
func (r *Reader) Mailboxes(
	ctx context.Context, c identity.Caller, order BoxOrder, size int, after BoxPlace,
) (BoxPage, error) {
	var p BoxPage
	query := boxesByAge
	if order == ByWaiting {
		query = boxesByWaiting
	}
	if after == (BoxPlace{}) {
		after.Key = math.MinInt64
	}
	err := r.store.Read(ctx, func(s *store.Snapshot) error {
		p = BoxPage{Revision: s.Revision()}
		a, err := r.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err
		}
		scope, err := r.broker.Mailboxes.Visible(s, a, "")
		if err != nil {
			return err
		}
		var last BoxPlace
		rows := s.Query(query, a.Session.ID, scope, after.Key, after.Mailbox, size+1, mail.MostCounted)
		for rows.Next() {
			var sum BoxSummary
			var ref mail.MailboxRef
			var kind int
			var at BoxPlace
			err := rows.Scan(&at.Mailbox, &at.Key, &kind, &ref.Name, &sum.Waiting, &sum.Claimed, &sum.Dead, &sum.Oldest)
			if err != nil {
				return err
			}
			if len(p.Boxes) == size {
				p.Next = last
				return rows.Close()
			}
			ref.Kind = mail.MailboxKind(kind)
			sum.Mailbox = ref.String()
			p.Boxes, last = append(p.Boxes, sum), at
		}
		return rows.Err()
	})
	return p, err
}
