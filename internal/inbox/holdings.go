package inbox

import (
	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectHoldings = `
		SELECT d.message, d.claims, d.attempts, d.consumer, d.claimed_at, m.id, m.sender, m.type, m.content
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.state = 2 AND d.holder = ?
		ORDER BY d.claimed_at, d.message
		LIMIT ?`

// Holdings adds the claims and the open questions of an agent, at most work.MostHeld of each.
func (r *Reader) Holdings(q store.Querier, a directory.Agent, to *work.Holdings) error {
	mailbox, err := r.broker.Mailboxes.Find(q, a.Session, mail.AgentRef(a.Name))
	if err != nil {
		return err
	}
	rows := q.Query(selectHoldings, mailbox, work.MostHeld)
	for rows.Next() {
		var c work.OpenClaim
		var id msgid.ID
		var raw, stored []byte
		var number, attempts int
		err := rows.Scan(&c.Revision, &number, &attempts, &c.Consumer, &c.ClaimedAt, &raw, &c.Sender, &c.Type, &stored)
		if err != nil {
			return err
		}
		copy(id[:], raw)
		c.ClaimID, c.MessageID = msgid.ClaimID(c.Revision, number), id.String()
		c.Attempt, c.Subject = attempts+1, content.Title(stored)
		to.Claims = append(to.Claims, c)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	now := r.clock.Now()
	asked, err := mail.OpenQuestions(q, a.Session, a.Name, work.MostHeld, now)
	if err != nil {
		return err
	}
	owed, err := mail.Owed(q, a.Session, a.Name, mailbox, work.MostHeld, now)
	to.Asked, to.ToAnswer = questions(asked), questions(owed)
	return err
}

func questions(list []mail.Question) []work.OpenQuestion {
	out := make([]work.OpenQuestion, len(list))
	for i := range list {
		q := &list[i]
		out[i] = work.OpenQuestion{
			ID: q.ID.String(), Revision: q.Revision, Sender: q.Sender, Subject: q.Subject(),
			Deadline: q.Deadline, Overdue: q.Overdue,
		}
	}
	return out
}
