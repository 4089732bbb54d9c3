package state

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The values that keys have now; of a document, all its entries.
const selectLiveValues = `
SELECT v.value
FROM state_versions v CROSS JOIN state_keys k ON k.id = v.key
WHERE v.scope = ? AND k.deleted = 0 AND (v.id = k.current OR k.type = 5 AND v.id >= k.first)`

// ArtifactMentions returns which of the texts the values of the session's own keys contain.
func (k *Keys) ArtifactMentions(q store.Querier, session int64, texts []string) (map[string]bool, error) {
	return work.Mentions(q.Query(selectLiveValues, session), texts)
}
