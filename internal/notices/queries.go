package notices

const (
	updateAbout = `
		UPDATE messages SET about = ? WHERE revision = ?`
	countAudience = `
		SELECT COUNT(DISTINCT a.name)
		FROM mailboxes c JOIN subscriptions s ON s.channel = c.id JOIN mailboxes a ON a.id = s.agent
		WHERE c.session = ? AND c.kind = 3 AND c.name IN (?, 'event/*') AND a.name <> ?`
	selectListening = `
		WITH RECURSIVE s (id) AS (
			SELECT MIN(session) FROM mailboxes
			UNION ALL
			SELECT (SELECT MIN(session) FROM mailboxes WHERE session > s.id) FROM s WHERE s.id IS NOT NULL)
		SELECT s.id
		FROM s
		WHERE s.id IS NOT NULL AND EXISTS (
			SELECT 1 FROM mailboxes c JOIN subscriptions x ON x.channel = c.id
			WHERE c.session = s.id AND c.kind = 3 AND c.name IN (?, 'event/*'))
		ORDER BY s.id`
)
