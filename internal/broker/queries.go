package broker

// Agents that deregister.
const (
	deleteSubscriptions = `
		DELETE FROM subscriptions WHERE agent = ?`
)

// Delivering.
const (
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

// Dispatch. The rows of the selectReady queries are read by readReady.
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
			EXISTS (SELECT 1 FROM deliveries WHERE mailbox = ? AND state = 4)`
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
		WHERE d.state IN (1, 3, 4, 9) AND d.expires_at <= ?
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
	selectContent = `
		SELECT content FROM messages WHERE revision = ?`
	updateDelivered = `
		UPDATE deliveries SET delivered_at = ? WHERE message = ? AND mailbox = ? AND delivered_at IS NULL`
	updateRead = `
		UPDATE deliveries SET read_at = ?, delivered_at = COALESCE(delivered_at, ?) WHERE message = ? AND mailbox = ? AND read_at IS NULL`
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
	selectIsEvent = `
		SELECT substr(channel, 1, 6) = 'event/' FROM messages WHERE revision = ?`
	selectType = `
		SELECT type FROM messages WHERE revision = ?`
)
