package conversations

// Questions.
const (
	insertQuestion = `
		INSERT INTO questions (message, session, sender, thread, deadline) VALUES (?, ?, ?, ?, ?)`
	// Copies that have not ended come first.
	selectLastEnded = `
		SELECT state, mailbox FROM deliveries WHERE message = ? ORDER BY state <= 4 DESC, finished_at DESC LIMIT 1`
	selectLastError = `
		SELECT error FROM attempts WHERE message = ? AND mailbox = ? ORDER BY claim DESC LIMIT 1`
	selectQuestion = `
		SELECT settled, reply FROM questions WHERE message = ?`
	updateSettled = `
		UPDATE questions SET settled = ?, reply = ? WHERE message = ?`
	updateFetched = `
		UPDATE questions SET fetched = 1 WHERE message = ?`
	selectState = `
		SELECT state FROM deliveries WHERE message = ? AND mailbox = ?`
	selectOverdue = `
		SELECT q.message, q.session, q.deadline, q.thread, m.id, m.sender, m.created_at, m.task, m.content
		FROM questions q LEFT JOIN messages m ON m.revision = q.message
		WHERE q.settled IS NULL AND q.overdue IS NULL AND q.deadline <= ?
		ORDER BY q.deadline
		LIMIT ?`
	updateOverdue = `
		UPDATE questions SET overdue = ? WHERE message = ?`
	selectNextReminders = `
		SELECT (SELECT MIN(deadline) FROM questions WHERE settled IS NULL AND overdue IS NULL),
			(SELECT MIN(due_at) FROM resends)`
)

// Replies that a call waits for.
const (
	selectAwaited = `
		SELECT d.rank, d.expires_at
		FROM deliveries d JOIN questions q ON q.reply = d.message AND q.message = ?
		WHERE d.message = ? AND d.mailbox = ? AND d.state = 5 AND d.claims = 0 AND q.fetched = 0`
	updateUnawaited = `
		UPDATE deliveries
		SET state = 1, arrival = ?, holder = NULL, delivered_at = NULL, read_at = NULL, finished_at = NULL
		WHERE message = ? AND mailbox = ?`
)

// Cancelling.
const (
	selectMessageStates = `
		SELECT mailbox, state, ordering_key FROM deliveries WHERE message = ?`
	updateCancelled = `
		UPDATE deliveries SET state = 8, finished_at = ?, arrival = -abs(arrival) WHERE message = ? AND mailbox = ?`
)

// Sending again.
const (
	selectResends = `
		SELECT r.message, r.mailbox, r.after, r.times, b.session, d.state, d.claims, d.read_at, d.arrival
		FROM resends r
		LEFT JOIN deliveries d ON d.message = r.message AND d.mailbox = r.mailbox
		LEFT JOIN mailboxes b ON b.id = r.mailbox
		WHERE r.due_at <= ?
		ORDER BY r.due_at
		LIMIT ?`
	updateResend = `
		UPDATE resends SET due_at = ?, times = ? WHERE message = ? AND mailbox = ?`
	deleteResend = `
		DELETE FROM resends WHERE message = ? AND mailbox = ?`
	updateArrival = `
		UPDATE deliveries SET arrival = ? WHERE message = ? AND mailbox = ?`
	updateUnread = `
		UPDATE deliveries SET arrival = ?, read_at = NULL WHERE message = ? AND mailbox = ?`
	selectRecipients = `
		SELECT d.mailbox, b.kind, b.name, d.arrival > 0 AND d.state NOT IN (2, 9)
		FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.message = ?
		ORDER BY d.mailbox`
)

// Threads. The message that began a thread may not name it: then the thread is its id.
const (
	// PostgreSQL's writer would read all messages for an OR.
	inThread = `
		m.revision IN (
			SELECT revision FROM messages WHERE session = ?1 AND thread = ?2
			UNION ALL
			SELECT revision FROM messages WHERE session = ?1 AND revision = ?3 AND id = ?4 AND thread IS NULL)`
	selectThread = `
		SELECT COUNT(*), MIN(m.created_at), MAX(m.created_at) FROM messages m WHERE` + inThread
	selectParticipants = `
		SELECT m.sender FROM messages m WHERE` + inThread + `
		UNION
		SELECT CASE b.kind WHEN 1 THEN '' WHEN 2 THEN 'role:' ELSE 'channel:' END || b.name
		FROM messages m JOIN deliveries d ON d.message = m.revision JOIN mailboxes b ON b.id = d.mailbox WHERE` + inThread + `
		UNION
		SELECT b.name
		FROM messages m JOIN deliveries d ON d.message = m.revision JOIN mailboxes b ON b.id = d.holder WHERE` + inThread + `
		ORDER BY 1
		LIMIT ?5`
	existsParticipant = `
		SELECT EXISTS (
			SELECT 1 FROM messages m WHERE` + inThread + `
				AND (m.sender = ?5 OR EXISTS (
					SELECT 1 FROM deliveries d WHERE d.message = m.revision AND (d.mailbox = ?6 OR d.holder = ?6))))`
	selectOpenOfThread = `
		SELECT message FROM questions WHERE session = ? AND thread = ? AND settled IS NULL`
	selectOutcome = `
		SELECT outcome, resolved_by, resolved_at FROM threads WHERE session = ? AND thread = ?`
	upsertOutcome = `
		INSERT INTO threads (session, thread, outcome, resolved_by, resolved_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (session, thread) DO UPDATE
		SET outcome = excluded.outcome, resolved_by = excluded.resolved_by, resolved_at = excluded.resolved_at`

	// The list of conversations: see Threads.
	selectThreadSteps = `
		SELECT revision, id, thread, created_at FROM messages
		WHERE revision > ? AND revision < ? AND session = ?
		ORDER BY revision DESC`
	existsInThread = `
		SELECT EXISTS (SELECT 1 FROM messages WHERE thread = ? AND revision BETWEEN ? AND ? AND session = ?)`
	existsOpenQuestion = `
		SELECT EXISTS (SELECT 1 FROM questions WHERE session = ? AND thread = ? AND settled IS NULL)`
	selectNewestOfThread = `
		SELECT revision, sender FROM messages WHERE thread = ? AND session = ? ORDER BY revision DESC LIMIT ?`
	selectFirstOfThread = `
		SELECT revision FROM messages WHERE thread = ? AND session = ? ORDER BY revision LIMIT 1`
	selectType = `
		SELECT type FROM messages WHERE revision = ?`
	selectReached = `
		SELECT b.kind, b.name, h.name
		FROM (
			SELECT mailbox, holder FROM deliveries
			WHERE message IN (SELECT CAST(value AS BIGINT) FROM json_each(?)) LIMIT ?) AS d
		JOIN mailboxes b ON b.id = d.mailbox
		LEFT JOIN mailboxes h ON h.id = d.holder`
)

// selectStretchEndDown finds the message at which a read of messages, newest first, stops.
const selectStretchEndDown = `
		SELECT revision FROM messages WHERE revision > ? AND revision < ? ORDER BY revision DESC LIMIT 1 OFFSET ?`
