package work

import "brokerd/internal/store"

// Migrations returns the steps that create the tables of the backlogs and of the items.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "work/001_backlog", SQL: `
-- The chores that are unfinished; see Backlog.
CREATE TABLE work_backlog (
	id      INTEGER PRIMARY KEY, -- the revision under which it was added
	feature TEXT NOT NULL,
	kind    TEXT NOT NULL,
	session INTEGER NOT NULL,
	name    TEXT NOT NULL,    -- the feature gives this and the following columns their meaning
	item    INTEGER NOT NULL,
	bound   INTEGER NOT NULL,
	after   INTEGER NOT NULL,
	text    TEXT NOT NULL
);
CREATE INDEX work_backlog_name ON work_backlog (feature, session, name, kind, bound);
CREATE INDEX work_backlog_item ON work_backlog (feature, item, kind);
`}, {Name: "work/002_items", SQL: `
-- The pieces of work of all kinds; see Table.
CREATE TABLE items (
	id          INTEGER PRIMARY KEY, -- a number of the counter, which is in the item's id
	session     INTEGER NOT NULL,
	kind        INTEGER NOT NULL,
	state       INTEGER NOT NULL, -- as in the item
	opener      TEXT NOT NULL,
	agent       TEXT, -- that owes the next step; NULL = one of a role does, or none
	role        TEXT, -- of which one agent owes the next step; NULL = none
	task        TEXT,
	scope       TEXT,
	due_at      INTEGER, -- NULL = never
	finished_at INTEGER, -- NULL = it is unfinished
	revision    INTEGER NOT NULL, -- of the last change, as in the item
	item        BLOB NOT NULL -- the message of the API
);
CREATE INDEX items_kind ON items (session, kind, id);
CREATE INDEX items_changed ON items (session, kind, revision);
CREATE INDEX items_open ON items (session, kind, id, state) WHERE finished_at IS NULL;
CREATE INDEX items_task ON items (session, task, kind, id) WHERE task IS NOT NULL;
CREATE INDEX items_scope ON items (session, kind, scope, id) WHERE scope IS NOT NULL;
CREATE INDEX items_due ON items (kind, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX items_finished ON items (session, kind, finished_at, id) WHERE finished_at IS NOT NULL;

-- The parts of items that change alone, or are too large for lists.
CREATE TABLE item_parts (
	item     INTEGER NOT NULL,
	part     TEXT NOT NULL,
	revision INTEGER NOT NULL, -- of its last change
	body     BLOB NOT NULL, -- a message of the API
	PRIMARY KEY (item, part)
) WITHOUT ROWID;
`}}
}

const insertChore = `
INSERT INTO work_backlog (id, feature, kind, session, name, item, bound, after, text)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`

const selectChore = `
SELECT kind, session, name, item, bound, after, text FROM work_backlog WHERE id = ?`

const selectChores = `
SELECT id FROM work_backlog WHERE feature = ? ORDER BY id`

const selectChoreOf = `
SELECT id FROM work_backlog WHERE feature = ? AND session = ? AND name = ? AND kind = ? LIMIT 1`

const selectBound = `
SELECT bound FROM work_backlog
WHERE feature = ? AND session = ? AND name = ? AND kind = ?
ORDER BY bound DESC
LIMIT 1`

const updateChore = `
UPDATE work_backlog SET after = ?, text = ? WHERE id = ?`

const deleteChore = `
DELETE FROM work_backlog WHERE id = ?`

const deleteChoresOf = `
DELETE FROM work_backlog WHERE feature = ? AND item = ? AND kind = ?`

const selectChoreOfSession = `
SELECT id FROM work_backlog WHERE feature = ? AND session = ? LIMIT 1`

const insertItem = `
INSERT INTO items (id, session, kind, state, opener, agent, role, task, scope, due_at, finished_at, revision, item)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const updateItem = `
UPDATE items
SET state = ?, agent = ?, role = ?, task = ?, scope = ?, due_at = ?, finished_at = ?, revision = ?, item = ?
WHERE id = ?`

const selectItem = `
SELECT id, session, item FROM items WHERE id = ? AND kind = ?`

const upsertPart = `
INSERT INTO item_parts (item, part, revision, body) VALUES (?, ?, ?, ?)
ON CONFLICT (item, part) DO UPDATE SET revision = excluded.revision, body = excluded.body`

const deletePart = `
DELETE FROM item_parts WHERE item = ? AND part = ?`

const selectPart = `
SELECT part, revision, body FROM item_parts WHERE item = ? AND part = ?`

const selectParts = `
SELECT part, revision, body FROM item_parts
WHERE item = ? AND part >= ? AND part < ? AND part <> ?
ORDER BY part
LIMIT ?`

const selectLastPart = `
SELECT part, revision, body FROM item_parts WHERE item = ? AND part >= ? AND part < ? ORDER BY part DESC LIMIT 1`

const selectAllParts = `
SELECT part, revision, body FROM item_parts WHERE item = ? ORDER BY part`

// itemFilter restricts to the states of a bit set, and to values that are not empty.
const itemFilter = `
  AND (? = 0 OR (? >> CAST(state AS INTEGER)) % 2 = 1) AND (? = '' OR opener = ?) AND (? = '' OR agent = ?)
  AND (? = '' OR role = ?) AND (? = '' OR task = ?) AND (? = '' OR scope = ?)
  AND (? = '' OR EXISTS (SELECT 1 FROM item_parts p WHERE p.item = i.id AND p.part = ?))`

const listNewest = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND id < ? AND id >= ?` + itemFilter + `
ORDER BY id DESC`

// Those that go by the index of a column.
const (
	listNewestOfScope = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND id < ? AND id >= ?` + itemFilter + ` AND scope = ?
ORDER BY id DESC`
	listNewestOfTask = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND id < ? AND id >= ?` + itemFilter + ` AND task = ?
ORDER BY id DESC`
	listNewestOpen = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND finished_at IS NULL AND id < ? AND id >= ?` + itemFilter + `
ORDER BY id DESC`
)

