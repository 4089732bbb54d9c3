package state

import "brokerd/internal/store"

// A Version names a key and the revision of its newest version.
type Version struct {
	Name
	Revision int64
}

// OfTask returns the keys that belong to a task, those of the session and the global ones, the last
// changed first, at most limit.
func (k *Keys) OfTask(q store.Querier, session int64, task string, limit int) ([]Version, error) {
	var found []Version
	rows := q.Query(selectOfTask, session, task, limit)
	defer rows.Close()
	for rows.Next() {
		var v Version
		if err := rows.Scan(&v.Namespace, &v.Key, &v.Revision); err != nil {
			return nil, err
		}
		found = append(found, v)
	}
	return found, rows.Err()
}
