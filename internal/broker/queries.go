package broker

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

	deleteSubscriptions = `
		DELETE FROM subscriptions WHERE agent = ?`
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
	selectCopied = `
		SELECT type, priority, COALESCE(channel, ''), created_at, expires_at FROM messages WHERE revision = ?`
	selectAudienceTTL = `
		SELECT c.default_ttl
		FROM mailboxes b JOIN channels c ON c.mailbox = b.id
		WHERE b.session = ? AND b.kind = 3 AND b.name IN (?, 'event/*') AND c.default_ttl > 0
		ORDER BY b.name = 'event/*'
		LIMIT 1`
	selectIsEvent = `
		SELECT substr(channel, 1, 6) = 'event/' FROM messages WHERE revision = ?`
	// selectIsBrokers finds out whether the broker has sent a message to inform its recipients.
	selectIsBrokers = `
		SELECT substr(channel, 1, 6) = 'event/' OR about IS NOT NULL FROM messages WHERE revision = ?`
)

// Sending.
const (
	insertMessage = `
		INSERT INTO messages (revision, id, session, sender, sender_role, created_at, expires_at,
			type, priority, channel, thread, correlation, task, producer, number, content,
			recipients, refused, related, flags)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	insertMessageArtifact = `
		INSERT INTO message_artifacts (session, artifact, message) VALUES (?, ?, ?)
		ON CONFLICT (session, artifact, message) DO NOTHING`
	insertResend = `
		INSERT INTO resends (message, mailbox, after, due_at) VALUES (?, ?, ?, ?)`
	// A reply that a call waits for begins as ACKED.
	insertAwaited = `
		INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts, holder, delivered_at, read_at, finished_at, expires_at)
		VALUES (?1, ?2, 5, ?3, 0 - ?1, ?4, ?2, ?5, ?5, ?5, ?6)`
	insertDelivery = `
		INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts, due_at, expires_at, ordering_key)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	insertHanded = `
		INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts, expires_at, ordering_key,
			claims, holder, consumer, claimed_at, claim_for, delivered_at)
		VALUES (?1, ?2, 2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10, ?11, ?10)`
	existsOrdered = `
		SELECT EXISTS (SELECT 1 FROM deliveries WHERE mailbox = ? AND ordering_key = ? AND state <= 4)`
)

