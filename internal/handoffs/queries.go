package handoffs

import "brokerd/internal/store"

// Migrations returns the steps that make the table of handoffs.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "handoffs/001_handoffs", SQL: `
CREATE TABLE handoffs (
	id         INTEGER PRIMARY KEY, -- the revision that created it
	session    INTEGER NOT NULL,
	revision   INTEGER NOT NULL,
	state      INTEGER NOT NULL, -- 1 = pending
	title      TEXT NOT NULL,
	task_id    TEXT NOT NULL,
	sender     TEXT NOT NULL,
	to_agent   TEXT NOT NULL,
	to_role    TEXT NOT NULL,
	items      INTEGER NOT NULL, -- of the checklist
	checked    INTEGER NOT NULL, -- of the items
	created_at INTEGER NOT NULL,
	settled_at INTEGER,
	settled_by TEXT NOT NULL,
	notes      TEXT NOT NULL,
	content    TEXT NOT NULL, -- JSON object
	checklist  TEXT NOT NULL, -- JSON list
	grants     TEXT NOT NULL -- JSON list
);
CREATE INDEX handoffs_session ON handoffs (session, id);
CREATE INDEX handoffs_pending ON handoffs (session, id) WHERE state = 1;
CREATE INDEX handoffs_task ON handoffs (session, task_id, id) WHERE task_id <> '';
CREATE INDEX handoffs_settled ON handoffs (session, settled_at) WHERE settled_at IS NOT NULL;
`}}
}

const headColumns = `
id, session, revision, state, title, task_id, sender, to_agent, to_role, items, checked,
created_at, settled_at, settled_by, notes`

const contentColumns = headColumns + `, content, checklist, grants`

// For lists: the large columns are empty.
const noContent = headColumns + `, '{}', '[]', '[]'`

const insertHandoff = `
INSERT INTO handoffs (` + contentColumns + `)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const updateHandoff = `
UPDATE handoffs
SET revision = ?, state = ?, checked = ?, settled_at = ?, settled_by = ?, notes = ?, checklist = ?, grants = ?
WHERE id = ?`

const selectHandoff = `
SELECT ` + contentColumns + `
FROM handoffs WHERE session = ? AND id = ?`

// The id of the last row that a page of a list reads.
const selectEdge = `
SELECT id FROM handoffs WHERE session = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?`

const listFilter = `
  AND id <= ? AND (? = 0 OR (? >> CAST(state AS INTEGER)) % 2 = 1) AND (? = '' OR sender = ?)
  AND (? = '' OR to_agent = ? OR (? <> '' AND to_role = ?)) AND (? = '' OR to_role = ?) AND (? = '' OR task_id = ?)
ORDER BY id
LIMIT ?`

const listAll = `
SELECT ` + noContent + `
FROM handoffs WHERE session = ? AND id > ?` + listFilter

const listPending = `
SELECT ` + noContent + `
FROM handoffs WHERE session = ? AND id > ? AND state = 1` + listFilter

const countPending = `
SELECT count(*) FROM handoffs WHERE session = ? AND state = 1`

const selectPending = `
SELECT ` + endColumns + `
FROM handoffs WHERE session = ? AND state = 1
ORDER BY id`

// Without the texts, which an end does not change.
const endColumns = headColumns + `, '{}', '[]', grants`

const selectPendingFor = `
SELECT ` + endColumns + `
FROM handoffs WHERE session = ? AND state = 1 AND to_agent = ? AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

const selectUnsettled = `
SELECT ` + endColumns + `
FROM handoffs WHERE session = ? AND state = 1 AND id > ? AND id <= ?
ORDER BY id
LIMIT ?`

const updateEnd = `
UPDATE handoffs SET revision = ?, state = ?, settled_at = ?, settled_by = ?, notes = ? WHERE id = ?`

const selectOfTask = `
SELECT ` + noContent + `
FROM handoffs WHERE session = ? AND task_id = ? AND task_id <> ''
ORDER BY id DESC
LIMIT ?`

const selectRecords = `
SELECT ` + contentColumns + `
FROM handoffs WHERE session = ? AND id > ?
ORDER BY id
LIMIT ?`

const selectSettled = `
SELECT ` + contentColumns + `
FROM handoffs WHERE session = ? AND settled_at <= ?
ORDER BY settled_at, id
LIMIT ?`

const countSettled = `
SELECT count(*) FROM handoffs WHERE session = ? AND settled_at <= ?`

const deleteSettled = `
DELETE FROM handoffs WHERE session = ? AND id = ? AND revision = ? AND state <> 1`

const deleteSome = `
DELETE FROM handoffs WHERE id IN (SELECT h.id FROM handoffs h WHERE h.session = ? ORDER BY h.id LIMIT ?)`
