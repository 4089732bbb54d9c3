package agents

import "brokerd/internal/store"

// Migrations returns the steps that make the table of agents.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "agents/001_agents", SQL: `
CREATE TABLE agents (
	id            INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused
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
	display_name  TEXT NOT NULL,
	description   TEXT NOT NULL,
	status        INTEGER NOT NULL, -- 0 = never reported since it registered
	status_reason TEXT NOT NULL,
	activity      TEXT NOT NULL,
	task_id       TEXT NOT NULL,
	progress      REAL NOT NULL,
	registered_at INTEGER NOT NULL,
	changed_at    INTEGER NOT NULL,
	last_seen_at  INTEGER NOT NULL, -- its last call; at most a minute behind, as are the counts of messages
	completed_at  INTEGER,          -- when it reported completed last; NULL = not since it registered
	sent          INTEGER NOT NULL DEFAULT 0,
	received      INTEGER NOT NULL DEFAULT 0,
	processed     INTEGER NOT NULL DEFAULT 0,
	revision      INTEGER NOT NULL, -- of the last change
	UNIQUE (session, name)
);
`}, {Name: "agents/002_leases", SQL: `
ALTER TABLE agents ADD COLUMN failed_at    INTEGER; -- when its lease was over; NULL = it is alive
ALTER TABLE agents ADD COLUMN turns        INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN model_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN files        INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN tool_calls   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN errors       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN last_tool    TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN last_file    TEXT NOT NULL DEFAULT '';
-- What an agent lost with its lease, until it is told.
CREATE TABLE agent_losses (
	id       INTEGER PRIMARY KEY,
	agent    INTEGER NOT NULL,
	kind     INTEGER NOT NULL,
	name     TEXT NOT NULL,
	revision INTEGER NOT NULL,
	lost_at  INTEGER NOT NULL
);
CREATE INDEX agent_losses_agent ON agent_losses (agent);
CREATE TABLE agent_checkpoints (
	revision  INTEGER PRIMARY KEY,
	agent     INTEGER NOT NULL,
	kind      INTEGER NOT NULL,
	reference TEXT NOT NULL,
	data      TEXT NOT NULL, -- JSON, or empty
	saved_at  INTEGER NOT NULL
);
CREATE INDEX agent_checkpoints_agent ON agent_checkpoints (agent, revision);
`}, {Name: "agents/003_registered", SQL: `
CREATE INDEX agents_registered ON agents (session, name) WHERE registered = 1;
CREATE INDEX agents_role ON agents (session, role, name) WHERE registered = 1;
CREATE INDEX agents_ended ON agents (session, revision) WHERE registered = 0;
-- The highest incarnation among the removed agents of a session: a new agent starts above it.
CREATE TABLE agent_floors (
	session     INTEGER PRIMARY KEY,
	incarnation INTEGER NOT NULL
);
`}, {Name: "agents/004_stopped", SQL: `
ALTER TABLE agents ADD COLUMN stopped_at INTEGER; -- when the agent stopped; NULL = it has not
-- completed_at was kept when an agent reported another status.
UPDATE agents SET completed_at = NULL WHERE status <> 6 /* completed */;
`}, {Name: "agents/005_harness", SQL: `
-- The session of the coding agent that its hooks reported last, and which mail may reach its model unasked.
ALTER TABLE agents ADD COLUMN harness_session   TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN harness_program   TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN harness_state     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN harness_tool      TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN harness_listening TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN harness_since     INTEGER;
ALTER TABLE agents ADD COLUMN attention         INTEGER NOT NULL DEFAULT 1; -- open
`}}
}

const selectIncarnation = `
SELECT id, incarnation, registered FROM agents WHERE session = ? AND name = ?`

const countRegistered = `
SELECT COUNT(*) FROM agents WHERE session = ? AND registered = 1`

const harnessColumns = `
       harness_session, harness_program, harness_state, harness_tool, harness_listening, harness_since, attention`

const columns = `
SELECT id, name, role, incarnation, capabilities, instance, worktree, labels, lease, display_name, description,
       status, status_reason, activity, task_id, progress, turns, model_tokens, files, tool_calls, errors, last_tool, last_file,
       registered_at, changed_at, last_seen_at, completed_at, failed_at, stopped_at, sent, received, processed, revision,` + harnessColumns + `
