package archive

// Queries of messages that may be due. The sums take the low halves of times, which cannot overflow.
const (
	selectStandings = `
		SELECT m.revision, m.session, m.created_at, m.channel, COUNT(d.message),
			COUNT(*) FILTER (WHERE d.state NOT BETWEEN 5 AND 8) = 0
				AND NOT EXISTS (
					SELECT 1 FROM questions q
					WHERE q.message = m.revision AND +q.settled IS NULL AND +q.overdue IS NULL),
			MAX(CASE WHEN d.state <> 6 THEN d.finished_at END), MAX(CASE WHEN d.state = 6 THEN d.finished_at END)
		FROM messages m LEFT JOIN deliveries d ON d.message = m.revision
		WHERE m.revision > ? AND (? = 0 OR m.session = ?)
		GROUP BY m.revision
		ORDER BY m.revision
		LIMIT ?`
	selectAlike = `
		SELECT COUNT(*), MIN(revision), MAX(revision), MIN(session), MAX(session), MAX(created_at),
			MIN(channel), COUNT(channel) = 0 OR COUNT(channel) = COUNT(*) AND MIN(channel) = MAX(channel)
		FROM (
			SELECT revision, session, created_at, channel FROM messages
			WHERE revision > ? ORDER BY revision LIMIT ?) AS x`
	selectAlikeDeliveries = `
		SELECT COUNT(*), COUNT(*) FILTER (WHERE state NOT IN (5, 7, 8)) = 0
				AND NOT EXISTS (
					SELECT 1 FROM questions WHERE message BETWEEN ?1 AND ?2 AND settled IS NULL AND overdue IS NULL),
			MAX(finished_at)
		FROM deliveries
		WHERE message BETWEEN ?1 AND ?2`
	selectStretch = `
		SELECT (SELECT COUNT(*) FROM messages WHERE revision BETWEEN ?1 AND ?2), COUNT(*),
			COUNT(*) FILTER (WHERE state NOT BETWEEN 5 AND 8) = 0
				AND NOT EXISTS (
					SELECT 1 FROM questions WHERE message BETWEEN ?1 AND ?2 AND settled IS NULL AND overdue IS NULL),
			SUM(state), SUM(claims), SUM((finished_at & 4294967295) + COALESCE(read_at & 4294967295, 0))
		FROM deliveries
		WHERE message BETWEEN ?1 AND ?2`

	selectRecords = `
		SELECT revision, session, id, sender, sender_role, created_at, expires_at, thread, content
		FROM messages
		WHERE revision BETWEEN ? AND ?
		ORDER BY revision`
	selectRecordDeliveries = `
		SELECT message, mailbox, state, abs(arrival), claims, attempts, max_attempts, holder, consumer,
			claimed_at, delivered_at, read_at, finished_at, due_at
		FROM deliveries
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox`
	selectRecordAttempts = `
		SELECT message, mailbox, number, holder, consumer, claimed_at, ended_at, error
		FROM attempts
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox, ended_at, claim`
	selectRecordOffers = `
		SELECT message, mailbox, number, way, harness, mark, offered_at, accepted_at, returned_at, why
		FROM offers
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox, number`

	selectChannelsKept = `
		SELECT b.session, b.name, c.retention
		FROM channels c JOIN mailboxes b ON b.id = c.mailbox
		WHERE c.retention IS NOT NULL`
)
