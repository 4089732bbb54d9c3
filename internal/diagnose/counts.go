package diagnose

import (
	"encoding/json"

	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// mostDead bounds the dead letters that Status counts over all mailboxes.
const mostDead = 10_000

// Status returns the session's mailboxes with something in them, fullest first, at most most, and
// the sums over all: the dead letters up to 10,000. For an agent, these are the mailboxes that it
// takes from, and sum.Claimed counts its own claims.
func (x *Examiner) Status(
	q store.Querier, session int64, agent *directory.Agent, most int,
) (boxes []work.Mailbox, sum work.Mailbox, err error) {
	var only any
	a := mail.Actor{Session: directory.Session{ID: session}}
	if agent != nil {
		a.Agent = *agent
		if a.Mailbox, err = x.broker.Mailboxes.Find(q, session, mailboxOf(a.Name)); err != nil {
			return nil, sum, err
		}
		found, err := x.broker.Mailboxes.Reachable(q, a)
		if err != nil {
			return nil, sum, err
		}
		ids := make([]int64, len(found))
		for i := range found {
			ids[i] = found[i].ID
		}
		only = list(ids)
	}
	rows := q.Query(selectStatus, session, only, most, mail.MostCounted)
	if boxes, err = store.Collect(rows, func(r *store.Rows) (s work.Mailbox, err error) {
		var ref mail.MailboxRef
		err = r.Scan(&s.ID, (*int)(&ref.Kind), &ref.Name, &s.Waiting, &s.Claimed, &s.Dead)
		s.Name = ref.String()
		return s, err
	}); err != nil {
		return nil, sum, err
	}
	if err := q.QueryRow(sumStatus, session, only).Scan(&sum.Waiting, &sum.Claimed); err != nil {
		return nil, sum, err
	}
	if agent != nil {
		if err := q.QueryRow(countHoldersClaims, a.Mailbox).Scan(&sum.Claimed); err != nil {
			return nil, sum, err
		}
	}
	dead, err := mail.CountDeadIn(q, session, only, mostDead)
	sum.Dead = int64(dead)
	return boxes, sum, err
}

// Claims counts the claims of the agents of a session that hold some.
func (x *Examiner) Claims(q store.Querier, session int64) (map[string]int64, error) {
	return countsByName(q.Query(countClaimsOfAgents, session))
}

// Waiting counts the deliveries that wait in the mailboxes of some agents of a session.
func (x *Examiner) Waiting(q store.Querier, session int64, agents []string) (map[string]int64, error) {
	return countsByName(q.Query(selectWaitingOfAgents, session, list(agents)))
}

// list writes ids or names as JSON for a statement.
func list[T int64 | string](all []T) string {
	text, _ := json.Marshal(all) // numbers and strings always marshal
	return string(text)
}

func countsByName(rows *store.Rows) (map[string]int64, error) {
	counts := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return nil, err
		}
		counts[name] = n
	}
	return counts, rows.Err()
}

const (
	// The cost depends on the number of mailboxes and claims, not on the number of messages.
	selectStatus = `
		WITH claims (mailbox, n) AS MATERIALIZED (
			SELECT mailbox, COUNT(*)
			FROM deliveries
			WHERE state = 2
			GROUP BY mailbox),
		fullest (id, kind, name, waiting, claimed) AS MATERIALIZED (
			SELECT b.id, b.kind, b.name, b.waiting, COALESCE(c.n, 0)
			FROM mailboxes b LEFT JOIN claims c ON c.mailbox = b.id
			WHERE b.session = ?1 AND (?2 IS NULL OR b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))
				AND (b.waiting > 0 OR c.n > 0 OR EXISTS (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6))
			ORDER BY b.waiting + COALESCE(c.n, 0) DESC, b.name
			LIMIT ?3)
		SELECT f.id, f.kind, f.name, f.waiting, f.claimed,
			(SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = f.id AND state = 6 LIMIT ?4) AS x)
		FROM fullest f
		ORDER BY f.waiting + f.claimed DESC, f.name`
	sumStatus = `
		SELECT COALESCE(SUM(b.waiting), 0), (
			SELECT COUNT(*)
			FROM deliveries d JOIN mailboxes m ON m.id = d.mailbox
			WHERE d.state = 2 AND m.session = ?1)
		FROM mailboxes b
		WHERE b.session = ?1 AND (?2 IS NULL OR b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))`
	countClaimsOfAgents = `
		SELECT h.name, c.n
		FROM (
			SELECT holder, COUNT(*) AS n
			FROM deliveries
			WHERE state = 2
			GROUP BY holder) AS c
		JOIN mailboxes h ON h.id = c.holder
		WHERE h.session = ?`
	selectWaitingOfAgents = `
		SELECT name, waiting FROM mailboxes
		WHERE session = ? AND kind = 1 AND name IN (SELECT value FROM json_each(?))`
)
