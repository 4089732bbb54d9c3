package router

// Messages of the broker itself.
const (
	selectCopied = `
		SELECT type, priority, COALESCE(channel, ''), created_at, expires_at FROM messages WHERE revision = ?`
	// selectIsBrokers finds out whether the broker has sent a message to inform its recipients.
	selectIsBrokers = `
		SELECT substr(channel, 1, 6) = 'event/' OR about IS NOT NULL FROM messages WHERE revision = ?`
)

// Sending.
const (
	insertMessage = `
		INSERT INTO messages (revision, id, session, sender, sender_role, created_at, expires_at,
			type, priority, channel, thread, correlation, task, producer, number, content,
			recipients, refused, related, flags)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	insertMessageArtifact = `
		INSERT INTO message_artifacts (session, artifact, message) VALUES (?, ?, ?)
		ON CONFLICT (session, artifact, message) DO NOTHING`
	insertResend = `
		INSERT INTO resends (message, mailbox, after, due_at) VALUES (?, ?, ?, ?)`
)
