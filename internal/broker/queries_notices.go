package broker

// about is the revision of the grant or question that a notice is about, 0 = none. An unread notice is a
// delivery in state 9. That state also expires, so deliveries_expiring covers it.
const notices = `
ALTER TABLE messages ADD COLUMN about INTEGER;
CREATE INDEX messages_about ON messages (about) WHERE about IS NOT NULL;
CREATE INDEX deliveries_notices ON deliveries (mailbox, message) WHERE state = 9;
DROP INDEX deliveries_expiring;
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (1, 3, 4, 9);
`

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
	countUnreadNotices = `
		SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = ? AND state = 9 LIMIT ?) AS x`
	countUnofferedNotices = `
		SELECT COUNT(*) FROM (
			SELECT 1 FROM deliveries d
			WHERE d.mailbox = ? AND d.state = 9
				AND NOT EXISTS (
					SELECT 1 FROM offers o
					WHERE o.mailbox = d.mailbox AND o.message = d.message AND o.due_at IS NOT NULL AND o.mark <> ?)
			LIMIT ?) AS x`
	selectNotices = `
		SELECT d.message, m.type, m.created_at, m.content
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.mailbox = ? AND d.state = 9
		ORDER BY d.message
		LIMIT ?`
	updateNoticeRead = `
		UPDATE deliveries
		SET state = 5, holder = ?1, finished_at = ?2, read_at = ?2, delivered_at = COALESCE(delivered_at, ?2),
			arrival = -abs(arrival)
		WHERE message = ?3 AND mailbox = ?1 AND state = 9`
)
