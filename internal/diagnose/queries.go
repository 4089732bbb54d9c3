package diagnose

// Messages that are stuck. Every query uses an index, and reads a bounded number of messages that wait.

const (
	selectGatesOf = `
		SELECT b.name, h.halted_at, h.message, r.failures, r.open_until, r.opened_at, r.probe_message
		FROM mailboxes b
		LEFT JOIN halts h ON h.agent = b.id
		LEFT JOIN breakers r ON r.agent = b.id AND r.open_until IS NOT NULL
		WHERE +b.session = ? AND b.id IN (
			SELECT agent FROM halts UNION SELECT agent FROM breakers WHERE open_until IS NOT NULL)
		ORDER BY b.name`
	selectStuckDeliveries = `
		SELECT d.message, d.mailbox, b.kind, b.name, d.state, d.rank, d.claims, d.attempts, d.max_attempts, h.name,
			d.claimed_at, d.read_at, d.finished_at, d.due_at, d.ordering_key, m.created_at, m.sender
		FROM deliveries d
		JOIN messages m ON m.revision = d.message
		JOIN mailboxes b ON b.id = d.mailbox
		LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = ?1 AND (?2 = 0 OR d.mailbox = ?2)
		ORDER BY CASE d.state WHEN 6 THEN 0 WHEN 4 THEN 1 WHEN 1 THEN 2 WHEN 2 THEN 3 WHEN 3 THEN 4 ELSE 5 END, d.mailbox
		LIMIT ?3`
	countDeliveries = `
		SELECT COUNT(*), COUNT(*) FILTER (WHERE state = 5) FROM deliveries WHERE message = ?`
	selectLastAttempt = `
		SELECT h.name, a.ended_at, a.error
		FROM attempts a LEFT JOIN mailboxes h ON h.id = a.holder
		WHERE a.message = ? AND a.mailbox = ?
		ORDER BY a.ended_at DESC, a.claim DESC
		LIMIT 1`
	selectLastOffer = `
		SELECT way, harness, offered_at, accepted_at, returned_at, why
		FROM offers
		WHERE message = ? AND mailbox = ?
		ORDER BY number DESC
		LIMIT 1`
	countAhead = `
		SELECT COUNT(*) FROM (
			SELECT 1 FROM deliveries WHERE mailbox = ? AND state = 1 AND (rank, message) < (?, ?) LIMIT ?) AS x`
	// The first message with an ordering key, and how many come before another, at most so many.
	selectHead = `
		SELECT message FROM deliveries WHERE mailbox = ? AND ordering_key = ? AND state <= 4 ORDER BY message LIMIT 1`
	countOrderedBefore = `
		SELECT COUNT(*) FROM (
			SELECT 1 FROM deliveries WHERE mailbox = ? AND ordering_key = ? AND state <= 4 AND message < ? LIMIT ?) AS x`
	// The first message that its reader has not read, else the first; with the times of which the latest
	// is that since which it is ready.
	selectFirstInLine = `
		SELECT x.message, m.created_at, x.due_at, x.claimed_at, x.read_at IS NOT NULL
		FROM (
			SELECT message, rank, due_at, claimed_at, read_at FROM deliveries
			WHERE mailbox = ? AND state = 1 AND rank >= ?
			ORDER BY rank, message
			LIMIT ?) AS x
		JOIN messages m ON m.revision = x.message
		ORDER BY x.read_at IS NOT NULL, x.rank, x.message
		LIMIT 1`
	// The oldest message of a sender among the first that are ready in a mailbox, and how many it has there.
	selectSentReady = `
		SELECT m.revision, COUNT(*) OVER ()
		FROM (SELECT message FROM deliveries WHERE mailbox = ? AND state = 1 ORDER BY rank, message LIMIT ?) AS x
		JOIN messages m ON m.revision = x.message
		WHERE m.sender = ?
		ORDER BY m.revision
		LIMIT 1`
	selectHoldersClaims = `
		SELECT d.message, d.claims, d.claimed_at, COUNT(*) OVER ()
		FROM deliveries d
		WHERE d.state = 2 AND d.holder = ?
		ORDER BY d.claimed_at, d.message
		LIMIT ?`
	countHoldersClaims = `
		SELECT COUNT(*) FROM deliveries WHERE state = 2 AND holder = ?`
	selectQuestionOf = `
		SELECT deadline, settled, reply FROM questions WHERE message = ?`

	selectFullest = `
		SELECT id, kind, name, waiting FROM mailboxes WHERE session = ? AND waiting > 0 ORDER BY waiting DESC, id LIMIT ?`
	selectWaitingOf = `
		SELECT id, waiting FROM mailboxes WHERE session = ? AND kind = ? AND name = ?`
	// One step along the index for each key, however many messages have it.
	selectOrderings = `
		WITH RECURSIVE keys (k, number) AS (
			SELECT (SELECT MIN(ordering_key) FROM deliveries
				WHERE mailbox = ?1 AND ordering_key IS NOT NULL AND state <= 4), 1
			UNION ALL
			SELECT (SELECT MIN(ordering_key) FROM deliveries
				WHERE mailbox = ?1 AND ordering_key IS NOT NULL AND state <= 4 AND ordering_key > keys.k), number + 1
			FROM keys WHERE k IS NOT NULL AND number < ?2),
		pairs (k, head, next) AS (
			SELECT k,
				(SELECT message FROM deliveries WHERE mailbox = ?1 AND ordering_key = k AND state <= 4
					ORDER BY message LIMIT 1),
				(SELECT message FROM deliveries WHERE mailbox = ?1 AND ordering_key = k AND state <= 4
					ORDER BY message LIMIT 1 OFFSET 1)
			FROM keys WHERE k IS NOT NULL)
		SELECT p.k, p.head, m.created_at
		FROM pairs p JOIN messages m ON m.revision = p.next
		WHERE m.created_at <= ?3`
	selectLongClaims = `
		SELECT h.name, MIN(d.claimed_at)
		FROM deliveries d JOIN mailboxes h ON h.id = d.holder
		WHERE d.state = 2 AND h.session = ? AND d.claimed_at <= ?
		GROUP BY h.id
		ORDER BY MIN(d.claimed_at)
		LIMIT ?`
	selectDeadBoxes = `
		SELECT b.id, b.kind, b.name,
			(SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6 LIMIT ?2) AS x)
		FROM mailboxes b
		WHERE b.session = ?1 AND (?4 IS NULL OR b.id = ?4)
			AND EXISTS (SELECT 1 FROM deliveries WHERE mailbox = b.id AND state = 6)
		LIMIT ?3`
	selectFirstDead = `
		SELECT finished_at FROM deliveries WHERE mailbox = ? AND state = 6 ORDER BY message LIMIT 1`
	selectLastDead = `
		SELECT message FROM deliveries WHERE mailbox = ? AND state = 6 ORDER BY message DESC LIMIT 1`
	lateColumns = `
		SELECT q.message, q.deadline FROM questions q JOIN messages m ON m.revision = q.message`
	selectLate = lateColumns + `
		WHERE q.session = ? AND q.settled IS NULL AND q.overdue IS NOT NULL
		ORDER BY q.deadline
		LIMIT ?`
	selectLateAsked = lateColumns + `
		WHERE q.session = ? AND q.sender = ? AND q.settled IS NULL AND q.overdue IS NOT NULL
		ORDER BY q.message
		LIMIT ?`
	selectLateOwed = lateColumns + `
		WHERE q.session = ?1 AND q.settled IS NULL AND q.overdue IS NOT NULL AND q.sender <> ?2 AND EXISTS (
			SELECT 1 FROM deliveries d
			WHERE d.message = q.message AND (d.mailbox = ?3 OR d.holder = ?3) AND d.arrival IS NOT NULL
				AND d.state NOT IN (7, 8))
		ORDER BY q.deadline
		LIMIT ?4`

	// selectLastOfChannel returns the newest message to a channel, of the newest messages of the broker.
	selectLastOfChannel = `
		SELECT revision, sender, type, created_at
		FROM (
			SELECT revision, session, sender, type, created_at, channel FROM messages
			ORDER BY revision DESC LIMIT ?) AS newest
		WHERE session = ? AND channel = ?
		ORDER BY revision DESC
		LIMIT 1`
	// countWaitingOfChannel counts the deliveries of these messages that wait, of at most so many deliveries.
	countWaitingOfChannel = `
		SELECT count(*) FILTER (WHERE state IN (1, 3, 4))
		FROM (
			SELECT d.state AS state
			FROM (SELECT revision, session, channel FROM messages ORDER BY revision DESC LIMIT ?) AS newest
			JOIN deliveries d ON d.message = newest.revision
			WHERE newest.session = ? AND newest.channel = ?
			ORDER BY newest.revision DESC
			LIMIT ?) AS counted`
)
