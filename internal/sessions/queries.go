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
`}}
}

const lookupSession = `
SELECT id, ageing, mailbox_limit, max_attempts FROM sessions WHERE name = ?`

const lookupSessionByID = `
SELECT name, ageing, mailbox_limit, max_attempts FROM sessions WHERE id = ?`

const countSessions = `
SELECT count(*) FROM sessions`

const selectID = `
SELECT id FROM sessions WHERE name = ?`

const selectSession = `
SELECT id, name, description, created_at, ageing, mailbox_limit, max_attempts, revision
FROM sessions
WHERE name = ?`

const listSessions = `
SELECT id, name, description, created_at, ageing, mailbox_limit, max_attempts, revision
FROM sessions
WHERE name > ? AND (? = '' OR name = ?)
ORDER BY name
LIMIT ?`

const insertSession = `
INSERT INTO sessions (name, description, created_at, ageing, mailbox_limit, max_attempts, revision)
VALUES (?, ?, ?, ?, ?, ?, 0)
ON CONFLICT (name) DO NOTHING
RETURNING id`

const updateSession = `
UPDATE sessions
SET description = ?, ageing = ?, mailbox_limit = ?, max_attempts = ?, revision = ?
WHERE id = ?`
