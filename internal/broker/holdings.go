package broker

import (
	"time"

	"brokerd/internal/store"
)

// mostHeld is how many claims, and questions of either kind, Holdings returns.
const mostHeld = 1000

const selectHoldings = `
		SELECT d.message, d.claims, d.attempts, d.consumer, d.claimed_at, m.id, m.sender, m.type, m.content
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.state = 2 AND d.holder = ?
		ORDER BY d.claimed_at, d.message
		LIMIT ?`

// An OpenClaim is a claim that an agent holds.
type OpenClaim struct {
	ClaimID   string
	Consumer  string
	MessageID string
	Revision  int64 // of the message
	Type      string
	Subject   string
	Sender    string
	Attempt   int
	ClaimedAt time.Time
}

// Holdings are what hangs on an agent, oldest first.
type Holdings struct {
	Claims []OpenClaim
	Asked  []Question // by the agent
	Owed   []Question // by it, to others
}

// Holdings returns what hangs on an agent, at most 1,000 of each.
func (b *Broker) Holdings(q store.Querier, session int64, a Agent) (Holdings, error) {
	var h Holdings
	mailbox, err := b.FindMailbox(q, session, MailboxRef{AgentMailbox, a.Name})
	if err != nil {
		return h, err
	}
	rows := q.Query(selectHoldings, mailbox, mostHeld)
	for rows.Next() {
		var c OpenClaim
		var id ID
		var raw, content []byte
		var number, attempts int
		if err := rows.Scan(&c.Revision, &number, &attempts, &c.Consumer, &c.ClaimedAt, &raw, &c.Sender, &c.Type, &content); err != nil {
			return h, err
		}
		copy(id[:], raw)
		c.ClaimID, c.MessageID, c.Attempt, c.Subject = ClaimID(c.Revision, number), id.String(), attempts+1, title(content)
		h.Claims = append(h.Claims, c)
	}
	if err := rows.Err(); err != nil {
		return h, err
	}
	now := b.clock.Now()
	if h.Asked, err = readQuestions(q.Query(selectAsked, session, a.Name, mostHeld), now); err != nil {
		return h, err
	}
	h.Owed, err = Owed(q, session, a.Name, mailbox, mostHeld, now)
	return h, err
}

// Subject returns one line that says what the question is about.
func (q *Question) Subject() string { return title(q.Content) }
