package state

import "brokerd/internal/store"

// Migrations returns the steps that make the tables of keys.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "state/001_keys", SQL: `
CREATE TABLE state_keys (
	id            INTEGER PRIMARY KEY, -- of its first version
	scope         INTEGER NOT NULL, -- session; 0 = shared by all of them
	namespace     TEXT NOT NULL,
	key           TEXT NOT NULL,
	type          INTEGER NOT NULL,
	version       INTEGER NOT NULL,
	revision      INTEGER NOT NULL,
	current       INTEGER NOT NULL, -- id of the newest version
	first         INTEGER NOT NULL, -- id of the version that made it since it was last deleted
	created_at    INTEGER NOT NULL, -- when that was
	expires_at    INTEGER,
	owner         TEXT,
	owner_session INTEGER,
	deleted       INTEGER NOT NULL,
	entries       INTEGER NOT NULL, -- of a document
	bytes         INTEGER NOT NULL, -- of a document
	contributors  TEXT, -- JSON list, of a document
	task_id       TEXT,
	UNIQUE (scope, namespace, key)
);
CREATE INDEX state_keys_expiry ON state_keys (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX state_keys_owner ON state_keys (owner, owner_session) WHERE owner IS NOT NULL;
CREATE INDEX state_keys_task ON state_keys (scope, task_id, namespace, key) WHERE task_id IS NOT NULL;

-- A row is never changed. The ids are numbers of the counter: that of the revision for its first change, and then the numbers after it.
CREATE TABLE state_versions (
	id         INTEGER PRIMARY KEY,
	scope      INTEGER NOT NULL,
	key        INTEGER NOT NULL, -- id in state_keys
	version    INTEGER NOT NULL,
	revision   INTEGER NOT NULL,
	type       INTEGER NOT NULL,
	size       INTEGER NOT NULL, -- bytes of the value
	author     TEXT NOT NULL,
	changed_at INTEGER NOT NULL,
	created_at INTEGER NOT NULL,
	expires_at INTEGER,
	owner      TEXT,
	deleted    INTEGER NOT NULL,
	number     INTEGER NOT NULL, -- of the entry that it added to a document
	task_id    TEXT,
	value      TEXT -- of a document: that entry
);
CREATE INDEX state_versions_key ON state_versions (key);
CREATE INDEX state_versions_scope ON state_versions (scope, id, size);

CREATE TABLE state_floors (
	scope    INTEGER PRIMARY KEY,
	revision INTEGER NOT NULL -- up to which versions may be missing
);
`}, {Name: "state/002_global_owners", SQL: `
CREATE INDEX state_keys_global_owner ON state_keys (owner_session)
	WHERE scope = 0 AND owner IS NOT NULL;
`}}
}

const keyColumns = `id, type, version, revision, current, first, created_at, expires_at, owner, owner_session, deleted, entries, bytes, contributors, task_id`

const selectKey = `
SELECT ` + keyColumns + `
FROM state_keys WHERE scope = ? AND namespace = ? AND key = ?`

const insertKey = `
INSERT INTO state_keys (scope, namespace, key, ` + keyColumns + `)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// updateValue is for a change of nothing but the value, which is most of them: no index is touched.
const updateValue = `
UPDATE state_keys SET type = ?, version = ?, revision = ?, current = ? WHERE id = ?`

const updateKey = `
UPDATE state_keys
SET type = ?, version = ?, revision = ?, current = ?, first = ?, created_at = ?, expires_at = ?, owner = ?, owner_session = ?,
    deleted = ?, entries = ?, bytes = ?, contributors = ?, task_id = ?
WHERE id = ?`

const insertVersion = `
INSERT INTO state_versions (id, scope, key, version, revision, type, size, author, changed_at, created_at, expires_at, owner, deleted, number, task_id, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const versionColumns = `
v.id, k.namespace, k.key, v.version, v.revision, v.type, v.author, v.changed_at, v.created_at, v.expires_at, v.owner, v.deleted, v.number, v.task_id`

const selectVersion = `
SELECT ` + versionColumns + `, v.value
FROM state_versions v JOIN state_keys k ON k.id = v.key
WHERE v.id = ?`

const versionAt = `
SELECT id FROM state_versions WHERE key = ? AND revision <= ? ORDER BY id DESC LIMIT 1`

const oldestVersion = `
SELECT version FROM state_versions WHERE key = ? ORDER BY id LIMIT 1`

const firstEntry = `
SELECT id FROM state_versions WHERE key = ? AND id <= ? AND number = 1 ORDER BY id DESC LIMIT 1`

// Of a document: its entries between two versions, both included.
const selectEntries = `
SELECT number, author, changed_at, revision, task_id, value
FROM state_versions
WHERE key = ? AND id BETWEEN ? AND ? AND number > ?
ORDER BY id`

const selectHistory = `
SELECT ` + versionColumns + `, v.value
FROM state_versions v JOIN state_keys k ON k.id = v.key
WHERE v.key = ? AND v.id < ?
ORDER BY v.id DESC
LIMIT ?`

// Bounds are texts, of which the second is above all that are meant.
const listKeys = `
SELECT ` + versionColumns + `, CASE WHEN ? <> 0 THEN v.value END, k.owner, k.entries, k.contributors
FROM state_keys k JOIN state_versions v ON v.id = k.current
WHERE k.scope = ? AND (k.namespace, k.key) >= (?, ?) AND (k.namespace, k.key) < (?, ?)
  AND k.deleted = 0 AND (k.expires_at IS NULL OR k.expires_at > ?)
  AND (? = '' OR substr(k.key, 1, length(?)) = ?)
  AND (? = '' OR k.owner = ?)`

const byName = `
ORDER BY k.namespace, k.key
LIMIT ?`

const listTaskKeys = listKeys + `
  AND k.task_id = ?`

const selectOfTask = `
SELECT namespace, key, revision FROM state_keys
WHERE scope IN (?, 0) AND task_id = ? AND deleted = 0
ORDER BY revision DESC
LIMIT ?`

const selectBridges = `
SELECT k.key, v.value, v.changed_at
FROM state_keys k JOIN state_versions v ON v.id = k.current
WHERE k.scope = ? AND k.namespace = ? AND k.key > ? AND k.key < ? AND k.deleted = 0 AND v.author = ?
ORDER BY k.key
LIMIT ?`

const countKeys = `
SELECT count(*) FROM state_keys WHERE scope = ? AND deleted = 0`

const selectFloor = `
SELECT revision FROM state_floors WHERE scope = ?`

const firstAfter = `
SELECT id FROM state_versions WHERE scope = ? AND id > ? ORDER BY id LIMIT 1`

// The order of the join is fixed: versions are read in theirs. The ids of a revision may reach beyond it.
const selectChanges = `
SELECT ` + versionColumns + `, v.value
FROM state_versions v CROSS JOIN state_keys k
WHERE v.scope = ? AND v.id > ? AND v.id <= ? AND k.id = v.key AND v.revision > ? AND v.revision <= ?
  AND (? = '' OR k.namespace = ?)
  AND (? = '' OR substr(k.key, 1, length(?)) = ?)
ORDER BY v.id`

const selectDue = `
SELECT scope, namespace, key FROM state_keys WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`

const nextExpiry = `
SELECT expires_at FROM state_keys WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1`

const endOwnership = `
UPDATE state_keys SET owner = NULL, owner_session = NULL
WHERE id IN (SELECT id FROM state_keys WHERE owner = ? AND owner_session = ? AND revision < ? LIMIT ?)`

const endExpiry = `
UPDATE state_keys SET expires_at = NULL
WHERE id IN (SELECT id FROM state_keys WHERE scope = ? AND expires_at IS NOT NULL LIMIT ?)`

const sumVersions = `
SELECT v.scope, count(*), sum(v.size)
FROM state_versions v LEFT JOIN state_floors f ON f.scope = v.scope
WHERE v.id > COALESCE(f.revision, 0)
GROUP BY v.scope`

const selectOldest = `
SELECT id, key, revision, size FROM state_versions WHERE scope = ? AND id > ? ORDER BY id LIMIT ?`

const selectStanding = `
SELECT version, current, first, type, deleted FROM state_keys WHERE id = ?`

const deleteVersions = `
DELETE FROM state_versions WHERE key = ? AND id <= ? AND version <= ?`

const deleteKey = `
DELETE FROM state_keys WHERE id = ?`

const raiseFloor = `
INSERT INTO state_floors (scope, revision) VALUES (?, ?)
ON CONFLICT (scope) DO UPDATE
SET revision = CASE WHEN excluded.revision > state_floors.revision THEN excluded.revision ELSE state_floors.revision END`

const everyVersion = `
SELECT ` + versionColumns + `, v.value, v.id = k.current, k.owner
FROM state_versions v CROSS JOIN state_keys k
WHERE v.scope = ? AND v.id > ? AND k.id = v.key
ORDER BY v.id
LIMIT ?`

// The last one of a page of the oldest versions.
const lastOfOldest = `
SELECT max(id) FROM (SELECT id FROM state_versions WHERE scope = ? ORDER BY id LIMIT ?) AS x`

// Entries are versions from the first one on.
const shrinkDocuments = `
UPDATE state_keys
SET first = ?2 + 1, entries = state_keys.entries - x.entries, bytes = state_keys.bytes - x.bytes
FROM (
	SELECT v.key, count(*) AS entries, sum(v.size + 64) AS bytes
	FROM state_versions v JOIN state_keys k ON k.id = v.key
	WHERE v.scope = ?1 AND v.id <= ?2 AND k.type = 5 AND v.id >= k.first
	GROUP BY v.key) AS x
WHERE state_keys.id = x.key`

const deleteEmptied = `
DELETE FROM state_keys
WHERE id IN (SELECT key FROM state_versions WHERE scope = ?1 AND id <= ?2) AND current <= ?2`

const deleteOldest = `
DELETE FROM state_versions WHERE scope = ? AND id <= ?`

const deleteFloor = `
DELETE FROM state_floors WHERE scope = ?`

const endOwnerships = `
UPDATE state_keys SET owner = NULL, owner_session = NULL
WHERE id IN (
	SELECT id FROM state_keys WHERE scope = 0 AND owner IS NOT NULL AND owner_session = ? LIMIT ?)`
