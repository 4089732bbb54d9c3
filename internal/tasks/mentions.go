package tasks

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// selectArtifactLists reads in the order of the last changes: a task that is completed with artifacts
// comes again.
const selectArtifactLists = `
SELECT t.revision, COALESCE(x.artifacts, '') || ' ' || COALESCE(x.result_artifacts, '')
FROM tasks t CROSS JOIN task_texts x
WHERE t.session = ? AND t.texts = 1 AND t.revision > ? AND x.task = t.created
ORDER BY t.revision
LIMIT 1000`

// ArtifactMentions finds which of the texts tasks of a session have as an artifact, as work.Mentions.
func (t *Tasks) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectArtifactLists, session, after), after, texts)
}
