package state

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// OfTask returns the keys that belong to a task, those of the session and the global ones, the last
// changed first, at most limit.
func (k *Keys) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	rows := q.Query(selectOfTask, session, task, limit)
	return store.Collect(rows, func(r *store.Rows) (work.Item, error) {
		var n Name
		i := work.Item{Kind: "state"}
		err := r.Scan(&n.Namespace, &n.Key, &i.Revision)
		i.ID, i.Title = n.String(), n.String()
		return i, err
	})
}
