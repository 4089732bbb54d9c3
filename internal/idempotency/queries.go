package idempotency

import "brokerd/internal/store"

// Migrations returns the steps that make the table of requests.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "once/001_requests", SQL: `
CREATE TABLE requests (
	number  INTEGER PRIMARY KEY, -- grows with time
	id      BLOB NOT NULL,       -- the 16 bytes of the UUID
	session INTEGER NOT NULL,    -- row id, which is never reused; 0 = it does not exist
	caller  TEXT NOT NULL,
	rpc     TEXT NOT NULL,
	kept_at INTEGER NOT NULL,    -- uptime of the broker
	hash    BLOB NOT NULL,       -- SHA-256 of the request
	answer  BLOB NOT NULL        -- JSON
);
CREATE UNIQUE INDEX requests_by_id ON requests (id, session, caller, rpc);
`}}
}

const sessionID = `COALESCE((SELECT s.id FROM sessions s WHERE s.name = ?), 0)`

const selectRequest = `
SELECT number, kept_at, hash, answer
FROM requests
WHERE id = ? AND session = ` + sessionID + ` AND caller = ? AND rpc = ?`

const insertRequest = `
INSERT INTO requests (id, session, caller, rpc, kept_at, hash, answer)
VALUES (?, ` + sessionID + `, ?, ?, ?, ?, ?)`

const deleteRequest = `
DELETE FROM requests WHERE number = ?`

const deleteKept = `
DELETE FROM requests WHERE id = ? AND session = ` + sessionID + ` AND caller = ? AND rpc = ?`

// Twice as many as are added, so that the table shrinks.
const deleteOldest = `
DELETE FROM requests
WHERE number IN (SELECT number FROM requests ORDER BY number LIMIT 2)
  AND kept_at < ?`
