package store

// Collect scans all rows of a query, and closes the rows also if one cannot be scanned. scan reads
// one row.
func Collect[T any](rows *Rows, scan func(*Rows) (T, error)) ([]T, error) {
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Close()
}