FROM agents`

const selectAgent = columns + `
WHERE session = ? AND name = ? AND registered = 1`

const filtered = `
WHERE session = ? AND registered = 1
  AND (? = '' OR role = ?)
  AND (? IS NULL OR name IN (SELECT value FROM json_each(?)))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(?) AS wanted
      WHERE wanted.value NOT IN (SELECT value FROM json_each(agents.capabilities)))`

const listAgents = columns + filtered + `
  AND name > ?
ORDER BY name
LIMIT ?`

const summarizeRoles = `
SELECT role, count(*),
       count(*) FILTER (WHERE status = 2 /* active */ OR name IN (SELECT value FROM json_each(?))),
       count(*) FILTER (WHERE failed_at IS NOT NULL OR status = 9 /* failed */)
FROM agents` + filtered + `
GROUP BY role
ORDER BY role`

const selectVitals = `
SELECT name, status, registered_at, failed_at, stopped_at FROM agents WHERE session = ? AND registered = 1`

const upsertAgent = `
INSERT INTO agents (session, name, role, incarnation, registered, capabilities, instance, worktree, labels, lease,
                    display_name, description, status, status_reason, activity, task_id, progress,
                    registered_at, changed_at, last_seen_at, revision, attention)
VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, 0, '', '', '', 0, ?, ?, ?, ?, ?)
ON CONFLICT (session, name) DO UPDATE SET
	role = excluded.role, incarnation = excluded.incarnation, registered = 1, capabilities = excluded.capabilities,
	instance = excluded.instance, worktree = excluded.worktree, labels = excluded.labels, lease = excluded.lease,
	display_name = excluded.display_name, description = excluded.description,
	status = 0, status_reason = '', activity = '', task_id = '', progress = 0, completed_at = NULL,
	turns = 0, model_tokens = 0, files = 0, tool_calls = 0, errors = 0, last_tool = '', last_file = '', failed_at = NULL, stopped_at = NULL,
	registered_at = excluded.registered_at, changed_at = excluded.changed_at, last_seen_at = excluded.last_seen_at,
	revision = excluded.revision, attention = excluded.attention
RETURNING id, sent, received, processed`

const updateHarness = `
UPDATE agents
SET harness_session = ?, harness_program = ?, harness_state = ?, harness_tool = ?, harness_listening = ?, harness_since = ?,
    attention = ?, changed_at = ?, revision = ?
WHERE id = ?`

const clearHarness = `
UPDATE agents
SET harness_session = '', harness_program = '', harness_state = 0, harness_tool = '', harness_listening = '', harness_since = NULL
WHERE id = ?`

const updateReport = `
UPDATE agents
SET status = ?, status_reason = ?, completed_at = ?, stopped_at = ?, activity = ?, task_id = ?, progress = ?,
    turns = ?, model_tokens = ?, files = ?, tool_calls = ?, errors = ?,
    last_tool = ?, last_file = ?, changed_at = ?, last_seen_at = ?, revision = ?
WHERE id = ?`

// changed_at stays: failing is nothing that the agent did.
const updateFailed = `
UPDATE agents
SET failed_at = ?1, incarnation = ?2, revision = ?3,
    harness_state = CASE harness_state WHEN 0 THEN 0 ELSE 3 END, harness_tool = '', harness_listening = '',
    harness_since = CASE WHEN harness_state IN (1, 2) THEN ?1 ELSE harness_since END
WHERE id = ?4`

const updateRevived = `
UPDATE agents
SET failed_at = NULL, stopped_at = NULL, changed_at = ?1, last_seen_at = ?1, revision = ?2,
    status = CASE status WHEN 10 /* stopped */ THEN 0 ELSE status END,
    status_reason = CASE status WHEN 10 THEN '' ELSE status_reason END
