package gauges

import "brokerd/internal/mail"

const (
	countTotals = `
		SELECT (SELECT COUNT(*) FROM messages), (SELECT COUNT(*) FROM deliveries)`
	selectGauges = `
		SELECT kind, SUM(waiting), MAX(waiting), MIN(oldest)
		FROM (SELECT b.kind, b.waiting, ` + mail.CaseOldestReady + ` AS oldest FROM mailboxes b) AS x
		GROUP BY kind`
	selectOldest = `
		SELECT o.mailbox, m.created_at
		FROM (
			SELECT b.id AS mailbox, ` + mail.CaseOldestReady + ` AS message
			FROM mailboxes b
			WHERE b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?))) AS o
		JOIN messages m ON m.revision = o.message`
	selectSentAt = `
		SELECT created_at FROM messages WHERE revision = ?`
	countClaimedByKind = `
		SELECT b.kind, COUNT(*)
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.state = 2
		GROUP BY b.kind`
	countDead = `
		SELECT COUNT(*) FROM (
			SELECT 1 FROM deliveries WHERE state = 6 LIMIT ?) AS x`
	selectClaimants = `
		SELECT b.name
		FROM mailboxes b
		WHERE b.session = ? AND b.kind = 1 AND (? = '' OR b.name = ?)
			AND EXISTS (SELECT 1 FROM deliveries d WHERE d.state = 2 AND d.holder = b.id)`
	selectClaimsHeld = `
		SELECT b.session, b.name, COUNT(*), MIN(d.claimed_at)
		FROM deliveries d JOIN mailboxes b ON b.id = d.holder
		WHERE d.state = 2
		GROUP BY b.session, b.name`
	selectMessageArtifact = `
		SELECT 1 FROM message_artifacts WHERE session = ? AND artifact = ? LIMIT 1`
	selectOfTask = `
		SELECT id, revision, type, content FROM messages WHERE task = ? AND session = ? ORDER BY revision DESC LIMIT ?`
)
