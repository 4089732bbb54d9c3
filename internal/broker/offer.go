package broker

import (
	"time"

	"brokerd/internal/store"
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

// An Attention says which messages are offered to an agent that has not asked for them; 0 = all. The numbers are
// those of the API.
type Attention int

// The attentions of an agent.
const (
	AttentionOpen       Attention = 1 + iota // all messages
	AttentionDirectives                      // directives, answers to its questions and notices
	AttentionOff                             // none
)

// An Offering says to which session of a coding agent messages are offered.
type Offering struct {
	Way     Way
	Harness string
	Mark    string // names the attempt; the caller chooses it
}

// Offers puts unread messages before the models of coding agents.
type Offers interface {
	// OfferNotices offers the oldest unread notices of an agent that are not offered, at most MostNotices, and returns
	// them. With the mark of open offers it returns these.
	OfferNotices(tx *store.Tx, a Actor, to Offering) ([]UnreadNotice, error)
	// AgentEnded returns the open offers to an agent that has ended.
	AgentEnded(tx *store.Tx, session, mailbox int64, agent, why string) error
}

// UseOffers gives the broker the offers to models. Call it before Start.
func (b *Broker) UseOffers(o Offers) { b.offers = o }

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
