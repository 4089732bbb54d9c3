package decisions

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectArtifactLists = `
SELECT artifacts FROM decisions WHERE session = ? AND artifacts IS NOT NULL`

// ArtifactMentions returns which of the texts decisions of a session have as an artifact.
func (t *Table) ArtifactMentions(q store.Querier, session int64, texts []string) (map[string]bool, error) {
	return work.Mentions(q.Query(selectArtifactLists, session), texts)
}