WHERE id = ?3
RETURNING lease`

const updateActivity = `
UPDATE agents
SET last_seen_at = CASE WHEN last_seen_at < ?1 THEN ?1 ELSE last_seen_at END, sent = ?2, received = ?3, processed = ?4
WHERE id = ?5`

const selectLeases = `
SELECT session, id, name, incarnation, lease, failed_at, stopped_at, last_seen_at, sent, received, processed, harness_state, harness_listening
FROM agents WHERE registered = 1 ORDER BY session`

const endRegistration = `
UPDATE agents SET registered = 0, failed_at = NULL, stopped_at = NULL, changed_at = ?, revision = ? WHERE id = ?`

const recordColumns = `
SELECT id, name, role, incarnation, capabilities, instance, worktree, labels, lease, display_name, description,
       status, status_reason, activity, task_id, progress, turns, model_tokens, files, tool_calls, errors, last_tool, last_file,
       registered_at, changed_at, last_seen_at, completed_at, failed_at, stopped_at, sent, received, processed, revision,` + harnessColumns + `, registered`

const everyAgent = recordColumns + `
FROM agents
WHERE session = ? AND name > ?
ORDER BY name
LIMIT ?`

const selectEnded = recordColumns + `, (SELECT count(*) FROM agent_checkpoints WHERE agent = agents.id)
FROM agents
WHERE session = ? AND registered = 0
ORDER BY revision
LIMIT ?`

const deleteEnded = `
DELETE FROM agents WHERE session = ? AND revision = ? AND registered = 0 RETURNING id, name, incarnation`

const raiseFloor = `
INSERT INTO agent_floors (session, incarnation) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE
SET incarnation = CASE
	WHEN excluded.incarnation > agent_floors.incarnation THEN excluded.incarnation ELSE agent_floors.incarnation END`

const selectFloor = `
SELECT incarnation FROM agent_floors WHERE session = ?`

const deleteFloor = `
DELETE FROM agent_floors WHERE session = ?`

const selectSome = `
SELECT id FROM agents WHERE session = ? LIMIT ?`

const deleteAgent = `
DELETE FROM agents WHERE id = ?`

const deleteCheckpoints = `
DELETE FROM agent_checkpoints WHERE agent = ?`

const insertLoss = `
INSERT INTO agent_losses (agent, kind, name, revision, lost_at) VALUES (?, ?, ?, ?, ?)`

const countLosses = `
SELECT count(*) FROM agent_losses WHERE agent = ? AND kind <> 0`

const updateMoreLosses = `
UPDATE agent_losses SET revision = revision + ? WHERE agent = ? AND kind = 0`

const existLosses = `
SELECT EXISTS (SELECT 1 FROM agent_losses WHERE agent = ?)`

const selectLosses = `
SELECT kind, name, revision, lost_at FROM agent_losses WHERE agent = ? ORDER BY id`

const deleteLosses = `
DELETE FROM agent_losses WHERE agent = ?`

const insertCheckpoint = `
INSERT INTO agent_checkpoints (revision, agent, kind, reference, data, saved_at) VALUES (?, ?, ?, ?, ?, ?)`

const deleteOldCheckpoints = `
DELETE FROM agent_checkpoints
WHERE agent = ? AND revision NOT IN (
      SELECT revision FROM agent_checkpoints WHERE agent = ? ORDER BY revision DESC LIMIT ?)`

const selectCheckpoints = `
SELECT revision, kind, reference, data, saved_at FROM agent_checkpoints WHERE agent = ? ORDER BY revision DESC`

const everyCheckpoint = `
SELECT c.revision, c.kind, c.reference, c.data, c.saved_at, a.name
FROM agent_checkpoints c JOIN agents a ON a.id = c.agent
WHERE a.session = ? AND c.revision > ?
ORDER BY c.revision
LIMIT ?`