const listOldest = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND id > ? AND id <= ?` + itemFilter + `
ORDER BY id`

// The ids of the last rows that a page of a list reads.
const (
	edgeNewest = `
SELECT id FROM items WHERE session = ? AND kind = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	edgeNewestOfScope = `
SELECT id FROM items WHERE session = ? AND kind = ? AND id < ? AND scope = ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	edgeNewestOfTask = `
SELECT id FROM items WHERE session = ? AND kind = ? AND id < ? AND task = ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	edgeOldest = `
SELECT id FROM items WHERE session = ? AND kind = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?`
)

const selectOpen = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND finished_at IS NULL AND id > ? AND id <= ?` + itemFilter + `
ORDER BY id
LIMIT ?`

const selectOpenOfScope = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND finished_at IS NULL AND id > ? AND id <= ?` + itemFilter + ` AND scope = ?
ORDER BY id
LIMIT ?`

const selectOpenOfTask = `
SELECT id, session, item FROM items i
WHERE session = ? AND kind = ? AND finished_at IS NULL AND id > ? AND id <= ?` + itemFilter + ` AND task = ?
ORDER BY id
LIMIT ?`

const selectOwed = `
SELECT id, session, item FROM items
WHERE session = ? AND kind = ? AND finished_at IS NULL AND (agent = ? OR role = ?)
ORDER BY id
LIMIT ?`

const countOpen = `
SELECT state, count(*) FROM items WHERE session = ? AND kind = ? AND finished_at IS NULL GROUP BY state ORDER BY state`

const selectOfTask = `
SELECT id, session, item FROM items WHERE session = ? AND task = ? AND kind = ? ORDER BY id DESC LIMIT ?`

const selectItemsDue = `
SELECT id, due_at FROM items WHERE kind = ? AND due_at IS NOT NULL ORDER BY due_at LIMIT ?`

// unchored leaves out items about which a chore is unfinished.
const unchored = `
  AND NOT EXISTS (SELECT 1 FROM work_backlog c WHERE c.feature = ? AND c.item = i.id)`

const selectFinished = `
SELECT id, session, item, finished_at FROM items i
WHERE session = ? AND kind = ? AND finished_at <= ?` + unchored + `
ORDER BY finished_at, id
LIMIT ?`

const countFinished = `
SELECT count(*) FROM items i WHERE session = ? AND kind = ? AND finished_at <= ?` + unchored

const deleteFinished = `
DELETE FROM items WHERE id = ? AND session = ? AND kind = ? AND revision = ? AND finished_at IS NOT NULL`

const selectRecords = `
SELECT id, session, item FROM items WHERE session = ? AND kind = ? AND id > ? ORDER BY id LIMIT ?`

// selectContents reads in the order of the last changes: an item that changes comes again.
const selectContents = `
SELECT i.revision, p.body FROM items i JOIN item_parts p ON p.item = i.id AND p.part = 'content'
WHERE i.session = ? AND i.kind = ? AND i.revision > ?
ORDER BY i.revision
LIMIT ?`

const selectIDs = `
SELECT id FROM items WHERE session = ? AND kind = ? ORDER BY id LIMIT ?`

const deleteItem = `
DELETE FROM items WHERE id = ?`

const deleteParts = `
DELETE FROM item_parts WHERE item = ?`

const checkItems = `
SELECT id, session, item, state, opener, agent, role, task, scope, due_at, finished_at, revision
FROM items WHERE kind = ?`

const checkParts = `
SELECT DISTINCT p.item FROM item_parts p LEFT JOIN items i ON i.id = p.item WHERE i.id IS NULL LIMIT 100`
