package backlog

// The ranks of a session whose ageing has changed.
const (
	upsertRerank = `
		INSERT INTO reranks (session, version) VALUES (?, 1)
		ON CONFLICT (session) DO UPDATE SET version = reranks.version + 1`
	selectRerank = `
		SELECT version FROM reranks WHERE session = ?`
	selectReranks = `
		SELECT session FROM reranks`
	deleteRerank = `
		DELETE FROM reranks WHERE session = ?`
	deleteRerankVersion = `
		DELETE FROM reranks WHERE session = ? AND version = ?`
	// All that is unfinished in a session, directives aside, by the index of each state.
	selectRanked = `
		SELECT message, mailbox FROM deliveries
		WHERE state = 2 AND rank >= -4611686018427387904 AND mailbox IN (SELECT id FROM mailboxes WHERE session = ?1)
		UNION ALL
		SELECT message, mailbox FROM deliveries
		WHERE state = 1 AND rank >= -4611686018427387904 AND mailbox IN (SELECT id FROM mailboxes WHERE session = ?1)
		UNION ALL
		SELECT message, mailbox FROM deliveries
		WHERE state = 3 AND rank >= -4611686018427387904 AND mailbox IN (SELECT id FROM mailboxes WHERE session = ?1)
		UNION ALL
		SELECT message, mailbox FROM deliveries
		WHERE state = 4 AND rank >= -4611686018427387904 AND mailbox IN (SELECT id FROM mailboxes WHERE session = ?1)
		LIMIT ?2`
	updateRank = `
		UPDATE deliveries
		SET rank = (SELECT CASE WHEN ?1 = 0 THEN 10 - m.priority ELSE m.created_at - m.priority * ?1 END
			FROM messages m WHERE m.revision = deliveries.message)
		WHERE message = ?2 AND mailbox = ?3 AND state <= 4`
)

// What is unfinished in a closed session. Each query goes through the mailboxes by their ids, from one
// on, and in a mailbox by the index of the state. The sign before session keeps SQLite from the index of
// the sessions, which is not in the order of ids.
const (
	deleteDepartures = `
		DELETE FROM departures
		WHERE mailbox IN (
			SELECT p.mailbox FROM departures p CROSS JOIN mailboxes b
			WHERE b.id = p.mailbox AND b.session = ? LIMIT ?)`
	// The mailbox of an agent stands for the agent in holder.
	selectClosedClaims = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ? AND d.holder = b.id AND d.state = 2
		ORDER BY b.id
		LIMIT ?`
	selectClosedBlocked = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ? AND d.mailbox = b.id AND d.state = 4
		ORDER BY b.id
		LIMIT ?`
	selectClosedDelayed = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ? AND d.mailbox = b.id AND d.state = 3
		ORDER BY b.id
		LIMIT ?`
	selectClosedReady = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ? AND d.mailbox = b.id AND d.state = 1
		ORDER BY b.id
		LIMIT ?`
	selectClosedNotices = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ? AND d.mailbox = b.id AND d.state = 9
		ORDER BY b.id
		LIMIT ?`
	cancelClosed = `
		UPDATE deliveries
		SET state = 8, finished_at = ?, due_at = NULL, arrival = -abs(arrival)
		WHERE message = ? AND mailbox = ?`
	deleteResend = `
		DELETE FROM resends WHERE message = ? AND mailbox = ?`
	settleQuestions = `
		UPDATE questions SET settled = ?
		WHERE message IN (SELECT message FROM questions WHERE session = ? AND settled IS NULL LIMIT ?)`
)

// Messages that have become moot.
const (
	// selectAbout finds the agent's own deliveries by mailbox, and those of a queue by their claim.
	selectAbout = `
		SELECT d.message, d.mailbox, d.state, COALESCE(d.ordering_key, '')
		FROM messages m JOIN deliveries d ON d.message = m.revision
			JOIN mailboxes b ON b.id = d.mailbox LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE m.about = ? AND m.revision <= ? AND (? = '' OR m.type = ?) AND d.state IN (1, 2, 3, 4, 9)
			AND (? = '' OR b.kind = 1 AND b.name = ? OR d.state = 2 AND h.name = ?)
		LIMIT ?`
	selectMessagesAbout = `
		SELECT revision FROM messages WHERE about = ? AND (? = '' OR type = ?)`
)
