package handoffs

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectContents = `
SELECT id, content FROM handoffs WHERE session = ? AND id > ? ORDER BY id LIMIT 1000`

// ArtifactMentions finds which of the texts the contents of a session's handoffs contain, as work.Mentions.
func (d *Desk) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectContents, session, after), after, texts)
}
