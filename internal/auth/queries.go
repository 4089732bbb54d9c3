package auth

import "brokerd/internal/store"

// Migrations returns the steps that create the table of credentials.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "auth/001_credentials", SQL: `
CREATE TABLE credentials (
	id             INTEGER PRIMARY KEY, -- the revision that issued it
	revision       INTEGER NOT NULL,    -- of its last change
	secret_sha256  BLOB NOT NULL UNIQUE,
	access         INTEGER NOT NULL,    -- 1 = observer, 2 = agent, 3 = operator
	session_id     INTEGER NOT NULL,    -- 0 = any
	session        TEXT NOT NULL,
	agent          TEXT NOT NULL,
	role           TEXT NOT NULL,
	description    TEXT NOT NULL,
	issued_at      INTEGER NOT NULL,
	expires_at     INTEGER,
	state          INTEGER NOT NULL,    -- 1 = active, 2 = revoked, 3 = expired
	ended_at       INTEGER,
	end_reason     TEXT NOT NULL,
	last_used_at   INTEGER,
	last_used_from TEXT NOT NULL
);
CREATE INDEX credentials_session ON credentials (session_id) WHERE state = 1;
CREATE INDEX credentials_ended ON credentials (ended_at, id) WHERE ended_at IS NOT NULL;
`}, {Name: "auth/002_logins", SQL: `
ALTER TABLE credentials ADD COLUMN login INTEGER NOT NULL DEFAULT 0; -- 1 = issued by Login
`}}
}

const credentialColumns = `id, revision, access, session_id, session, agent, role, description, issued_at, expires_at, state, ended_at,
end_reason, last_used_at, last_used_from, login`

const insertCredential = `
INSERT INTO credentials (` + credentialColumns + `, secret_sha256)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const endCredential = `
UPDATE credentials SET revision = ?, state = ?, ended_at = ?, end_reason = ?
WHERE id = ?`

const updateUse = `
UPDATE credentials SET last_used_at = ?, last_used_from = ?
WHERE id = ?`

const selectCredential = `
SELECT ` + credentialColumns + `, secret_sha256
FROM credentials WHERE id = ?`

const selectAll = `
SELECT ` + credentialColumns + `, secret_sha256
FROM credentials ORDER BY id`

const selectOfSession = `
SELECT ` + credentialColumns + `, secret_sha256
FROM credentials WHERE session_id = ? AND state = 1
ORDER BY id
LIMIT ?`

const listCredentials = `
SELECT ` + credentialColumns + `, secret_sha256
FROM credentials
WHERE id > ? AND (? = '' OR session = ?) AND (? = '' OR agent = ?) AND (? = 0 OR (? >> CAST(state AS INTEGER)) % 2 = 1)
ORDER BY id
LIMIT ?`

// The oldest ones that ended before a time.
const selectRemovable = `
SELECT id FROM credentials WHERE ended_at IS NOT NULL AND ended_at <= ?
ORDER BY ended_at, id
LIMIT ?`

// The oldest ones beyond a number of ended ones.
const selectSurplus = `
SELECT id FROM credentials WHERE ended_at IS NOT NULL
ORDER BY ended_at DESC, id DESC
LIMIT ? OFFSET ?`

const deleteCredential = `
DELETE FROM credentials WHERE id = ?`
