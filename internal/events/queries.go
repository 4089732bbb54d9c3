package events

import "brokerd/internal/store"

// Migrations returns the steps that make the log's tables.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "events/001_log", SQL: `
CREATE TABLE events (
	revision    INTEGER PRIMARY KEY,
	session     INTEGER NOT NULL, -- 0 = the broker itself
	at          INTEGER NOT NULL,
	category    INTEGER NOT NULL,
	severity    INTEGER NOT NULL,
	type        TEXT NOT NULL,
	source      TEXT NOT NULL,
	source_role TEXT,
	summary     TEXT,
	details     TEXT, -- JSON object
	related     TEXT, -- JSON list of strings
	task_id     TEXT
);
CREATE TABLE cursors (
	session  INTEGER NOT NULL,
	owner    TEXT NOT NULL, -- an agent's name, or system
	kind     TEXT NOT NULL, -- what is read
	name     TEXT NOT NULL,
	revision INTEGER NOT NULL, -- of the last thing that counts as read
	PRIMARY KEY (session, owner, kind, name)
) WITHOUT ROWID;
`}, {Name: "events/002_floors", SQL: `
CREATE TABLE floors (
	session  INTEGER PRIMARY KEY,
	revision INTEGER NOT NULL -- highest that was removed
);
`}, {Name: "events/003_tasks", SQL: `
CREATE INDEX events_task ON events (session, task_id) WHERE task_id IS NOT NULL;
`}, {Name: "events/004_cursors", SQL: `
-- An owner has at most 100 cursors: those that were used last stay.
DELETE FROM cursors WHERE (session, owner, kind, name) IN (
	SELECT session, owner, kind, name
	FROM (SELECT session, owner, kind, name, row_number() OVER (PARTITION BY session, owner ORDER BY revision DESC) AS place FROM cursors) AS placed
	WHERE place > 100);
`}, {Name: "events/005_spellings", SQL: `
ALTER TABLE events ADD COLUMN type_as_sent TEXT; -- NULL = as type
`}}
}

// It sees no message.sent, to whose channel no agent can subscribe.
const selectPublished = `
SELECT EXISTS (
	SELECT 1 FROM (SELECT session, type FROM events ORDER BY revision DESC LIMIT ?) AS newest
	WHERE session = ? AND type = ?)`

const selectOfTask = `
SELECT revision, type, summary, -1 AS recipients, NULL AS content FROM events
WHERE session = ?1 AND task_id = ?2
UNION ALL
SELECT revision, type, NULL, recipients, content FROM messages
WHERE session = ?1 AND task = ?2 AND revision > ?3 AND recipients IS NOT NULL
ORDER BY revision DESC
LIMIT ?4`

const countEvents = `
SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM messages m WHERE ` + isEvent + `)`

// isEvent is the condition that the row of a message is an event that was not removed.
const isEvent = `m.recipients IS NOT NULL
  AND m.revision > COALESCE((SELECT f.revision FROM floors f WHERE f.session = m.session), 0)`

// The columns of events, and the same of messages that are events: see sent.
const (
	eventColumns = `
SELECT revision, session, at, category, severity, type, type_as_sent, source, source_role, summary, details, related, task_id,
	-1 AS recipients, 0 AS refused, 0 AS flags, 0 AS priority, NULL AS content
FROM events`
	sentColumns = `
SELECT m.revision, m.session, m.created_at, 0, 0, m.type, NULL, m.sender, m.sender_role, NULL, NULL, CAST(m.related AS TEXT), m.task,
	m.recipients, m.refused, m.flags, m.priority, m.content
