package retention

import "brokerd/internal/store"

// Migrations returns the steps that make the tables of what was archived.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "retention/001_archives", SQL: `
CREATE TABLE archives (
	session INTEGER NOT NULL,
	file    TEXT    NOT NULL, -- in the session's folder
	bytes   INTEGER NOT NULL, -- that belong to it: what is beyond was never committed
	lines   INTEGER NOT NULL,
	PRIMARY KEY (session, file)
) WITHOUT ROWID;
CREATE TABLE deletions (
	session INTEGER PRIMARY KEY,
	archive TEXT    NOT NULL, -- folder of the export, below the data folder
	source  TEXT    NOT NULL  -- who deletes it
);
`}}
}

const (
	selectArchive = `
		SELECT bytes, lines FROM archives WHERE session = ? AND file = ?`
	selectArchives = `
		SELECT file, bytes, lines FROM archives WHERE session = ? ORDER BY file`
	upsertArchive = `
		INSERT INTO archives (session, file, bytes, lines) VALUES (?, ?, ?, ?)
		ON CONFLICT (session, file) DO UPDATE SET bytes = excluded.bytes, lines = excluded.lines`
	deleteSomeArchives = `
		DELETE FROM archives
		WHERE (session, file) IN (SELECT session, file FROM archives WHERE session = ? LIMIT ?)`

	selectDeletions = `
		SELECT session, archive, source FROM deletions ORDER BY session`
	selectDeletion = `
		SELECT archive, source FROM deletions WHERE session = ?`
	insertDeletion = `
		INSERT INTO deletions (session, archive, source) VALUES (?, ?, ?)`
	deleteDeletion = `
		DELETE FROM deletions WHERE session = ?`
)
