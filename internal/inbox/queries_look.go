package inbox

// A look into the caller's own mailbox (?1) and the queues in the JSON list ?2, by a sort key "at",
// behind the place (?3, ?4). The query sorts the keys first, so that it reads the content of no
// more messages than its caller takes.
const (
	selectLookByArrival = lookHead + `abs(arrival)` + lookTail
	selectLookNewest    = lookHead + `-abs(arrival)` + lookTail
	selectLookByRank    = lookHead + `rank` + lookTail

	lookHead = messageColumns + `,
			d.state, abs(d.arrival), d.claims, d.attempts, d.max_attempts, h.name, d.consumer,
			d.claimed_at, d.delivered_at, d.read_at, d.due_at, d.mailbox, k.at
		FROM (
			SELECT message, mailbox, at
			FROM (
				SELECT message, mailbox, `
	lookTail = ` AS at
				FROM (
					SELECT message, mailbox, rank, arrival FROM deliveries WHERE mailbox = ?1 AND arrival > 0
					UNION ALL
					SELECT d.message, d.mailbox, d.rank, d.arrival
					FROM json_each(?2) AS b CROSS JOIN deliveries AS d
					WHERE d.mailbox = CAST(b.value AS BIGINT) AND d.state = 1
					UNION ALL
					SELECT d.message, d.mailbox, d.rank, d.arrival
					FROM json_each(?2) AS b CROSS JOIN deliveries AS d
					WHERE d.mailbox = CAST(b.value AS BIGINT) AND d.state = 3 AND d.arrival IS NOT NULL
					UNION ALL
					SELECT d.message, d.mailbox, d.rank, d.arrival
					FROM json_each(?2) AS b CROSS JOIN deliveries AS d
					WHERE d.mailbox = CAST(b.value AS BIGINT) AND d.state = 4 AND d.arrival IS NOT NULL
				) AS waiting
			) AS keyed
			WHERE (at, message) > (?3, ?4)
			ORDER BY at, message
			LIMIT ?5
		) AS k
		CROSS JOIN deliveries d
		CROSS JOIN messages m
		LEFT JOIN mailboxes h ON h.id = d.holder
		WHERE d.message = k.message AND d.mailbox = k.mailbox AND m.revision = d.message
		ORDER BY k.at, k.message`
)
