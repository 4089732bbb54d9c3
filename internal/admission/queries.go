package admission

import "brokerd/internal/broker"

const (
	selectGate = `
		SELECT EXISTS (SELECT 1 FROM halts WHERE agent = ?1), b.failures, b.open_until, b.probe_message, b.probe_mailbox
		FROM (SELECT 1) AS x LEFT JOIN breakers b ON b.agent = ?1`
	selectGated = `
		SELECT b.name, EXISTS (SELECT 1 FROM halts h WHERE h.agent = b.id),
			EXISTS (SELECT 1 FROM breakers r WHERE r.agent = b.id AND r.open_until IS NOT NULL)
		FROM mailboxes b
		WHERE +b.session = ?
			AND b.id IN (SELECT agent FROM halts UNION SELECT agent FROM breakers WHERE open_until IS NOT NULL)`

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

	selectHalts = `
		SELECT x.message, x.mailbox, x.state
		FROM (` + broker.SelectDirectiveKeys + `) AS d JOIN messages m ON m.revision = d.message
			JOIN deliveries x ON x.message = d.message AND x.mailbox = ?1
		WHERE m.type = ?3 AND d.message < ?4
		ORDER BY d.arrival
		LIMIT ?5`
	selectDirectiveTypes = `
		SELECT m.type
		FROM (` + broker.SelectDirectiveKeys + `) AS d JOIN messages m ON m.revision = d.message
		ORDER BY d.arrival
		LIMIT ?3`
)
