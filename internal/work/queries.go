package work

import "brokerd/internal/store"

// Migrations returns the steps that create the table of the backlogs.
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
