package broker

// What may be given to an agent. An agent is known by its mailbox. An agent without a halt or failures has no row.
//
// A breaker with a time is open. The probe is the claim that decides about it, after that time.
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
	selectReadyBelow = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND d.rank < ? AND (d.expires_at IS NULL OR d.expires_at > ?)
			AND ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
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
)
