package broker

// Dead letters. A walk merges the mailboxes, newest message first: it reads the newest dead letter of
// each, and then each mailbox in its own order by the index deliveries_dead.
const (
	selectDeadHeads = `
		WITH heads (mailbox, message) AS MATERIALIZED (
			SELECT b.id, (
				SELECT MAX(d.message) FROM deliveries d
				WHERE d.mailbox = b.id AND d.state = 6 AND d.message < ?2 + CASE WHEN b.id > ?3 THEN 1 ELSE 0 END)
			FROM mailboxes b
			WHERE b.session = ?1 AND (?4 IS NULL OR b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?4))))
		SELECT mailbox, message FROM heads WHERE message IS NOT NULL ORDER BY message DESC, mailbox LIMIT ?5`
	selectDeadIn = `
		SELECT message FROM deliveries WHERE mailbox = ? AND state = 6 AND message < ? ORDER BY message DESC LIMIT ?`
	// What a filter checks.
	selectDeadFacts = `
		SELECT m.type, m.sender, h.name, d.finished_at, (
			SELECT a.error FROM attempts a
			WHERE a.message = d.message AND a.mailbox = d.mailbox
			ORDER BY a.ended_at DESC, a.claim DESC
			LIMIT 1)
		FROM deliveries d JOIN messages m ON m.revision = d.message LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ? AND d.mailbox = ?`
	selectDeadOf = `
		SELECT message, mailbox FROM deliveries
		WHERE message = ?1 AND state = 6 AND (?2 IS NULL OR mailbox IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))
		LIMIT ?3`
)
