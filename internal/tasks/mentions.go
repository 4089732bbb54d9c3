package tasks

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectArtifactLists = `
SELECT t.created, COALESCE(x.artifacts, '') || ' ' || COALESCE(x.result_artifacts, '')
FROM tasks t CROSS JOIN task_texts x ON x.task = t.created
WHERE t.session = ? AND t.created > ?
ORDER BY t.created
LIMIT 1000`

// ArtifactMentions finds which of the texts tasks of a session have as an artifact, as work.Mentions.
func (t *Tasks) ArtifactMentions(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectArtifactLists, session, after), after, texts)
}
