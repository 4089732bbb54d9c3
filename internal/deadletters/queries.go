package deadletters

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
	// The deliveries that wait in a mailbox, each found by the index of its state. Not those that
	// the new mailbox, or one of its takers if it is a queue, may have as well.
	selectMovable = `
		SELECT d.message, d.state, d.rank, d.arrival, d.due_at, d.ordering_key
		FROM (
			SELECT message FROM deliveries WHERE mailbox = ?1 AND state = 1
			UNION ALL
			SELECT message FROM deliveries WHERE mailbox = ?1 AND state = 3
			UNION ALL
			SELECT message FROM deliveries WHERE mailbox = ?1 AND ordering_key IS NOT NULL AND state <= 4 AND state = 4) AS x
		JOIN deliveries d ON d.message = x.message AND d.mailbox = ?1
		WHERE d.rank >= ?2 AND (?3 IS NULL OR d.message IN (SELECT CAST(value AS BIGINT) FROM json_each(?3)))
			AND NOT EXISTS (
				SELECT 1 FROM deliveries o WHERE o.message = d.message AND o.mailbox <> ?1 AND (?4 <> 0 OR o.mailbox = ?5))
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
