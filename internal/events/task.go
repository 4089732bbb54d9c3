package events

import "brokerd/internal/store"

// A Brief is an event in short.
type Brief struct {
	Revision int64
	Type     string
	Summary  string
}

// OfTask returns the newest events of a session that carry the id of a task, at most limit.
func (l *Log) OfTask(q store.Querier, session int64, task string, limit int) ([]Brief, error) {
	var found []Brief
	rows := q.Query(selectOfTask, session, task, limit)
	defer rows.Close()
	for rows.Next() {
		var b Brief
		if err := rows.Scan(&b.Revision, &b.Type, &b.Summary); err != nil {
			return nil, err
		}
		found = append(found, b)
	}
	return found, rows.Err()
}
