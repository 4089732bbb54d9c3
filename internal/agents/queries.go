package agents

import "brokerd/internal/store"

// Migrations returns the steps that make the table of agents.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "agents/001_agents", SQL: `
CREATE TABLE agents (
	id            INTEGER PRIMARY KEY,
	session       INTEGER NOT NULL,
	name          TEXT NOT NULL,
	role          TEXT NOT NULL,
	incarnation   INTEGER NOT NULL,
	registered    INTEGER NOT NULL, -- 0 after deregistration
	capabilities  TEXT,             -- JSON list of strings, sorted
	instance      TEXT NOT NULL,
	worktree      TEXT NOT NULL,
	labels        TEXT,             -- JSON object of strings
	lease         INTEGER NOT NULL, -- nanoseconds
	status        INTEGER NOT NULL,
	activity      TEXT NOT NULL,
	task_id       TEXT NOT NULL,
	progress      REAL NOT NULL,
	registered_at INTEGER NOT NULL,
	changed_at    INTEGER NOT NULL,
	revision      INTEGER NOT NULL, -- of the last change
	UNIQUE (session, name)
);
`}}
}

const selectActing = `
SELECT id, role, incarnation, registered FROM agents WHERE session = ? AND name = ?`

const columns = `
SELECT id, name, role, incarnation, capabilities, instance, worktree, labels, lease,
       status, activity, task_id, progress, registered_at, changed_at, revision
FROM agents`

const selectAgent = columns + `
WHERE session = ? AND name = ? AND registered`

const filtered = `
WHERE session = ? AND registered
  AND (? = '' OR role = ?)
  AND (? = 0 OR status = ?)
  AND (? = '' OR name GLOB ?)
  AND NOT EXISTS (
      SELECT 1 FROM json_each(?) AS wanted
      WHERE wanted.value NOT IN (SELECT value FROM json_each(agents.capabilities)))`

const listAgents = columns + filtered + `
  AND name > ?
ORDER BY name
LIMIT ?`

const summarizeRoles = `
SELECT role, count(*), sum(status = 2) -- active
FROM agents` + filtered + `
GROUP BY role
ORDER BY role`

const matchingAgents = `
SELECT id, name, role, incarnation
FROM agents
WHERE session = ? AND registered
  AND (? = '' OR role = ?)
  AND (? = '' OR name GLOB ?)
ORDER BY name`

const countAgents = `
SELECT count(*) FROM agents WHERE session = ? AND registered`

const selectNames = `
SELECT name FROM agents WHERE session = ? AND registered ORDER BY name LIMIT ?`

const upsertAgent = `
INSERT INTO agents (session, name, role, incarnation, registered, capabilities, instance, worktree, labels, lease,
                    status, activity, task_id, progress, registered_at, changed_at, revision)
VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, '', '', 0, ?, ?, ?)
ON CONFLICT (session, name) DO UPDATE SET
	role = excluded.role, incarnation = excluded.incarnation, registered = 1, capabilities = excluded.capabilities,
	instance = excluded.instance, worktree = excluded.worktree, labels = excluded.labels, lease = excluded.lease,
	status = excluded.status, activity = '', task_id = '', progress = 0,
	registered_at = excluded.registered_at, changed_at = excluded.changed_at, revision = excluded.revision
RETURNING id`

const updateReport = `
UPDATE agents
SET status = ?, activity = ?, task_id = ?, progress = ?, changed_at = ?, revision = ?
WHERE id = ?`

const endRegistration = `
UPDATE agents SET registered = 0, changed_at = ?, revision = ? WHERE id = ?`

const everyAgent = `
SELECT id, name, role, incarnation, capabilities, instance, worktree, labels, lease,
       status, activity, task_id, progress, registered_at, changed_at, revision, registered
FROM agents
WHERE session = ? AND name > ?
ORDER BY name
LIMIT ?`

const deleteAgents = `
DELETE FROM agents WHERE session = ?`
