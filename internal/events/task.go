package events

import "brokerd/internal/store"

// mostSearched is how many of the newest events of the broker Published reads.
const mostSearched = 10_000

// Published reports whether one of the newest events of the broker is an event of a session and of a
// type, as the log stores it.
func (l *Log) Published(q store.Querier, session int64, eventType string) (found bool, err error) {
	err = q.QueryRow(selectPublished, mostSearched, session, eventType).Scan(&found)
	return found, err
}

// A Brief is an event in short.
type Brief struct {
	Revision int64
	Type     string
	Summary  string
}

// OfTask returns the newest events of a session that carry the id of a task, at most limit.
func (l *Log) OfTask(q store.Querier, session int64, task string, limit int) ([]Brief, error) {
	floor, err := floorOf(q, session)
	if err != nil {
		return nil, err
	}
	return store.Collect(q.Query(selectOfTask, session, task, floor, limit), func(rows *store.Rows) (b Brief, err error) {
		var s sent
		if err = rows.Scan(&b.Revision, &b.Type, &b.Summary, &s.recipients, &s.content); err == nil && s.is() {
			b.Type, b.Summary = sentType, s.summary(b.Type)
		}
		return b, err
	})
}
