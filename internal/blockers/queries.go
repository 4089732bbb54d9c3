package blockers

import "brokerd/internal/store"

// Migrations returns the steps that make the table of blockers.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "blockers/001_blockers", SQL: `
CREATE TABLE blockers (
	id           INTEGER PRIMARY KEY, -- the revision that raised it
	session      INTEGER NOT NULL,
	revision     INTEGER NOT NULL,
	state        INTEGER NOT NULL, -- 3 = resolved
	agent        TEXT NOT NULL,
	reason       TEXT NOT NULL,
	severity     INTEGER NOT NULL,
	awaited_kind INTEGER NOT NULL, -- 0 = none
	awaited      TEXT NOT NULL,
	task_id      TEXT NOT NULL,
	task_blocked INTEGER NOT NULL,
	auto_resolve INTEGER NOT NULL,
	raised_at    INTEGER NOT NULL,
	escalates_at INTEGER,
	escalations  INTEGER NOT NULL,
	next_role    INTEGER NOT NULL,
	resolved_at  INTEGER,
	timeline     TEXT NOT NULL -- JSON list
);
CREATE INDEX blockers_session ON blockers (session, id);
CREATE INDEX blockers_unresolved ON blockers (session, state, id) WHERE state < 3;
CREATE INDEX blockers_awaited ON blockers (session, awaited_kind, awaited) WHERE state < 3;
CREATE INDEX blockers_task ON blockers (session, task_id, id) WHERE task_id <> '';
CREATE INDEX blockers_agent ON blockers (session, agent) WHERE state < 3;
CREATE INDEX blockers_escalation ON blockers (escalates_at) WHERE escalates_at IS NOT NULL;
CREATE INDEX blockers_resolved ON blockers (session, resolved_at) WHERE resolved_at IS NOT NULL;
`}, {Name: "blockers/002_acknowledgers", SQL: `
-- The agents that work on unresolved blockers. An agent has acknowledged a blocker if its entry in the
-- timeline follows the last reopening.
CREATE TABLE blocker_acknowledgers (
	blocker  INTEGER NOT NULL,
	agent    TEXT NOT NULL,
	session  INTEGER NOT NULL,
	revision INTEGER NOT NULL, -- of the acknowledgement
	PRIMARY KEY (blocker, agent)
) WITHOUT ROWID;
CREATE INDEX blocker_acknowledgers_agent ON blocker_acknowledgers (session, agent, blocker);
INSERT INTO blocker_acknowledgers (blocker, agent, session, revision)
SELECT b.id, json_extract(e.value, '$.agent'), b.session, max(json_extract(e.value, '$.revision'))
FROM blockers b, json_each(CASE WHEN json_valid(b.timeline) THEN b.timeline ELSE '[]' END) AS e
WHERE b.state = 2 AND json_extract(e.value, '$.step') = 3 AND e.key > COALESCE((
	SELECT max(r.key) FROM json_each(b.timeline) AS r WHERE json_extract(r.value, '$.step') = 6), -1)
GROUP BY b.id, json_extract(e.value, '$.agent'), b.session;
`}}
}

const blockerColumns = `
id, session, revision, state, agent, reason, severity, awaited_kind, awaited, task_id, task_blocked,
auto_resolve, raised_at, escalates_at, escalations, next_role, resolved_at, timeline`

const insertBlocker = `
INSERT INTO blockers (` + blockerColumns + `)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const updateBlocker = `
UPDATE blockers
SET revision = ?, state = ?, escalates_at = ?, escalations = ?, next_role = ?, resolved_at = ?, timeline = ?
WHERE id = ?`

const selectBlocker = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND id = ?`

// The id of the last row that a page of a list reads.
const selectEdge = `
SELECT id FROM blockers WHERE session = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?`

const listFilter = `
  AND id <= ? AND (? = 0 OR (? >> CAST(state AS INTEGER)) % 2 = 1) AND (? = '' OR agent = ?) AND (? = '' OR task_id = ?)
  AND severity >= ? AND (? = '' OR awaited_kind = 1 AND awaited = ?)
ORDER BY id
LIMIT ?`

const listAll = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND id > ?` + listFilter

// The states of unresolved blockers are 1 and 2.
const listUnresolved = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND id > ? AND state IN (1, 2) AND state < 3` + listFilter

const countUnresolved = `
SELECT count(*) FROM blockers WHERE session = ? AND state = ? AND state < 3`

// The first line of the reason is enough for the summary of a blocker.
const selectUnresolved = `
SELECT id, session, revision, state, agent, substr(reason, 1, 512), severity, awaited_kind, awaited, task_id, task_blocked,
       auto_resolve, raised_at, escalates_at, escalations, next_role, resolved_at, timeline
FROM blockers WHERE session = ? AND state < 3
ORDER BY id`

const selectRaisedBy = `
SELECT id FROM blockers
WHERE session = ? AND agent = ? AND state < 3 AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

// The newest first.
const selectOwn = `
SELECT id FROM blockers
WHERE session = ? AND agent = ? AND state < 3 AND (? = '' OR task_id = ?)
ORDER BY id DESC
LIMIT ?`

const selectAwaiting = `
SELECT id FROM blockers
WHERE session = ? AND awaited_kind = ? AND awaited = ? AND state < 3 AND auto_resolve = 1 AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

const selectAcknowledgedBy = `
SELECT blocker FROM blocker_acknowledgers
WHERE session = ? AND agent = ? AND blocker > ? AND revision <= ?
ORDER BY blocker
LIMIT ?`

const insertAcknowledger = `
INSERT INTO blocker_acknowledgers (blocker, agent, session, revision) VALUES (?, ?, ?, ?)
ON CONFLICT (blocker, agent) DO UPDATE SET revision = excluded.revision`

const deleteAcknowledgers = `
DELETE FROM blocker_acknowledgers WHERE blocker = ?`

const selectStopping = `
SELECT id FROM blockers
WHERE session = ? AND task_id = ? AND task_id <> '' AND state < 3 AND task_blocked = 1 AND id <> ?
ORDER BY id
LIMIT ?`

const freeTask = `
UPDATE blockers SET task_blocked = 0
WHERE session = ? AND task_id = ? AND task_id <> '' AND state < 3 AND task_blocked = 1`

const selectOfTask = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND task_id = ? AND task_id <> ''
ORDER BY id DESC
LIMIT ?`

const selectAny = `
SELECT ` + blockerColumns + `
FROM blockers WHERE id = ?`

const selectEscalations = `
SELECT id, escalates_at FROM blockers WHERE escalates_at IS NOT NULL ORDER BY escalates_at LIMIT ?`

const endEscalations = `
UPDATE blockers SET escalates_at = NULL WHERE session = ? AND state < 3`

const selectRecords = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND id > ?
ORDER BY id
LIMIT ?`

const selectIDs = `
SELECT id FROM blockers WHERE session = ? ORDER BY id LIMIT ?`

const deleteBlocker = `
DELETE FROM blockers WHERE id = ?`

const selectResolved = `
SELECT ` + blockerColumns + `
FROM blockers WHERE session = ? AND resolved_at <= ?
ORDER BY resolved_at, id
LIMIT ?`

const countResolved = `
SELECT count(*) FROM blockers WHERE session = ? AND resolved_at <= ?`

const deleteResolved = `
DELETE FROM blockers WHERE session = ? AND id = ? AND state = 3`
