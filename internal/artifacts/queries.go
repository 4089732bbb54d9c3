package artifacts

import "brokerd/internal/store"

// Migrations returns the steps that create the tables of artifacts.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "artifacts/001_artifacts", SQL: `
CREATE TABLE artifacts (
	session    INTEGER NOT NULL,
	name       TEXT    NOT NULL,
	last       INTEGER NOT NULL, -- the highest version number so far
	deleted_at INTEGER, -- when its last version was removed; NULL = it has versions
	PRIMARY KEY (session, name)
) WITHOUT ROWID;
CREATE INDEX artifacts_deleted ON artifacts (session, deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE artifact_versions (
	revision    INTEGER PRIMARY KEY, -- of the upload
	session     INTEGER NOT NULL,
	name        TEXT    NOT NULL,
	version     INTEGER NOT NULL,
	sha256      TEXT    NOT NULL, -- in hexadecimal
	size        INTEGER NOT NULL,
	media_type  TEXT    NOT NULL,
	description TEXT    NOT NULL,
	labels      TEXT, -- JSON object
	task_id     TEXT,
	author      TEXT    NOT NULL,
	created_at  INTEGER NOT NULL,
	replaced_at INTEGER -- when a newer version was uploaded; NULL = it is the newest
);
CREATE UNIQUE INDEX artifact_versions_name ON artifact_versions (session, name, version DESC);
CREATE INDEX artifact_versions_newest   ON artifact_versions (session, name) WHERE replaced_at IS NULL;
CREATE INDEX artifact_versions_content  ON artifact_versions (session, sha256);
CREATE INDEX artifact_versions_task     ON artifact_versions (session, task_id, revision) WHERE task_id IS NOT NULL;
CREATE INDEX artifact_versions_replaced ON artifact_versions (session, replaced_at) WHERE replaced_at IS NOT NULL;

-- A content that a session has.
CREATE TABLE artifact_contents (
	session  INTEGER NOT NULL,
	sha256   TEXT    NOT NULL,
	size     INTEGER NOT NULL,
	versions INTEGER NOT NULL, -- how many have it
	PRIMARY KEY (session, sha256)
) WITHOUT ROWID;
CREATE INDEX artifact_contents_sha256 ON artifact_contents (sha256);

-- The sums of a session.
CREATE TABLE artifact_usage (
	session  INTEGER PRIMARY KEY,
	names    INTEGER NOT NULL, -- rows of artifacts
	versions INTEGER NOT NULL, -- rows of artifact_versions
	bytes    INTEGER NOT NULL -- of its contents
);
`}, {Name: "artifacts/002_chunks", SQL: chunkTable, Server: chunkTable + `
ALTER TABLE artifact_chunks ALTER COLUMN data SET STORAGE EXTERNAL;`}}
}

// chunkTable declares the rows of contents that are kept in the database. With SQLite they are files, and the table is
// empty. PostgreSQL does not compress the data: it may be compressed already.
const chunkTable = `
CREATE TABLE artifact_chunks (
	sha256 TEXT    NOT NULL, -- of the content; of one that is not complete yet, another name
	n      INTEGER NOT NULL, -- from 0
	data   BLOB    NOT NULL,
	PRIMARY KEY (sha256, n)
) WITHOUT ROWID;
CREATE INDEX artifact_chunks_first ON artifact_chunks (sha256) WHERE n = 0;
`

const versionColumns = `
name, version, revision, sha256, size, media_type, description, labels, task_id, author, created_at, replaced_at`

const selectVersion = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE session = ? AND name = ? AND version = ?`

const selectNewest = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE session = ? AND name = ? AND replaced_at IS NULL`

const selectOfTask = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE session = ? AND task_id = ? ORDER BY revision DESC LIMIT ?`

const selectByContent = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE session = ? AND sha256 = ? ORDER BY revision DESC LIMIT 1`

const selectArtifact = `
SELECT last FROM artifacts WHERE session = ? AND name = ?`

const selectContent = `
SELECT size, versions FROM artifact_contents WHERE session = ? AND sha256 = ?`

const contentInUse = `
SELECT 1 FROM artifact_contents WHERE sha256 = ? LIMIT 1`

const selectUsage = `
SELECT names, versions, bytes FROM artifact_usage WHERE session = ?`

const putArtifact = `
INSERT INTO artifacts (session, name, last) VALUES (?, ?, ?)
ON CONFLICT (session, name) DO UPDATE SET last = excluded.last, deleted_at = NULL`

const insertVersion = `
INSERT INTO artifact_versions (session, ` + versionColumns + `)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)`

const replaceNewest = `
UPDATE artifact_versions SET replaced_at = ? WHERE session = ? AND name = ? AND replaced_at IS NULL`

const addContent = `
INSERT INTO artifact_contents (session, sha256, size, versions) VALUES (?, ?, ?, 1)
ON CONFLICT (session, sha256) DO UPDATE SET versions = artifact_contents.versions + 1`

const addUsage = `
INSERT INTO artifact_usage (session, names, versions, bytes) VALUES (?, ?, ?, ?)
ON CONFLICT (session) DO UPDATE SET names = artifact_usage.names + excluded.names,
	versions = artifact_usage.versions + excluded.versions, bytes = artifact_usage.bytes + excluded.bytes`

// The position is a name and a version: those after it, and names below an upper bound.
const listVersions = `
SELECT ` + versionColumns + `
FROM artifact_versions
WHERE session = ? AND name >= ? AND (name > ? OR version < ?) AND name < ?
  AND (? = '' OR author = ?) AND (? = '' OR task_id = ?)`

const byName = `
ORDER BY name, version DESC
LIMIT ?`

const listAll = listVersions + byName

const listNewest = listVersions + `
  AND replaced_at IS NULL` + byName

const listContent = listVersions + `
  AND sha256 = ?` + byName

const someNames = `
SELECT name FROM artifacts WHERE session = ? AND deleted_at IS NULL ORDER BY name LIMIT ?`

// Version 0 selects all of a name.
const groupDeleted = `
SELECT sha256, size, count(*), min(author), max(author)
FROM artifact_versions
WHERE session = ? AND name = ? AND (? = 0 OR version = ?)
GROUP BY sha256, size
ORDER BY sha256`

const deleteVersions = `
DELETE FROM artifact_versions WHERE session = ? AND name = ? AND (? = 0 OR version = ?)`

const dropContent = `
UPDATE artifact_contents SET versions = versions - ? WHERE session = ? AND sha256 = ?`

const deleteContent = `
DELETE FROM artifact_contents WHERE session = ? AND sha256 = ?`

const highestVersion = `
SELECT version FROM artifact_versions WHERE session = ? AND name = ? ORDER BY version DESC LIMIT 1`

const makeNewest = `
UPDATE artifact_versions SET replaced_at = NULL WHERE session = ? AND name = ? AND version = ?`

const markDeleted = `
UPDATE artifacts SET deleted_at = ? WHERE session = ? AND name = ?`

// Names whose versions were all removed before a time.
const forgetDeleted = `
DELETE FROM artifacts WHERE session = ? AND name IN
	(SELECT name FROM artifacts WHERE session = ? AND deleted_at < ? ORDER BY deleted_at LIMIT ?)`

const everyVersion = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE session = ? AND name >= ? AND (name > ? OR version > ?)
ORDER BY name, version
LIMIT ?`