// Handing out. The rows of the selectReady queries are read by readReady.
const (
	readyColumns = `
		SELECT d.rank, d.message, d.claims, d.attempts, d.max_attempts, d.delivered_at, d.ordering_key IS NOT NULL,
			m.id, m.sender, m.sender_role, m.created_at, m.expires_at, m.thread, m.type, m.priority,
			m.task, m.correlation,
			CASE WHEN length(m.content) <= 4096 THEN m.content END, length(m.content)
		FROM deliveries d JOIN messages m ON m.revision = d.message `
	selectReady = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND (d.expires_at IS NULL OR d.expires_at > ?) AND m.sender <> ?
		ORDER BY d.rank, d.message
		LIMIT ?`
	selectReadyFrom = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND (d.rank, d.message) > (?, ?) AND (d.expires_at IS NULL OR d.expires_at > ?)
		ORDER BY d.rank, d.message
		LIMIT ?`
	selectReadyFiltered = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND (d.rank, d.message) > (?, ?) AND (d.expires_at IS NULL OR d.expires_at > ?)
			AND ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
	filtered = `m.sender <> ? AND (? IS NULL OR m.type IN (SELECT value FROM json_each(?))) AND m.priority >= ?
			AND (? IS NULL OR m.sender IN (SELECT value FROM json_each(?)))
			AND (? = '' OR m.thread = ? OR m.thread IS NULL AND m.revision = ? AND m.id = ?)
			AND (? = '' OR m.task = ?) AND (? = '' OR m.correlation = ?)`
	selectReadyOne = readyColumns + `
		WHERE d.message = ? AND d.mailbox = ? AND d.state = 1`
	selectClaimable = `
		SELECT d.mailbox, d.state, h.name, d.consumer, d.due_at, d.expires_at
		FROM deliveries d LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ? AND d.mailbox IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
		LIMIT 1`
	existsReady = `
		SELECT EXISTS (SELECT 1 FROM deliveries WHERE mailbox = ? AND state = 1)`
	updateClaimFresh = `
		UPDATE deliveries
		SET state = 2, claims = claims + 1, holder = ?, consumer = ?, claimed_at = ?, claim_for = ?, delivered_at = ?, due_at = NULL
		WHERE message = ? AND mailbox = ?`
	updateClaim = `
		UPDATE deliveries
		SET state = 2, claims = claims + 1, holder = ?, consumer = ?, claimed_at = ?, claim_for = ?, due_at = NULL
		WHERE message = ? AND mailbox = ?`
	heldColumns = `
		SELECT d.message, d.mailbox, b.kind, b.name, d.claims, d.attempts, d.max_attempts, d.claim_for, d.ordering_key IS NOT NULL,
			m.id, m.sender, m.sender_role, m.created_at, m.expires_at, m.thread, length(m.content)
		FROM deliveries d JOIN messages m ON m.revision = d.message JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.state = 2 AND d.holder = ? AND d.consumer = ?`
	selectHeldClaims = heldColumns + `
		ORDER BY d.message
		LIMIT ?`
	selectHeldOfTopic = heldColumns + ` AND ` + filtered + `
		ORDER BY d.message
		LIMIT ?`
	selectHeldGiven = heldColumns + ` AND d.message IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
		ORDER BY d.message`
	countHeldClaims = `
		SELECT COUNT(*) FROM deliveries WHERE state = 2 AND holder = ? AND consumer = ?`
	selectOpenClaims = `
		SELECT message, claims FROM deliveries WHERE state = 2 AND holder = ? LIMIT 5`
	selectRunningClaims = `
		SELECT message, mailbox, claim_for FROM deliveries WHERE state = 2`
	selectWhyEmpty = `
		SELECT (SELECT MIN(due_at) FROM deliveries WHERE mailbox = ? AND state = 3),
			EXISTS (SELECT 1 FROM deliveries WHERE mailbox = ? AND ordering_key IS NOT NULL AND state <= 4 AND state = 4)`
)

