package mail

// Mailboxes and channels.
const (
	selectMailbox = `
		SELECT id FROM mailboxes WHERE session = ? AND kind = ? AND name = ?`
	selectWaiting = `
		SELECT waiting FROM mailboxes WHERE id = ?`
	insertMailbox = `
		INSERT INTO mailboxes (session, kind, name) VALUES (?, ?, ?) RETURNING id`
	selectMailboxName = `
		SELECT kind, name FROM mailboxes WHERE id = ?`
	countDeadIn = `
		SELECT COUNT(*)
		FROM (
			SELECT 1 FROM mailboxes b CROSS JOIN deliveries d
			WHERE b.session = ?1 AND (?2 IS NULL OR b.id IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))
				AND d.mailbox = b.id AND d.state = 6
			LIMIT ?3) AS x`
	addWaiting = `
		UPDATE mailboxes SET waiting = waiting + ? WHERE id = ?`
	insertChannel = `
		INSERT INTO channels (mailbox, default_ttl) VALUES (?, ?) ON CONFLICT DO NOTHING`
	selectChannelTTL = `
		SELECT c.default_ttl
		FROM mailboxes b JOIN channels c ON c.mailbox = b.id
		WHERE b.session = ? AND b.kind = 3 AND b.name = ?`
	selectSubscribed = `
		SELECT b.id, b.name
		FROM subscriptions s JOIN mailboxes b ON b.id = s.channel
		WHERE s.agent = ?
		ORDER BY b.name`
	selectSubscribedChannels = `
		SELECT b.name
		FROM (SELECT id, name FROM mailboxes WHERE session = ? AND kind = 3 ORDER BY name LIMIT ?) b
		WHERE EXISTS (SELECT 1 FROM subscriptions s WHERE s.channel = b.id)
		ORDER BY b.name`
	selectSubscribers = `
		SELECT b.name
		FROM subscriptions s JOIN mailboxes b ON b.id = s.agent
		WHERE s.channel = ?
		ORDER BY b.name`
	selectAudience = `
		SELECT DISTINCT a.name
		FROM mailboxes c JOIN subscriptions s ON s.channel = c.id JOIN mailboxes a ON a.id = s.agent
		WHERE c.session = ? AND c.kind = 3 AND c.name IN (?, 'event/*') AND a.name > ?
		ORDER BY a.name
		LIMIT ?`
	selectAudienceTTL = `
		SELECT c.default_ttl
		FROM mailboxes b JOIN channels c ON c.mailbox = b.id
		WHERE b.session = ? AND b.kind = 3 AND b.name IN (?, 'event/*') AND c.default_ttl > 0
		ORDER BY b.name = 'event/*'
		LIMIT 1`
)

// Reading.
const (
	selectMessage = `
		SELECT session, id, sender, sender_role, created_at, expires_at, thread, content FROM messages WHERE revision = ?`
	selectDeliveries = `
		SELECT d.mailbox, b.kind, b.name, d.state, abs(d.arrival), d.claims, d.attempts, d.max_attempts, h.name, d.consumer,
			d.claimed_at, d.delivered_at, d.read_at, d.finished_at, d.due_at
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ? AND d.mailbox BETWEEN ? AND ?
		ORDER BY d.mailbox
		LIMIT ?`
	selectAttempts = `
		SELECT a.mailbox, a.number, h.name, a.consumer, a.claimed_at, a.ended_at, a.error
		FROM attempts a LEFT JOIN mailboxes h ON h.id = a.holder
		WHERE a.message = ? AND a.mailbox BETWEEN ? AND ?
		ORDER BY a.mailbox, a.ended_at, a.claim`
	countUnread = `
		SELECT COUNT(*) FILTER (WHERE x.read_at IS NULL AND x.state <> 9)
		FROM (SELECT read_at, state FROM deliveries WHERE mailbox = ? AND arrival > 0 ORDER BY arrival DESC LIMIT ?) AS x`
	countReady = `
		SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = ? AND state = 1 LIMIT ?) AS x`
	// CaseOldestReady is the oldest message that a claim could take from the mailbox b: NULL if there is none. It reads
	// an agent's mailbox by arrival, up to the first delivery that no agent has claimed. It reads a queue in the order
	// of claims, where the oldest of the first 1,000 counts.
	CaseOldestReady = `
		CASE
			WHEN b.waiting = 0 THEN NULL
			WHEN b.kind = 1 THEN (
				SELECT x.message
				FROM (
					SELECT d.message, d.state FROM deliveries d
					WHERE d.mailbox = b.id AND d.arrival > 0
					ORDER BY d.arrival LIMIT 1000) AS x
				WHERE x.state IN (1, 4)
				LIMIT 1)
			ELSE (
				SELECT MIN(x.message)
				FROM (
					SELECT d.message FROM deliveries d
					WHERE d.mailbox = b.id AND d.state = 1
					ORDER BY d.rank, d.message LIMIT 1000) AS x)
			END`
)

// Notices.
const (
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
)
