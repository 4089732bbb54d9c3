package store

import "fmt"

// Space is how a database file is filled, in pages.
type Space struct {
	Pages int64 // of the file
	Free  int64 // of these: they are used again before the file grows
}

// FreeBytes returns the size of the free pages, in bytes.
func (s Space) FreeBytes() int64 { return s.Free * pageSize }

// SpaceOf returns how the database is filled.
func SpaceOf(q Querier) (Space, error) {
	var s Space
	if onServer(q) {
		return s, nil // which looks after it itself
	}
	if err := q.QueryRow(`PRAGMA page_count`).Scan(&s.Pages); err != nil {
		return s, fmt.Errorf("count pages: %w", err)
	}
	if err := q.QueryRow(`PRAGMA freelist_count`).Scan(&s.Free); err != nil {
		return s, fmt.Errorf("count free pages: %w", err)
	}
	return s, nil
}

// vacuumStep is how many pages one call of Vacuum gives back: about as much work as a function of the writer should do.
const vacuumStep = 64

// Vacuum gives some free pages back to the file system, at most half a megabyte of them, and returns how the database is filled
// then. The file itself gets smaller when the write-ahead log is next copied into it.
func (tx *Tx) Vacuum() (Space, error) {
	if onServer(tx) {
		return Space{}, nil
	}
	rows := tx.Query(fmt.Sprintf(`PRAGMA incremental_vacuum(%d)`, vacuumStep))
	for rows.Next() { // one a page
	}
	if err := rows.Err(); err != nil {
		return Space{}, fmt.Errorf("give free pages back: %w", err)
	}
	return SpaceOf(tx)
}

// onServer reports whether the database is on a server.
func onServer(q Querier) bool {
	switch q := q.(type) {
	case *Tx:
		return q.writer.conn.sqlite == nil
	case *Snapshot:
		return q.conn.sqlite == nil
	}
	return false
}
