package broker

import (
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/store"
)

// A BoxStatus counts the deliveries in a mailbox: the dead ones up to MostCounted.
type BoxStatus struct {
	Mailbox                string
	Waiting, Claimed, Dead int64
	id                     int64
}

// Status returns the session's mailboxes with something in them, fullest first, at most most, and
// the sums over all. For an agent, these are the mailboxes that it takes from, and sum.Claimed
// counts its own claims.
func (b *Broker) Status(q store.Querier, session int64, agent *Agent, most int) (boxes []BoxStatus, sum BoxStatus, err error) {
	var only any
	a := actor{session: Session{ID: session}}
	if agent != nil {
		a.Agent = *agent
		if a.mailbox, err = b.findMailbox(q, session, mailboxRef{agentBox, a.Name}); err != nil {
			return nil, sum, err
		}
		found, err := b.reachable(q, a)
		if err != nil {
			return nil, sum, err
		}
		only = idsOf(found)
	}
	rows := q.Query(selectStatus, session, MostCounted, only, most)
	for rows.Next() {
		var s BoxStatus
		var ref mailboxRef
		var kind int
		if err := rows.Scan(&s.id, &kind, &ref.name, &s.Waiting, &s.Claimed, &s.Dead, &sum.Waiting, &sum.Claimed, &sum.Dead); err != nil {
			return nil, sum, err
		}
		ref.kind = boxKind(kind)
		s.Mailbox = ref.String()
		boxes = append(boxes, s)
	}
	if err = rows.Err(); err == nil && agent != nil {
		err = q.QueryRow(countHoldersClaims, a.mailbox).Scan(&sum.Claimed)
	}
	return boxes, sum, err
}

// Oldest returns the times at which the oldest messages were sent that wait to be claimed in
// mailboxes that Status has returned, by the mailbox's name. In the mailbox of a role or channel, it
// examines the first 1,000 in the order of delivery, among which the oldest is.
func (b *Broker) Oldest(q store.Querier, boxes []BoxStatus) (map[string]time.Time, error) {
	names, ids := map[int64]string{}, []int64{}
	for i := range boxes {
		if boxes[i].Waiting > 0 {
			names[boxes[i].id], ids = boxes[i].Mailbox, append(ids, boxes[i].id)
		}
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, fmt.Errorf("list mailboxes: %w", err)
	}
	oldest := map[string]time.Time{}
	rows := q.Query(selectOldest, string(list))
	for rows.Next() {
		var id int64
		var at time.Time
		if err := rows.Scan(&id, &at); err != nil {
			return nil, err
		}
		oldest[names[id]] = at
	}
	return oldest, rows.Err()
}

// Claims counts the claims of the agents of a session that hold some.
func (b *Broker) Claims(q store.Querier, session int64) (map[string]int64, error) {
	return countsByName(q.Query(countClaimsOfAgents, session))
}

// Waiting counts the deliveries that wait in the mailboxes of some agents of a session.
func (b *Broker) Waiting(q store.Querier, session int64, agents []string) (map[string]int64, error) {
	list, err := json.Marshal(agents)
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	return countsByName(q.Query(selectWaitingOfAgents, session, string(list)))
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
	// One step along the index for each mailbox with dead letters, of all sessions.
	selectStatus = `
		WITH RECURSIVE dying (mailbox) AS (
			SELECT MIN(mailbox) FROM deliveries WHERE state = 6
			UNION ALL
			SELECT (SELECT MIN(mailbox) FROM deliveries WHERE state = 6 AND mailbox > dying.mailbox)
			FROM dying WHERE dying.mailbox IS NOT NULL),
		dead (mailbox, n) AS MATERIALIZED (
			SELECT b.id, (SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6 LIMIT ?2) AS x)
			FROM dying JOIN mailboxes b ON b.id = dying.mailbox
			WHERE b.session = ?1),
		claimed (mailbox, n) AS MATERIALIZED (
			SELECT mailbox, COUNT(*)
			FROM deliveries INDEXED BY deliveries_claimed
			WHERE state = 2
			GROUP BY mailbox)
		SELECT b.id, b.kind, b.name, b.waiting, COALESCE(c.n, 0), COALESCE(d.n, 0),
			SUM(b.waiting) OVER (), SUM(COALESCE(c.n, 0)) OVER (), SUM(COALESCE(d.n, 0)) OVER ()
		FROM mailboxes b
		LEFT JOIN claimed c ON c.mailbox = b.id
		LEFT JOIN dead d ON d.mailbox = b.id
		WHERE b.session = ?1 AND (b.waiting > 0 OR c.n > 0 OR d.n > 0)
			AND (?3 IS NULL OR b.id IN (SELECT value FROM json_each(?3)))
		ORDER BY b.waiting + COALESCE(c.n, 0) DESC, b.name
		LIMIT ?4`
	selectOldest = `
		SELECT o.mailbox, m.created_at
		FROM (
			SELECT b.id AS mailbox, CASE
				WHEN b.kind = 1 THEN (
					SELECT d.message FROM deliveries d INDEXED BY deliveries_arrival
					WHERE d.mailbox = b.id AND d.arrival > 0 AND d.state IN (1, 4)
					ORDER BY d.arrival LIMIT 1)
				ELSE (
					SELECT MIN(x.message) FROM (
						SELECT d.message FROM deliveries d INDEXED BY deliveries_ready
						WHERE d.mailbox = b.id AND d.state = 1
						ORDER BY d.rank, d.message LIMIT 1000) AS x)
				END AS message
			FROM mailboxes b
			WHERE b.id IN (SELECT value FROM json_each(?))) AS o
		JOIN messages m ON m.revision = o.message`
	countClaimsOfAgents = `
		SELECT h.name, c.n
		FROM (
			SELECT holder, COUNT(*) AS n
			FROM deliveries INDEXED BY deliveries_claimed
			WHERE state = 2
			GROUP BY holder) AS c
		JOIN mailboxes h ON h.id = c.holder
		WHERE h.session = ?`
	selectWaitingOfAgents = `
		SELECT name, waiting FROM mailboxes
		WHERE session = ? AND kind = 1 AND name IN (SELECT value FROM json_each(?))`
)
