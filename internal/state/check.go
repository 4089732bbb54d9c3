package state

import (
	"fmt"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns the checks of the tables; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants[:], func(key int64) string { return fmt.Sprintf("key %d of the state", key) })
}

var invariants = [...]work.Invariant{
	{Says: "its newest version is not the one that it says", Query: `
		SELECT k.id FROM state_keys k LEFT JOIN state_versions v ON v.id = k.current
		WHERE v.id IS NULL OR v.key <> k.id OR v.scope <> k.scope OR v.version <> k.version OR v.revision <> k.revision
		   OR v.deleted <> k.deleted OR v.type <> k.type OR k.current <> (SELECT max(id) FROM state_versions WHERE key = k.id)`},
	{Says: "it has versions and is not there", Query: `
		SELECT DISTINCT v.key FROM state_versions v LEFT JOIN state_keys k ON k.id = v.key WHERE k.id IS NULL`},
	{Says: "a version is missing among those that are kept, or is not in the order of revisions", Query: `
		SELECT DISTINCT key FROM (
			SELECT key, id, version, revision, lag(version) OVER w AS version_before, lag(revision) OVER w AS revision_before
			FROM state_versions WINDOW w AS (PARTITION BY key ORDER BY id)
		) AS x WHERE version <> version_before + 1 OR revision <= revision_before OR revision > id`},
	{Says: "a document does not have the entries that it says", Query: `
		SELECT k.id FROM state_keys k WHERE k.type = 5 AND k.deleted = 0
		AND (k.entries, k.bytes) <> (SELECT count(*), sum(size + 64) FROM state_versions v WHERE v.key = k.id AND v.id >= k.first)`},
	{Says: "something is owned, or expires, that is not there", Query: `
		SELECT id FROM state_keys WHERE deleted = 1 AND (owner IS NOT NULL OR expires_at IS NOT NULL)`},
}
