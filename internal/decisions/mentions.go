package decisions

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectArtifactLists = `
SELECT id, artifacts FROM decisions WHERE session = ? AND id > ? ORDER BY id LIMIT 1000`

// ArtifactMentions finds which of the texts decisions of a session have as an artifact, as work.Mentions.
func (t *Table) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectArtifactLists, session, after), after, texts)
}
