package mail

import (
	"time"

	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Way is how an offer reaches a model. The numbers are those of the API.
type Way int

// String returns the name of the way as events and metrics spell it.
func (w Way) String() string {
	names := [...]string{
		"unknown", "turn_end", "tool_call", "prompt", "wake", "plugin", "app_server", "terminal", "mcp", "shell", "queue",
	}
	if w < 0 || int(w) >= len(names) {
		return names[0]
	}
	return names[w]
}

// An Offer is one attempt to put a delivery before a model. It is open until it is accepted or returned.
type Offer struct {
	Number     int // counts the offers of the delivery, from 1
	Way        Way
	Harness    string // the session of the coding agent
	Mark       string
	OfferedAt  time.Time
	AcceptedAt time.Time // zero unless it was accepted
	ReturnedAt time.Time // zero unless it was returned
	Why        string    // it was returned
}

// An Offering says to which session of a coding agent messages are offered.
type Offering struct {
	Way     Way
	Harness string
	Mark    string // names the attempt; the caller chooses it
}

const selectOffers = `
	SELECT mailbox, number, way, harness, mark, offered_at, accepted_at, returned_at, why
	FROM offers
	WHERE message = ? AND mailbox BETWEEN ? AND ?
	ORDER BY mailbox, number`

// offersOf adds to the deliveries of a message, by their place in the list, the offers of each.
func offersOf(q store.Querier, message, first, last int64, at map[int64]int, found []Delivery) error {
	rows := q.Query(selectOffers, message, first, last)
	defer rows.Close()
	for rows.Next() {
		var mailbox int64
		var o Offer
		var way int
		if err := rows.Scan(&mailbox, &o.Number, &way, &o.Harness, &o.Mark, &o.OfferedAt, &o.AcceptedAt, &o.ReturnedAt,
			&o.Why); err != nil {
			return err
		}
		o.Way = Way(way)
		if i, ok := at[mailbox]; ok {
			found[i].Offers = append(found[i].Offers, o)
		}
	}
	return rows.Err()
}

// MostNotices is how many notices one answer has at most.
const MostNotices = 100

// OfRole returns the names of the first agents of a role, up to limit, behind a name.
func OfRole(dir *directory.Directory, tx *store.Tx, session int64, role, after string, limit int) ([]string, error) {
	agents, err := dir.Matching(tx, session, directory.Selection{Role: role, After: after, Most: limit})
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, err
}

// CountNotices returns the number of unread notices in an agent's mailbox, at most most; with a mark, of those that are
// not offered with another one.
func CountNotices(q store.Querier, mailbox int64, mark string, most int) (n int64, err error) {
	row := q.QueryRow(countUnreadNotices, mailbox, most)
	if mark != "" {
		row = q.QueryRow(countUnofferedNotices, mailbox, mark, most)
	}
	err = row.Scan(&n)
	return n, err
}

// ScanNotices returns notices and their revisions, from rows of revision, type, time and content.
func ScanNotices(rows *store.Rows) (unread []work.UnreadNotice, revisions []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var n work.UnreadNotice
		var stored []byte
		if err := rows.Scan(&n.Revision, &n.Type, &n.CreatedAt, &stored); err != nil {
			return nil, nil, err
		}
		n.Subject, n.Payload = content.Text(stored, content.Subject), content.Text(stored, content.Payload)
		unread, revisions = append(unread, n), append(revisions, n.Revision)
	}
	return unread, revisions, rows.Err()
}