FROM messages m`
)

const insertEvent = `
INSERT INTO events (category, severity, type, type_as_sent, revision, session, at, source, source_role, summary, details, related,
	task_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// A message whose event was removed is a place to begin at too. With UNION ALL and ORDER BY, PostgreSQL would read and sort
// all rows of both tables.
const firstAfter = `
SELECT MIN(revision)
FROM (
	SELECT MIN(revision) AS revision FROM events WHERE revision > ?1
	UNION ALL
	SELECT MIN(revision) FROM messages WHERE revision > ?1) AS x
HAVING MIN(revision) IS NOT NULL`

const lastUntil = `
SELECT MAX(revision)
FROM (
	SELECT MAX(revision) AS revision FROM events WHERE revision <= ?1
	UNION ALL
	SELECT MAX(revision) FROM messages WHERE revision <= ?1) AS x
HAVING MAX(revision) IS NOT NULL`

// Categories are a bit mask. Each list is a JSON text after a flag that says whether it is empty, which
// is no restriction. Messages have their own stretch of revisions: it is above the floor of their session, and empty if
// category, severity or type exclude them.
const selectMatching = `
WITH prefixes (prefix) AS MATERIALIZED (SELECT value FROM json_each(?1))` + eventColumns + `
WHERE revision BETWEEN ?2 AND ?3
  AND session IN (?4, ?5)
  AND severity >= ?6
  AND at BETWEEN ?7 AND ?8
  AND (?9 >> CAST(category AS INTEGER)) % 2 <> 0
  AND (?10 <> 0 OR type IN (SELECT value FROM json_each(?11))
         OR EXISTS (SELECT 1 FROM prefixes WHERE substr(type, 1, length(prefix)) = prefix))
  AND (?12 <> 0 OR source IN (SELECT value FROM json_each(?13)))
  AND (?14 <> 0 OR source_role IN (SELECT value FROM json_each(?15)))
  AND (?16 <> 0 OR task_id = ?17)
UNION ALL` + sentColumns + `
WHERE m.revision BETWEEN ?18 AND ?19
  AND m.session = ?4
  AND m.created_at BETWEEN ?7 AND ?8
  AND (?12 <> 0 OR m.sender IN (SELECT value FROM json_each(?13)))
  AND (?14 <> 0 OR m.sender_role IN (SELECT value FROM json_each(?15)))
  AND (?16 <> 0 OR m.task = ?17)
  AND m.recipients IS NOT NULL`

const oldestMatching = selectMatching + `
ORDER BY revision
LIMIT ?20`

const newestMatching = selectMatching + `
ORDER BY revision DESC
LIMIT ?20`

const selectCursor = `
SELECT revision FROM cursors WHERE session = ? AND owner = ? AND kind = ? AND name = ?`

const updateCursor = `
UPDATE cursors SET revision = CASE WHEN revision < ? THEN ? ELSE revision END
WHERE session = ? AND owner = ? AND kind = ? AND name = ?`

const insertCursor = `
INSERT INTO cursors (session, owner, kind, name, revision) VALUES (?, ?, ?, ?, ?)`

// Whether an owner, and a session, have more cursors than an offset says.
const fullCursors = `
SELECT EXISTS (SELECT 1 FROM cursors WHERE session = ? AND owner = ? LIMIT 1 OFFSET ?),
       EXISTS (SELECT 1 FROM cursors WHERE session = ? LIMIT 1 OFFSET ?)`

const deleteCursorsOf = `
DELETE FROM cursors WHERE session = ? AND owner = ?`

const deleteSomeCursors = `
DELETE FROM cursors WHERE (session, owner, kind, name) IN (
	SELECT session, owner, kind, name FROM cursors WHERE session = ? LIMIT ?)`

const selectFloor = `
SELECT revision FROM floors WHERE session = ?`

const oldestKept = `
SELECT MIN(revision)
FROM (
	SELECT MIN(revision) AS revision FROM events WHERE revision > ?1 AND session = ?2
	UNION ALL
	SELECT MIN(revision) FROM messages WHERE revision > ?1 AND session = ?2 AND recipients IS NOT NULL) AS x
HAVING MIN(revision) IS NOT NULL`

const raiseFloor = `
INSERT INTO floors (session, revision) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE
SET revision = CASE WHEN excluded.revision > floors.revision THEN excluded.revision ELSE floors.revision END`

const selectAfter = eventColumns + `
WHERE revision BETWEEN ?1 AND ?2 AND (?3 = 0 OR session = ?3)
UNION ALL` + sentColumns + `
WHERE m.revision BETWEEN ?1 AND ?2 AND (?3 = 0 OR m.session = ?3) AND ` + isEvent + `
ORDER BY revision
LIMIT ?4`

const selectSentBetween = sentColumns + `
WHERE m.revision BETWEEN ? AND ? AND ` + isEvent + `
ORDER BY m.revision`

const deleteEvents = `
DELETE FROM events WHERE revision IN (SELECT CAST(value AS BIGINT) FROM json_each(?))`

const deleteEventsBetween = `
DELETE FROM events WHERE revision BETWEEN ? AND ? AND session = ?`

const deleteFloor = `
DELETE FROM floors WHERE session = ?`
