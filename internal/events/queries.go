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

const selectPublished = `
SELECT EXISTS (
	SELECT 1 FROM (SELECT session, type FROM events ORDER BY revision DESC LIMIT ?) AS newest
	WHERE session = ? AND type = ?)`

const selectOfTask = `
SELECT revision, type, summary FROM events WHERE session = ? AND task_id = ? ORDER BY revision DESC LIMIT ?`

const countEvents = `
SELECT count(*) FROM events`

const insertEvent = `
INSERT INTO events (category, severity, type, type_as_sent, revision, session, at, source, source_role, summary, details, related,
	task_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const firstAfter = `
SELECT revision FROM events WHERE revision > ? ORDER BY revision LIMIT 1`

const lastUntil = `
SELECT revision FROM events WHERE revision <= ? ORDER BY revision DESC LIMIT 1`

// Categories are a bit mask. Each list is a JSON text after a flag that says whether it is empty, which
// is no restriction.
const selectMatching = `
WITH prefixes (prefix) AS MATERIALIZED (SELECT value FROM json_each(?))
SELECT revision, session, at, category, severity, type, type_as_sent, source, source_role, summary, details, related, task_id
FROM events
WHERE revision BETWEEN ? AND ?
  AND session IN (?, ?)
  AND severity >= ?
  AND at BETWEEN ? AND ?
  AND (? >> CAST(category AS INTEGER)) % 2 <> 0
  AND (? <> 0 OR type IN (SELECT value FROM json_each(?))
         OR EXISTS (SELECT 1 FROM prefixes WHERE substr(type, 1, length(prefix)) = prefix))
  AND (? <> 0 OR source IN (SELECT value FROM json_each(?)))
  AND (? <> 0 OR source_role IN (SELECT value FROM json_each(?)))
  AND (? <> 0 OR task_id = ?)`

const oldestMatching = selectMatching + `
ORDER BY revision
LIMIT ?`

const newestMatching = selectMatching + `
ORDER BY revision DESC
LIMIT ?`

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
SELECT revision FROM events WHERE revision > ? AND session = ? ORDER BY revision LIMIT 1`

const raiseFloor = `
INSERT INTO floors (session, revision) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE
SET revision = CASE WHEN excluded.revision > floors.revision THEN excluded.revision ELSE floors.revision END`

const selectAfter = `
SELECT revision, session, at, category, severity, type, type_as_sent, source, source_role, summary, details, related, task_id
FROM events
WHERE revision > ? AND (? = 0 OR session = ?)
ORDER BY revision
LIMIT ?`

const deleteEvents = `
DELETE FROM events WHERE revision IN (SELECT CAST(value AS BIGINT) FROM json_each(?))`

const deleteEventsBetween = `
DELETE FROM events WHERE revision BETWEEN ? AND ? AND session = ?`

const deleteFloor = `
DELETE FROM floors WHERE session = ?`
