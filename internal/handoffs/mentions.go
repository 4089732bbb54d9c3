package handoffs

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectContents = `
SELECT content FROM handoffs WHERE session = ?`

// ArtifactMentions returns which of the texts the contents of a session's handoffs contain.
func (d *Desk) ArtifactMentions(q store.Querier, session int64, texts []string) (map[string]bool, error) {
	return work.Mentions(q.Query(selectContents, session), texts)
}
