package gauges

import (
	"cmp"

	"errors"

	"github.com/google/uuid"

	"brokerd/internal/content"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// ArtifactMentions finds those of the texts that a message of a session names as an artifact, all in one page. It finds
// a message until retention has removed the message's details.
func ArtifactMentions(q store.Querier, session, _ int64, texts *work.Texts) (last int64, more bool, err error) {
	for _, text := range texts.List() {
		var one int
		err := q.QueryRow(selectMessageArtifact, session, text).Scan(&one)
		switch {
		case err == nil:
			texts.Find(text)
		case !errors.Is(err, store.ErrNoRows):
			return 0, false, err
		}
	}
	return 0, false, nil
}

// OfTask returns the newest messages of a session that carry the id of a task, at most limit.
func OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	return store.Collect(q.Query(selectOfTask, task, session, limit), func(r *store.Rows) (work.Item, error) {
		m := work.Item{Kind: "message"}
		var id, stored []byte
		var kind string
		if err := r.Scan(&id, &m.Revision, &kind, &stored); err != nil {
			return m, err
		}
		m.ID, m.Title = uuid.UUID(id).String(), cmp.Or(content.Title(stored), kind)
		return m, nil
	})
}
