package inbox

import "brokerd/internal/mail"

// The list of mailboxes. Its cost depends on the number of mailboxes and claims, not on the number
// of messages that wait.
const (
	// k is the key of the order: the smallest comes first.
	listedBoxes = `
		WITH claims (mailbox, n) AS MATERIALIZED (
			SELECT mailbox, COUNT(*)
			FROM deliveries
			WHERE state = 2
			GROUP BY mailbox),
		boxes (id, kind, name, waiting, claimed, k) AS MATERIALIZED (
			SELECT b.id, b.kind, b.name, b.waiting, COALESCE(c.n, 0), `
	ofPage = `
			FROM mailboxes b LEFT JOIN claims c ON c.mailbox = b.id
			WHERE b.session = ?1 AND (?2 IS NULL OR b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))
				AND (b.waiting > 0 OR c.n > 0 OR EXISTS (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6))),
		b AS MATERIALIZED (
			SELECT id, kind, name, waiting, claimed, k FROM boxes WHERE (k, id) > (?3, ?4) ORDER BY k, id LIMIT ?5)
		SELECT b.id, b.k, b.kind, b.name, b.waiting, b.claimed,
			(SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6 LIMIT ?6) AS x),
			(SELECT created_at FROM messages WHERE revision = `
	inOrder = `)
		FROM b
		ORDER BY b.k, b.id`
	boxesByAge = listedBoxes + `COALESCE(` + mail.CaseOldestReady + `, 9223372036854775807)` + ofPage +
		`b.k` + inOrder
	boxesByWaiting = listedBoxes + `-b.waiting` + ofPage + mail.CaseOldestReady + inOrder
)
