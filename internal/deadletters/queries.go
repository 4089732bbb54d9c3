package deadletters

// Dead letters. A walk merges the mailboxes, newest message first: it reads the newest dead letter of each, and
// then each mailbox in its order by the index deliveries_dead.
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
		WHERE message = ?1 AND state = 6
			AND (?2 IS NULL OR mailbox IN (SELECT CAST(value AS BIGINT) FROM json_each(?2)))
		LIMIT ?3`

	selectRedriven = `
		SELECT d.rank, m.priority, m.created_at, d.expires_at, d.ordering_key, b.kind <> 1
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox JOIN messages m ON m.revision = d.message
		WHERE d.message = ? AND d.mailbox = ?`
	updateRedriven = `
		UPDATE deliveries
		SET state = ?, rank = ?, attempts = 0, arrival = ?, expires_at = ?, finished_at = NULL, due_at = NULL
		WHERE message = ? AND mailbox = ?`
	selectState = `
		SELECT state FROM deliveries WHERE message = ? AND mailbox = ?`
	updatePurged = `
		UPDATE deliveries SET state = 8 WHERE message = ? AND mailbox = ?`
)

// The mail of agents that have deregistered. Each query of this mail goes by the index of its state.
const (
	insertDeparture = `
		INSERT INTO departures (mailbox, role, reason, dead) VALUES (?, ?, ?, ?)`
	existsDeparture = `
		SELECT EXISTS (SELECT 1 FROM departures WHERE mailbox = ?)`
	selectDeparture = `
		SELECT b.session, b.name, p.role, p.reason, p.dead
		FROM departures p JOIN mailboxes b ON b.id = p.mailbox
		WHERE p.mailbox = ?`
	selectDepartures = `
		SELECT mailbox FROM departures`
	updateDeparture = `
		UPDATE departures SET dead = ? WHERE mailbox = ?`
	deleteDeparture = `
		DELETE FROM departures WHERE mailbox = ?`
	// The last of each ordering key comes first, so that no blocked message loses the one in front of it.
	selectLeftOrdered = `
		SELECT message FROM deliveries
		WHERE mailbox = ? AND ordering_key IS NOT NULL AND state <= 4 AND state <> 2
		ORDER BY ordering_key DESC, message DESC
		LIMIT ?`
	selectLeftDelayed = `
		SELECT message FROM deliveries WHERE mailbox = ? AND state = 3 AND ordering_key IS NULL LIMIT ?`
	selectLeftReady = `
		SELECT message FROM deliveries WHERE mailbox = ? AND state = 1 AND ordering_key IS NULL LIMIT ?`
	selectVoteLetters = `
		SELECT d.message, d.state
		FROM json_each(?) AS j JOIN deliveries d ON d.message = CAST(j.value AS BIGINT) AND d.mailbox = ?
			JOIN messages m ON m.revision = d.message
		WHERE m.about IS NOT NULL AND m.type = 'vote_initiate'`
	insertGone = `
		INSERT INTO attempts (message, mailbox, claim, number, holder, consumer, claimed_at, ended_at, error)
		SELECT message, mailbox, -1, attempts, mailbox, '', ?, ?, ?
		FROM deliveries
		WHERE mailbox = ? AND message IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
		ON CONFLICT (message, mailbox, claim) DO UPDATE SET ended_at = excluded.ended_at, error = excluded.error`
	updateGone = `
		UPDATE deliveries
		SET state = 6, finished_at = ?, due_at = NULL, arrival = -abs(arrival)
		WHERE mailbox = ? AND message IN (SELECT CAST(value AS BIGINT) FROM json_each(?))`
	cancelNoticesOf = `
		UPDATE deliveries SET state = 8, finished_at = ?, arrival = -abs(arrival)
		WHERE mailbox = ? AND state = 9
			AND message IN (SELECT message FROM deliveries WHERE mailbox = ? AND state = 9 LIMIT ?)`
)

// Moves.
const (
	// The deliveries that wait in a mailbox, each found by the index of its state, without those that the new mailbox, or
	// an agent that takes from it, may have as well.
	selectMovable = `
		SELECT d.message, d.state, d.rank, d.arrival, d.due_at, d.ordering_key
		FROM (
			SELECT message FROM deliveries WHERE mailbox = ?1 AND state = 1
			UNION ALL
			SELECT message FROM deliveries WHERE mailbox = ?1 AND state = 3
			UNION ALL
			SELECT message FROM deliveries WHERE mailbox = ?1 AND state = 4) AS x
		JOIN deliveries d ON d.message = x.message AND d.mailbox = ?1
		WHERE d.rank >= ?2 AND (?3 IS NULL OR d.message IN (SELECT CAST(value AS BIGINT) FROM json_each(?3)))
			AND NOT EXISTS (
				SELECT 1 FROM deliveries o
				WHERE o.message = d.message AND o.mailbox <> ?1 AND (?4 <> 0 OR o.mailbox = ?5))
		ORDER BY d.message
		LIMIT ?6`
	updateMoved = `
		UPDATE deliveries
		SET mailbox = ?, state = ?, arrival = ?, delivered_at = NULL, read_at = NULL
		WHERE message = ? AND mailbox = ?`
	updateMovedAttempts = `
		UPDATE attempts SET mailbox = ? WHERE message = ? AND mailbox = ?`
	updateMovedResend = `
		UPDATE resends SET mailbox = ? WHERE message = ? AND mailbox = ?`
	updateMovedOffers = `
		UPDATE offers
		SET mailbox = ?, returned_at = CASE WHEN due_at IS NULL THEN returned_at ELSE ? END,
			why = CASE WHEN due_at IS NULL THEN why ELSE 'the message was moved' END, due_at = NULL
		WHERE message = ? AND mailbox = ?`
	deleteMovedResend = `
		DELETE FROM resends WHERE message = ? AND mailbox = ?`
)
