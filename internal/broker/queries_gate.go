package broker

// What may be handed out to an agent. An agent is known by its mailbox; one that nothing stands in the way of has no row.
//
// A breaker with a time is open; the probe is the claim that decides about it, once that time is over.
const gateSchema = `
CREATE TABLE halts (
	agent     INTEGER PRIMARY KEY,
	message   INTEGER NOT NULL,
	halted_at INTEGER NOT NULL
);

CREATE TABLE breakers (
	agent         INTEGER PRIMARY KEY,
	failures      INTEGER NOT NULL,
	open_until    INTEGER,
	probe_message INTEGER,
	probe_mailbox INTEGER
);
`

const (
	selectGate = `
		SELECT EXISTS (SELECT 1 FROM halts WHERE agent = ?1), b.failures, b.open_until, b.probe_message, b.probe_mailbox
		FROM (SELECT 1) AS x LEFT JOIN breakers b ON b.agent = ?1`
	selectGated = `
		SELECT b.name, EXISTS (SELECT 1 FROM halts h WHERE h.agent = b.id), EXISTS (SELECT 1 FROM breakers r WHERE r.agent = b.id AND r.open_until IS NOT NULL)
		FROM mailboxes b
		WHERE +b.session = ? AND b.id IN (SELECT agent FROM halts UNION SELECT agent FROM breakers WHERE open_until IS NOT NULL)`

	selectClaimants = `
		SELECT b.name
		FROM mailboxes b
		WHERE b.session = ? AND b.kind = 1 AND (? = '' OR b.name = ?)
			AND EXISTS (SELECT 1 FROM deliveries d WHERE d.state = 2 AND d.holder = b.id)`

	insertHalt = `
		INSERT INTO halts (agent, message, halted_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`
	deleteHalt = `
		DELETE FROM halts WHERE agent = ?`

	upsertBreaker = `
		INSERT INTO breakers (agent, failures, open_until, opened_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (agent) DO UPDATE
		SET failures = excluded.failures, open_until = excluded.open_until,
			opened_at = COALESCE(breakers.opened_at, excluded.opened_at),
			probe_message = NULL, probe_mailbox = NULL`
	updateProbe = `
		UPDATE breakers SET probe_message = ?, probe_mailbox = ? WHERE agent = ?`
	deleteBreaker = `
		DELETE FROM breakers WHERE agent = ?`
	selectOpenBreakers = `
		SELECT agent, open_until FROM breakers WHERE open_until IS NOT NULL`
	selectBreakersOf = `
		SELECT r.agent FROM breakers r JOIN mailboxes b ON b.id = r.agent WHERE b.session = ?`

	selectReadyBelow = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND d.rank < ? AND (d.expires_at IS NULL OR d.expires_at > ?)
			AND ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
	updateAckReady = `
		UPDATE deliveries
		SET state = 5, holder = ?1, finished_at = ?2, read_at = COALESCE(read_at, ?2), delivered_at = COALESCE(delivered_at, ?2),
			due_at = NULL, arrival = -abs(arrival)
		WHERE message = ?3 AND mailbox = ?1 AND state IN (1, 9) AND (expires_at IS NULL OR expires_at > ?2)
		RETURNING ordering_key`
	// SelectDirectiveKeys selects the unfinished directives in an agent's own mailbox (?1), which have a rank below ?2.
	// The agent itself holds a claimed one. A delayed one was nacked, and is among the first that are due.
	SelectDirectiveKeys = `
			SELECT message, arrival FROM deliveries WHERE mailbox = ?1 AND state = 1 AND rank < ?2
			UNION ALL
			SELECT message, arrival FROM deliveries WHERE holder = ?1 AND mailbox = ?1 AND state = 2 AND rank < ?2
			UNION ALL
			SELECT message, arrival
			FROM (SELECT message, arrival, rank FROM deliveries WHERE mailbox = ?1 AND state = 3 ORDER BY due_at LIMIT 1000) AS x
			WHERE rank < ?2`
	selectHalts = `
		SELECT x.message, x.mailbox, x.state
		FROM (` + SelectDirectiveKeys + `) AS d JOIN messages m ON m.revision = d.message
			JOIN deliveries x ON x.message = d.message AND x.mailbox = ?1
		WHERE m.type = ?3 AND d.message < ?4
		ORDER BY d.arrival
		LIMIT ?5`
	selectDirectiveTypes = `
		SELECT m.type
		FROM (` + SelectDirectiveKeys + `) AS d JOIN messages m ON m.revision = d.message
		ORDER BY d.arrival
		LIMIT ?3`
)
