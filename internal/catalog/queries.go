package catalog

import "brokerd/internal/store"

// Migrations returns the steps that make the table of registered types.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "catalog/001_types", SQL: `
CREATE TABLE message_types (
	session       INTEGER NOT NULL,
	name          TEXT    NOT NULL,
	aliases       TEXT    NOT NULL, -- JSON list
	title         TEXT    NOT NULL,
	sender        TEXT    NOT NULL,
	recipient     TEXT    NOT NULL,
	example       TEXT    NOT NULL, -- JSON, or empty
	schema        TEXT    NOT NULL, -- JSON, or empty
	registered_by TEXT    NOT NULL,
	registered_at INTEGER NOT NULL,
	revision      INTEGER NOT NULL,
	PRIMARY KEY (session, name)
) WITHOUT ROWID;
`}, {Name: "catalog/002_versions", SQL: `
ALTER TABLE message_types ADD COLUMN version INTEGER NOT NULL DEFAULT 1; -- counts the registrations
`}}
}

const (
	selectTypes = `
		SELECT name, aliases, title, sender, recipient, example, schema, registered_by, registered_at, revision, version
		FROM message_types WHERE session = ? AND name > ? ORDER BY name LIMIT ?`
	selectNames = `
		SELECT name, aliases FROM message_types WHERE session = ? ORDER BY name`
	upsertType = `
		INSERT INTO message_types (session, name, aliases, title, sender, recipient, example, schema,
			registered_by, registered_at, revision)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (session, name) DO UPDATE SET
			aliases = excluded.aliases, title = excluded.title, sender = excluded.sender, recipient = excluded.recipient,
			example = excluded.example, schema = excluded.schema, registered_by = excluded.registered_by,
			registered_at = excluded.registered_at, revision = excluded.revision, version = message_types.version + 1
		RETURNING version`
	deleteSomeTypes = `
		DELETE FROM message_types
		WHERE (session, name) IN (
			SELECT session, name FROM message_types WHERE session = ? LIMIT ?)`
)
