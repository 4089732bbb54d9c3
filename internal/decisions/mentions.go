package decisions

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// selectArtifactLists reads in the order of the last changes: a decision that is resubmitted with
// artifacts comes again.
const selectArtifactLists = `
SELECT revision, artifacts
FROM decisions
WHERE session = ? AND artifacts IS NOT NULL AND revision > ?
ORDER BY revision
LIMIT 1000`

// ArtifactMentions finds which of the texts decisions of a session have as an artifact, as work.Mentions.
func (t *Table) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectArtifactLists, session, after), after, texts)
}
