package broker

// Tracing.
const (
	selectTraced = `
		SELECT m.id, m.sender, m.type, m.content, b.kind, b.name, h.name
		FROM messages m JOIN mailboxes b ON b.id = ? JOIN mailboxes h ON h.id = ?
		WHERE m.revision = ?`
	selectClaimOf = `
		SELECT d.mailbox, d.claims
		FROM deliveries d JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ? AND d.claims > 0 AND d.state IN (2, 5) AND h.session = ? AND h.kind = 1 AND h.name = ?
		LIMIT 1`
)
