package state

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The values that keys have now; of a document, all its entries. Rows of other versions have none. No
// version gets a lower id than those before it.
const selectLiveValues = `
SELECT v.id, CASE WHEN k.deleted = 0 AND (v.id = k.current OR k.type = 5 AND v.id >= k.first) THEN v.value END
FROM state_versions v CROSS JOIN state_keys k
WHERE v.scope = ? AND v.id > ? AND k.id = v.key
ORDER BY v.id
LIMIT 1000`

// ArtifactMentions finds which of the texts the values of the session's own keys contain, as work.Mentions.
func (k *Keys) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectLiveValues, session, after), after, texts)
}
