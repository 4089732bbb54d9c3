package tasks

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const selectArtifactLists = `
SELECT COALESCE(x.artifacts, '') || ' ' || COALESCE(x.result_artifacts, '')
FROM tasks t CROSS JOIN task_texts x ON x.task = t.created
WHERE t.session = ? AND (x.artifacts IS NOT NULL OR x.result_artifacts IS NOT NULL)`

// ArtifactMentions returns which of the texts tasks of a session have as an artifact.
func (t *Tasks) ArtifactMentions(q store.Querier, session int64, texts []string) (map[string]bool, error) {
	return work.Mentions(q.Query(selectArtifactLists, session), texts)
}
