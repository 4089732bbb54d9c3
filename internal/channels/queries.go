package channels

const (
	updateChannel = `
		UPDATE channels SET default_ttl = ? WHERE mailbox = ?`
	updateChannelKept = `
		UPDATE channels SET retention = ? WHERE mailbox = ?`
	selectChannelKept = `
		SELECT retention IS NOT NULL, retention FROM channels WHERE mailbox = ?`
	selectChannels = `
		SELECT b.id, b.name, c.default_ttl, b.waiting, c.retention IS NOT NULL, c.retention
		FROM mailboxes b JOIN channels c ON c.mailbox = b.id
		WHERE b.session = ? AND b.kind = 3 AND b.name > ?
			AND (? = '' OR b.id IN (
				SELECT s.channel FROM subscriptions s JOIN mailboxes a ON a.id = s.agent
				WHERE a.session = ? AND a.kind = 1 AND a.name = ?))
		ORDER BY b.name
		LIMIT ?`
	insertSubscription = `
		INSERT INTO subscriptions (channel, agent) VALUES (?, ?) ON CONFLICT DO NOTHING`
	deleteSubscription = `
		DELETE FROM subscriptions WHERE channel = ? AND agent = ?`
	countSubscriptions = `
		SELECT COUNT(*) FROM subscriptions WHERE agent = ?`
)
