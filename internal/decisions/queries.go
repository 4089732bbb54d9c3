package decisions

import "brokerd/internal/store"

// Migrations returns the steps that make the tables of decisions.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "decisions/001_decisions", SQL: `
CREATE TABLE decisions (
	id           INTEGER PRIMARY KEY, -- the revision that opened it
	session      INTEGER NOT NULL,
	kind         INTEGER NOT NULL,
	state        INTEGER NOT NULL, -- up to 3 = unfinished
	opened_by    TEXT NOT NULL,
	agent        TEXT,
	role         TEXT,
	escalated_to TEXT,
	title        TEXT NOT NULL,
	scope        TEXT,
	task_id      TEXT,
	thread       TEXT NOT NULL,
	verdicts     TEXT NOT NULL, -- JSON list
	round        INTEGER NOT NULL,
	max_rounds   INTEGER NOT NULL,
	deadline     INTEGER,
	pass_token   INTEGER NOT NULL,
	fence        INTEGER, -- of the token's last pass
	verdict      TEXT,
	note         TEXT,
	opened_at    INTEGER NOT NULL,
	changed_at   INTEGER NOT NULL,
	revision     INTEGER NOT NULL,
	message_type TEXT NOT NULL,
	outcome_type TEXT NOT NULL,
	body         TEXT,
	payload      TEXT,
	files        TEXT, -- JSON list
	artifacts    TEXT  -- JSON list
);
CREATE INDEX decisions_session ON decisions (session, id);
CREATE INDEX decisions_unfinished ON decisions (session, state, id) WHERE state <= 3;
CREATE UNIQUE INDEX decisions_scope ON decisions (session, kind, scope) WHERE scope IS NOT NULL AND state <= 3;
CREATE INDEX decisions_scopes ON decisions (session, scope, id) WHERE scope IS NOT NULL;
CREATE INDEX decisions_task ON decisions (session, task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX decisions_deadline ON decisions (deadline) WHERE deadline IS NOT NULL AND state = 1;
CREATE INDEX decisions_finished ON decisions (session, changed_at, id) WHERE state > 3;

CREATE TABLE decision_verdicts (
	revision   INTEGER PRIMARY KEY, -- of the change
	decision   INTEGER NOT NULL,
	round      INTEGER NOT NULL,
	escalated  INTEGER NOT NULL,
	verdict    TEXT NOT NULL,
	decided_by TEXT NOT NULL,
	decided_at INTEGER NOT NULL,
	reason     TEXT,
	feedback   TEXT, -- JSON list
	until      INTEGER,
	UNIQUE (decision, round, escalated)
);
`}, {Name: "decisions/002_artifacts", SQL: `
-- The search for mentions of artifacts reads decisions in the order of their changes.
CREATE INDEX decisions_artifacts ON decisions (session, revision) WHERE artifacts IS NOT NULL;
`}}
}

const headColumns = `
id, session, kind, state, opened_by, agent, role, escalated_to, title, scope, task_id, thread, verdicts, round, max_rounds,
deadline, pass_token, fence, verdict, note, opened_at, changed_at, revision, message_type, outcome_type`

const contentColumns = `, body, payload, files, artifacts`

const selectDecision = `
SELECT ` + headColumns + contentColumns + `
FROM decisions WHERE id = ? AND session = ?`

const selectScope = `
SELECT id FROM decisions WHERE session = ? AND kind = ? AND scope = ? AND state <= 3`

const countUnfinished = `
SELECT count(*) FROM decisions WHERE session = ? AND state <= 3`

const countStates = `
SELECT state, count(*) FROM decisions WHERE session = ? AND state <= 3 GROUP BY state`

const insertDecision = `
INSERT INTO decisions (` + headColumns + contentColumns + `)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const updateDecision = `
UPDATE decisions
SET state = ?, escalated_to = ?, round = ?, deadline = ?, pass_token = ?, fence = ?, verdict = ?, note = ?, changed_at = ?, revision = ?
WHERE id = ?`

const updateContent = `
UPDATE decisions SET title = ?, body = ?, payload = ?, files = ?, artifacts = ? WHERE id = ?`

const insertVerdict = `
INSERT INTO decision_verdicts (revision, decision, round, escalated, verdict, decided_by, decided_at, reason, feedback, until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const selectVerdicts = `
SELECT revision, round, escalated, verdict, decided_by, decided_at, reason, feedback, until
FROM decision_verdicts WHERE decision = ? ORDER BY round, escalated`

const newestVerdict = `
SELECT revision, round, escalated, verdict, decided_by, decided_at, reason, NULL, until
FROM decision_verdicts WHERE decision = ? ORDER BY round DESC, escalated DESC LIMIT 1`

// The newest verdict up to a revision.
const verdictBefore = `
SELECT revision, round, escalated, verdict, decided_by, decided_at, reason, feedback, until
FROM decision_verdicts WHERE decision = ? AND revision <= ?
ORDER BY round DESC, escalated DESC LIMIT 1`

// The set of states is a sum of powers of two; 0 = all.
const listFilter = `
  AND id < ? AND id >= ?
  AND (? = 0 OR (? >> CAST(state AS INTEGER)) % 2 = 1)
  AND (? = 0 OR kind = ?)
  AND (? = '' OR opened_by = ?)
  AND (? = '' OR task_id = ?)
  AND (? = '' OR scope = ?)
ORDER BY id DESC
LIMIT ?`

const listDecisions = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ?` + listFilter

// The id of the last row that a page of a list reads.
const (
	edgeOfAll = `
SELECT id FROM decisions WHERE session = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	edgeOfScope = `
SELECT id FROM decisions WHERE session = ? AND scope = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	edgeOfTask = `
SELECT id FROM decisions WHERE session = ? AND task_id = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?`
)

const listUnfinished = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND state <= 3` + listFilter

const listScope = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND scope = ?` + listFilter

const listTask = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND task_id = ?` + listFilter

const selectOfTask = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND task_id = ?
ORDER BY id DESC
LIMIT ?`

const selectUnfinished = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND state <= 3
ORDER BY state, id`

const selectOpenIDs = `
SELECT id FROM decisions
WHERE session = ? AND state <= 3 AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

// Unfinished decisions that the end of an agent ends or escalates.
const selectLeft = `
SELECT id FROM decisions
WHERE session = ? AND state <= 3 AND (opened_by = ? OR agent = ? AND state = 1) AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

// Unfinished decisions that can concern an agent.
const selectConcerning = `
SELECT ` + headColumns + `
FROM decisions WHERE session = ? AND state <= 3 AND (state = 3 OR opened_by = ? OR agent = ? OR role = ?)
ORDER BY state, id`

const selectDeadlines = `
SELECT id, deadline FROM decisions WHERE deadline IS NOT NULL AND state = 1 ORDER BY deadline LIMIT ?`

const selectSession = `
SELECT session FROM decisions WHERE id = ?`

const selectRecords = `
SELECT ` + headColumns + contentColumns + `
FROM decisions WHERE session = ? AND id > ?
ORDER BY id LIMIT ?`

const selectFinished = `
SELECT ` + headColumns + contentColumns + `
FROM decisions WHERE session = ? AND state > 3 AND changed_at <= ?
ORDER BY changed_at, id LIMIT ?`

const countFinished = `
SELECT count(*) FROM decisions WHERE session = ? AND state > 3 AND changed_at <= ?`

const deleteFinished = `
DELETE FROM decisions WHERE id = ? AND session = ? AND state > 3`

const deleteVerdicts = `
DELETE FROM decision_verdicts WHERE decision = ?`

const selectIDs = `
SELECT id FROM decisions WHERE session = ? ORDER BY id LIMIT ?`

const deleteAny = `
DELETE FROM decisions WHERE id = ?`