// Settling.
const (
	selectHeld = `
		SELECT d.message, d.mailbox, d.state, d.rank, d.claims, d.attempts, d.max_attempts, d.holder, d.consumer,
			d.claimed_at, d.claim_for, d.expires_at, d.ordering_key, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.message = ? AND (d.mailbox = ? OR d.holder = ?)`
	selectHolder = `
		SELECT b.name, d.claims FROM deliveries d JOIN mailboxes b ON b.id = d.holder
		WHERE d.message = ? AND d.state = 2
		LIMIT 1`
	selectHeldBy = `
		SELECT d.message, d.mailbox, d.rank, d.claims, d.attempts, d.max_attempts, d.consumer,
			d.claimed_at, d.claim_for, d.expires_at, d.ordering_key, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.state = 2 AND d.holder = ? AND d.claimed_at < ?
		LIMIT ?`
	selectClaimed = `
		SELECT b.session, d.rank, d.claims, d.attempts, d.max_attempts, d.holder, d.consumer,
			d.claimed_at, d.claim_for, d.expires_at, d.ordering_key, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.message = ? AND d.mailbox = ? AND d.state = 2`
	updateAckReady = `
		UPDATE deliveries
		SET state = 5, holder = ?1, finished_at = ?2, read_at = COALESCE(read_at, ?2), delivered_at = COALESCE(delivered_at, ?2),
			due_at = NULL, arrival = -abs(arrival)
		WHERE message = ?3 AND mailbox = ?1 AND state IN (1, 9) AND (expires_at IS NULL OR expires_at > ?2)
		RETURNING ordering_key`
	updateAckClaimed = `
		UPDATE deliveries
		SET state = 5, finished_at = ?1, read_at = COALESCE(read_at, ?1), arrival = -abs(arrival)
		WHERE message = ?2 AND mailbox = ?3 AND state = 2 AND claims = ?4 AND holder = ?5`
	updateAck = `
		UPDATE deliveries
		SET state = 5, holder = ?1, finished_at = ?2, read_at = COALESCE(read_at, ?2), delivered_at = COALESCE(delivered_at, ?2),
			due_at = NULL, arrival = -abs(arrival)
		WHERE message = ?3 AND mailbox = ?4`
	insertAttempt = `
		INSERT INTO attempts (message, mailbox, claim, number, holder, consumer, claimed_at, ended_at, error)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	updatePutBack = `
		UPDATE deliveries
		SET state = ?, attempts = ?, due_at = ?, finished_at = ?,
			arrival = CASE WHEN ? IS NULL THEN arrival ELSE -abs(arrival) END
		WHERE message = ? AND mailbox = ?`
	updateClaimFor = `
		UPDATE deliveries SET claim_for = ? WHERE message = ? AND mailbox = ?`
	updateState = `
		UPDATE deliveries SET state = ? WHERE message = ? AND mailbox = ?`
	updateFinish = `
		UPDATE deliveries SET state = ?, finished_at = ?, arrival = -abs(arrival) WHERE message = ? AND mailbox = ?`
	selectState = `
		SELECT state FROM deliveries WHERE message = ? AND mailbox = ?`
	selectOrdering = `
		SELECT ordering_key FROM deliveries WHERE message = ? AND mailbox = ?`
	selectHead = `
		SELECT d.message, d.state, d.rank, d.arrival, d.due_at, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.mailbox = ? AND d.ordering_key = ? AND d.state <= 4
		ORDER BY d.message
		LIMIT 1`
)

// The calendar.
const (
	selectDue = `
		SELECT d.message, d.mailbox, b.session, d.rank, d.arrival, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.state = 3 AND d.due_at <= ?
		ORDER BY d.due_at
		LIMIT ?`
	selectExpired = `
		SELECT d.message, d.mailbox, b.session, d.state, d.ordering_key
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.expires_at IS NOT NULL AND d.state IN (1, 3, 4, 9) AND d.expires_at <= ?
		ORDER BY d.expires_at
		LIMIT ?`
	selectNextTimes = `
		SELECT (SELECT MIN(due_at) FROM deliveries WHERE state = 3),
			(SELECT MIN(expires_at) FROM deliveries WHERE expires_at IS NOT NULL AND state IN (1, 3, 4, 9))`
	updateArrived = `
		UPDATE deliveries SET state = 1, arrival = ? WHERE message = ? AND mailbox = ?`
)

// Reading.
const (
	selectMessage = `
		SELECT session, id, sender, sender_role, created_at, expires_at, thread, content FROM messages WHERE revision = ?`
	selectContent = `
		SELECT content FROM messages WHERE revision = ?`
	updateDelivered = `
		UPDATE deliveries SET delivered_at = ? WHERE message = ? AND mailbox = ? AND delivered_at IS NULL`
	updateRead = `
		UPDATE deliveries SET read_at = ?, delivered_at = COALESCE(delivered_at, ?) WHERE message = ? AND mailbox = ? AND read_at IS NULL`
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
	selectType = `
		SELECT type FROM messages WHERE revision = ?`
)

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
		WHERE ordering_key IS NOT NULL AND state <= 4 AND state = 4 AND rank >= -4611686018427387904
			AND mailbox IN (SELECT id FROM mailboxes WHERE session = ?1)
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
	selectClosedOrdered = `
		SELECT d.message, d.mailbox, b.id
		FROM mailboxes b CROSS JOIN deliveries d
		WHERE +b.session = ? AND b.id >= ?
			AND d.mailbox = b.id AND d.ordering_key IS NOT NULL AND d.state <= 4 AND d.state <> 2
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
