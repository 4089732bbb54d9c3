package sessions

import "brokerd/internal/store"

// Migrations returns the steps that make the table of sessions and the session "default".
func Migrations() []store.Migration {
	return []store.Migration{{Name: "sessions/001_sessions", SQL: `
CREATE TABLE sessions (
	id            INTEGER PRIMARY KEY,
	name          TEXT NOT NULL UNIQUE,
	description   TEXT NOT NULL,
	created_at    INTEGER NOT NULL,
	ageing        INTEGER NOT NULL, -- nanoseconds
	mailbox_limit INTEGER NOT NULL,
	max_attempts  INTEGER NOT NULL,
	revision      INTEGER NOT NULL  -- of the last change
);
INSERT INTO sessions (id, name, description, created_at, ageing, mailbox_limit, max_attempts, revision)
SELECT 1, 'default', '', created_at, 300000000000, 10000, 3, 0 FROM meta;
`}, {Name: "sessions/002_settings", SQL: `
ALTER TABLE sessions ADD COLUMN settings  TEXT NOT NULL DEFAULT '{}'; -- JSON object; what it does not say has its default
ALTER TABLE sessions ADD COLUMN closed_at INTEGER;
UPDATE sessions SET settings = json_object('Ageing', ageing, 'MailboxLimit', mailbox_limit, 'MaxAttempts', max_attempts);
ALTER TABLE sessions DROP COLUMN ageing;
ALTER TABLE sessions DROP COLUMN mailbox_limit;
ALTER TABLE sessions DROP COLUMN max_attempts;
`}}
}

const selectSession = `
SELECT id, name, description, created_at, settings, revision, closed_at
FROM sessions
WHERE name = ?`

const listSessions = `
SELECT id, name, description, created_at, settings, revision, closed_at
FROM sessions
WHERE name > ? AND (? = '' OR name = ?)
ORDER BY name
LIMIT ?`

const insertSession = `
INSERT INTO sessions (id, name, description, created_at, settings, revision)
VALUES (?, ?, ?, ?, ?, 0)
ON CONFLICT (name) DO NOTHING
RETURNING id`

const updateSession = `
UPDATE sessions
SET description = ?, settings = ?, revision = ?, closed_at = ?
WHERE id = ?`

const deleteSession = `
DELETE FROM sessions WHERE id = ?`

const listAll = `
SELECT id, name, description, created_at, settings, revision, closed_at
FROM sessions
ORDER BY id`

const closeSession = `
UPDATE sessions SET closed_at = ? WHERE id = ?`
