package state

import (
	"fmt"

	"brokerd/internal/store"
)

// Checks returns what looks the tables over, each for a snapshot of its own. A check returns what is wrong, one line each, at most so many.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) { return i.check(q, most) })
	}
	return checks
}

// An invariant is a query for keys that must not be, by id, and what it means that they are.
type invariant struct{ says, query string }

func (i invariant) check(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(i.query)
	defer rows.Close()
	for len(problems) < most && rows.Next() {
		var key int64
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("key %d of the state: %s", key, i.says))
	}
	return problems, rows.Close()
}

var invariants = [...]invariant{
	{"its newest version is not the one that it says", `
		SELECT k.id FROM state_keys k LEFT JOIN state_versions v ON v.id = k.current
		WHERE v.id IS NULL OR v.key <> k.id OR v.scope <> k.scope OR v.version <> k.version OR v.revision <> k.revision
		   OR v.deleted <> k.deleted OR v.type <> k.type OR k.current <> (SELECT max(id) FROM state_versions WHERE key = k.id)`},
	{"it has versions and is not there", `
		SELECT DISTINCT v.key FROM state_versions v LEFT JOIN state_keys k ON k.id = v.key WHERE k.id IS NULL`},
	{"a version is missing among those that are kept, or is not in the order of revisions", `
		SELECT DISTINCT key FROM (
			SELECT key, id, version, revision, lag(version) OVER w AS version_before, lag(revision) OVER w AS revision_before
			FROM state_versions WINDOW w AS (PARTITION BY key ORDER BY id)
		) WHERE version <> version_before + 1 OR revision <= revision_before OR revision > id`},
	{"a document does not have the entries that it says", `
		SELECT k.id FROM state_keys k WHERE k.type = 5 AND NOT k.deleted
		AND (k.entries, k.bytes) <> (SELECT count(*), sum(size + 64) FROM state_versions v WHERE v.key = k.id AND v.id >= k.first)`},
	{"something is owned, or expires, that is not there", `
		SELECT id FROM state_keys WHERE deleted AND (owner IS NOT NULL OR expires_at IS NOT NULL)`},
}
