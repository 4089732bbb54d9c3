package inbox

import "brokerd/internal/broker"

// Messages of a session, by revision.
const (
	messageColumns = `
		SELECT m.revision, m.id, m.sender, m.sender_role, m.created_at, m.expires_at, m.thread, m.content,
			m.type, m.priority, m.channel, m.correlation, m.task`
	selectMessages = messageColumns + `
		FROM messages m
		WHERE m.session = ? AND m.revision > ? AND m.revision < ?`
	selectStretchEnd = `
		SELECT revision FROM messages WHERE revision > ? AND revision < ? ORDER BY revision LIMIT 1 OFFSET ?`
	selectStretchEndDown = `
		SELECT revision FROM messages WHERE revision > ? AND revision < ? ORDER BY revision DESC LIMIT 1 OFFSET ?`
	byThread      = ` AND (m.thread = ? OR m.revision = ?)`
	byCorrelation = ` AND m.correlation = ?`
	byTask        = ` AND m.task = ?`
	ascending     = ` ORDER BY m.revision LIMIT ?`
	descending    = ` ORDER BY m.revision DESC LIMIT ?`
)

// Deliveries in one mailbox.
const (
	inboxColumns = messageColumns + `,
			d.state, d.arrival, d.claims, d.attempts, d.max_attempts, h.name, d.consumer,
			d.claimed_at, d.delivered_at, d.read_at, d.due_at
		FROM deliveries d JOIN messages m ON m.revision = d.message LEFT JOIN mailboxes h ON h.id = d.holder`
	// SQLite begins the search of the index at the first of two lower bounds: at the position, not
	// at 0.
	selectArrivals = inboxColumns + `
		WHERE d.mailbox = ? AND d.arrival > ? AND d.arrival > 0
		ORDER BY d.arrival
		LIMIT ?`
	selectArrivalsDown = inboxColumns + `
		WHERE d.mailbox = ? AND d.arrival > 0 AND d.arrival < ?
		ORDER BY d.arrival DESC
		LIMIT ?`
)

// The summary of an inbox.
const (
	selectSummary = `
		SELECT m.priority, m.type, COUNT(*), COUNT(*) FILTER (WHERE x.read_at IS NULL), MIN(m.created_at)
		FROM (
			SELECT message, read_at, state FROM deliveries
			WHERE mailbox = ? AND arrival > 0
			ORDER BY arrival DESC LIMIT ?) AS x
		JOIN messages m ON m.revision = x.message
		WHERE x.state <> 9
		GROUP BY m.priority, m.type`
	selectFirstSent = `
		SELECT m.created_at
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.mailbox = ? AND d.arrival > 0 AND d.state <> 9
		ORDER BY d.arrival
		LIMIT 1`
	countClaims = `
		SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE state = 2 AND holder = ? LIMIT ?) AS x`
	selectDirectives = inboxColumns + `
		WHERE d.mailbox = ?1 AND d.message IN (SELECT message FROM (` + broker.SelectDirectiveKeys + `) AS x)
		ORDER BY d.arrival
		LIMIT ?3`
	selectOpenOffers = `
		SELECT message, number, way, harness, mark, offered_at
		FROM offers
		WHERE mailbox = ? AND due_at IS NOT NULL
		ORDER BY message
		LIMIT ?`
)
