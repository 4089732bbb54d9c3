package broker

import (
	"github.com/google/uuid"

	"brokerd/internal/store"
)

// A Brief is a message in short.
type Brief struct {
	ID       string
	Revision int64
	Type     string
	Subject  string
}

const selectOfTask = `
	SELECT id, revision, type, content FROM messages WHERE task = ? AND session = ? ORDER BY revision DESC LIMIT ?`

// OfTask returns the newest messages of a session that carry the id of a task, at most limit.
func OfTask(q store.Querier, session int64, task string, limit int) ([]Brief, error) {
	var found []Brief
	rows := q.Query(selectOfTask, task, session, limit)
	defer rows.Close()
	for rows.Next() {
		var m Brief
		var id, content []byte
		if err := rows.Scan(&id, &m.Revision, &m.Type, &content); err != nil {
			return nil, err
		}
		m.ID, m.Subject = uuid.UUID(id).String(), Title(content)
		found = append(found, m)
	}
	return found, rows.Err()
}
