package sessions

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
