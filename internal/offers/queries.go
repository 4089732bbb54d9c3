package offers

const (
	// selectOfferable returns the unread ones among the oldest unfinished deliveries that are not offered, directives
	// first, and which of them the agent wants.
	selectOfferable = `
		SELECT x.message, LENGTH(m.content),
			?3 <> 3 AND (?3 <> 2 OR x.rank < ?4 OR x.state = 9 OR EXISTS (
				SELECT 1 FROM questions q WHERE q.reply = x.message AND q.sender = ?5))
		FROM (
			SELECT * FROM (
				SELECT message, mailbox, state, rank, arrival, read_at FROM deliveries
				WHERE mailbox = ?1 AND arrival > 0
				ORDER BY arrival
				LIMIT ?2) AS unfinished
			WHERE read_at IS NULL AND state IN (1, 9)
			ORDER BY arrival
			LIMIT ?6) AS x
		JOIN messages m ON m.revision = x.message
		WHERE NOT EXISTS (
				SELECT 1 FROM offers o WHERE o.mailbox = x.mailbox AND o.message = x.message AND o.due_at IS NOT NULL)
		ORDER BY x.rank >= ?4, x.arrival`
	selectMarked = `
		SELECT message, due_at IS NOT NULL FROM offers WHERE mailbox = ? AND mark = ? ORDER BY message LIMIT ?`
	insertOffer = `
		INSERT INTO offers (message, mailbox, number, way, harness, mark, offered_at, due_at)
		SELECT ?1, ?2, COALESCE(MAX(number), 0) + 1, ?3, ?4, ?5, ?6, ?7
		FROM offers
		WHERE message = ?1 AND mailbox = ?2`
	deleteOldOffers = `
		DELETE FROM offers
		WHERE message = ?1 AND mailbox = ?2
			AND number <= (SELECT MAX(number) FROM offers WHERE message = ?1 AND mailbox = ?2) - ?3`

	offerColumns = `
		SELECT o.message, o.mailbox, o.number, o.way, o.harness, m.created_at, COALESCE(d.state, 0), d.read_at,
			b.session, b.name
		FROM offers o
		JOIN mailboxes b ON b.id = o.mailbox
		LEFT JOIN messages m ON m.revision = o.message
		LEFT JOIN deliveries d ON d.message = o.message AND d.mailbox = o.mailbox`
	selectOpenOffers = offerColumns + `
		WHERE o.mailbox = ? AND o.due_at IS NOT NULL
		ORDER BY o.message
		LIMIT ?`
	// selectOffersTo also finds the offers to a session that were returned because there was no evidence in time.
	selectOffersTo = offerColumns + `
		WHERE o.mailbox = ? AND o.harness = ? AND o.accepted_at IS NULL
			AND (o.due_at IS NOT NULL OR ? <> 0 AND o.why = '` + hasPassed + `' AND d.read_at IS NULL)
		ORDER BY o.message DESC
		LIMIT ?`
	// selectUnsettled finds the marks of the offers that selectOffersTo finds for an Outcome that accepts.
	selectUnsettled = `
		SELECT o.mark, o.way, MAX(o.offered_at)
		FROM offers o JOIN deliveries d ON d.message = o.message AND d.mailbox = o.mailbox
		WHERE o.mailbox = ? AND o.harness = ? AND o.accepted_at IS NULL
			AND (o.due_at IS NOT NULL OR o.why = '` + hasPassed + `' AND d.read_at IS NULL)
		GROUP BY o.mark, o.way
		ORDER BY 3 DESC
		LIMIT ?`
	selectOffersMarked = offerColumns + `
		WHERE o.mailbox = ? AND o.mark = ? AND o.accepted_at IS NULL
		ORDER BY o.message
		LIMIT ?`
	selectOffersDue = offerColumns + `
		WHERE o.due_at <= ?
		ORDER BY o.mailbox, o.due_at
		LIMIT ?`
	updateOfferAccepted = `
		UPDATE offers
		SET accepted_at = ?, due_at = NULL, returned_at = NULL, why = ''
		WHERE message = ? AND mailbox = ? AND number = ?`
	updateOfferReturned = `
		UPDATE offers SET returned_at = ?, why = ?, due_at = NULL WHERE message = ? AND mailbox = ? AND number = ?`

	selectNoticesOffered = `
		SELECT d.message, m.type, m.created_at, m.content
		FROM offers o JOIN deliveries d ON d.message = o.message AND d.mailbox = o.mailbox
			JOIN messages m ON m.revision = d.message
		WHERE o.mailbox = ? AND o.mark = ? AND o.due_at IS NOT NULL AND d.state = 9
		ORDER BY d.message
		LIMIT ?`
	selectUnofferedNotices = `
		SELECT d.message, m.type, m.created_at, m.content
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.mailbox = ? AND d.state = 9
			AND NOT EXISTS (
				SELECT 1 FROM offers o WHERE o.mailbox = d.mailbox AND o.message = d.message AND o.due_at IS NOT NULL)
		ORDER BY d.message
		LIMIT ?`
	updateDelivered = `
		UPDATE deliveries SET delivered_at = ? WHERE message = ? AND mailbox = ? AND delivered_at IS NULL`
	updateRead = `
		UPDATE deliveries
		SET read_at = ?, delivered_at = COALESCE(delivered_at, ?)
		WHERE message = ? AND mailbox = ? AND read_at IS NULL`
	selectNextDue = `
		SELECT MIN(due_at) FROM offers WHERE due_at IS NOT NULL`
)
