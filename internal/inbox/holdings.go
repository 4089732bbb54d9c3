package inbox

import (
	"time"

	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// mostHeld is how many claims, questions to other agents and questions to the agent Holdings returns.
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

// Holdings are the claims and the open questions of an agent, oldest first.
type Holdings struct {
	Claims []OpenClaim
	Asked  []mail.Question // by the agent, to others
	Owed   []mail.Question // by others, to the agent
}

// Holdings returns the claims and the open questions of an agent, at most 1,000 of each.
func (r *Reader) Holdings(q store.Querier, session int64, a directory.Agent) (Holdings, error) {
	var h Holdings
	mailbox, err := r.broker.Mailboxes.Find(q, session, mail.AgentRef(a.Name))
	if err != nil {
		return h, err
	}
	rows := q.Query(selectHoldings, mailbox, mostHeld)
	for rows.Next() {
		var c OpenClaim
		var id msgid.ID
		var raw, stored []byte
		var number, attempts int
		err := rows.Scan(&c.Revision, &number, &attempts, &c.Consumer, &c.ClaimedAt, &raw, &c.Sender, &c.Type, &stored)
		if err != nil {
			return h, err
		}
		copy(id[:], raw)
		c.ClaimID, c.MessageID = msgid.ClaimID(c.Revision, number), id.String()
		c.Attempt, c.Subject = attempts+1, content.Title(stored)
		h.Claims = append(h.Claims, c)
	}
	if err := rows.Err(); err != nil {
		return h, err
	}
	now := r.clock.Now()
	if h.Asked, err = mail.OpenQuestions(q, session, a.Name, mostHeld, now); err != nil {
		return h, err
	}
	h.Owed, err = mail.Owed(q, session, a.Name, mailbox, mostHeld, now)
	return h, err
}