const everyContent = `
SELECT sha256 FROM artifact_contents WHERE session = ? AND sha256 > ? ORDER BY sha256 LIMIT ?`

// Versions that were replaced at or before a time, the oldest end first, after a position.
const selectReplaced = `
SELECT ` + versionColumns + `
FROM artifact_versions
WHERE session = ? AND replaced_at <= ? AND (replaced_at, revision) > (?, ?)
ORDER BY replaced_at, revision
LIMIT ?`

const nextReplaced = `
SELECT replaced_at FROM artifact_versions WHERE session = ? AND replaced_at > ? ORDER BY replaced_at LIMIT 1`

const selectRevision = `
SELECT ` + versionColumns + `
FROM artifact_versions WHERE revision = ?`

const deleteSomeVersions = `
DELETE FROM artifact_versions
WHERE revision IN (SELECT revision FROM artifact_versions WHERE session = ? ORDER BY name LIMIT ?)`

const deleteVersion = `
DELETE FROM artifact_versions WHERE revision = ?`

const deleteContents = `
DELETE FROM artifact_contents WHERE session = ? AND sha256 <= ?`

const deleteSomeArtifacts = `
DELETE FROM artifacts
WHERE (session, name) IN (SELECT session, name FROM artifacts WHERE session = ? LIMIT ?)`

const deleteUsage = `
DELETE FROM artifact_usage WHERE session = ?`

// A chunk that is there already was written by the same upload.
const insertChunk = `
INSERT INTO artifact_chunks (sha256, n, data) VALUES (?, ?, ?)
ON CONFLICT (sha256, n) DO NOTHING`

// The chunks of a content that a draft replaces: none if there is no such draft any more, since this is a repetition.
const deleteReplaced = `
DELETE FROM artifact_chunks
WHERE sha256 = ? AND EXISTS (SELECT 1 FROM artifact_chunks AS draft WHERE draft.sha256 = ? AND draft.n = 0)`

const renameChunks = `
UPDATE artifact_chunks SET sha256 = ? WHERE sha256 = ?`

const deleteChunks = `
DELETE FROM artifact_chunks WHERE sha256 = ?`

// The size of a content; -1 without a chunk.
const sizeOfChunks = `
SELECT coalesce(sum(length(data)), -1) FROM artifact_chunks WHERE sha256 = ?`

const selectChunk = `
SELECT data FROM artifact_chunks WHERE sha256 = ? AND n = ?`

const selectChunked = `
SELECT sha256 FROM artifact_chunks WHERE n = 0 AND sha256 > ? ORDER BY sha256 LIMIT ?`

// Contents of sessions whose chunks have another size, or that have no chunks.
const wrongChunks = `
SELECT c.sha256, c.size, coalesce(sum(length(k.data)), -1)
FROM (SELECT sha256, max(size) AS size FROM artifact_contents GROUP BY sha256) AS c
	LEFT JOIN artifact_chunks k ON k.sha256 = c.sha256
GROUP BY c.sha256, c.size
HAVING coalesce(sum(length(k.data)), -1) <> c.size
ORDER BY c.sha256
LIMIT ?`
