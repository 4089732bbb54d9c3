package gauges

import (
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

// A Brief identifies a message in a list.
type Brief struct {
	ID       string
	Revision int64
	Type     string
	Subject  string
}

// OfTask returns the newest messages of a session that carry the id of a task, at most limit.
func OfTask(q store.Querier, session int64, task string, limit int) ([]Brief, error) {
	var found []Brief
	rows := q.Query(selectOfTask, task, session, limit)
	defer rows.Close()
	for rows.Next() {
		var m Brief
		var id, stored []byte
		if err := rows.Scan(&id, &m.Revision, &m.Type, &stored); err != nil {
			return nil, err
		}
		m.ID, m.Subject = uuid.UUID(id).String(), content.Title(stored)
		found = append(found, m)
	}
	return found, rows.Err()
}
