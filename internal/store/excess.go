package store

import "go.uber.org/zap"

// The most that one function of the writer may do. All callers wait for a function, so longer work goes in pages of up
// to 1,000 rows, each in a separate function.
const (
	MaxChanged = 10_000 // rows that its statements insert, update or delete
	MaxRead    = 20_000 // rows that its queries return; rows that SQLite itself skips do not count
)

// An Excess is a function of the writer that has done more than it may.
type Excess struct {
	Changed, Read int    // rows, in the whole function
	Query         string // the statement that exceeded one of the two
}

// change counts rows that a statement has changed.
func (tx *Tx) change(query string, rows int) {
	tx.rows += rows
	tx.changed = tx.changed || rows > 0
	if tx.rows > MaxChanged {
		tx.exceed(query)
	}
}

// exceed notes where the function exceeds a bound. It is the first place that counts.
func (tx *Tx) exceed(query string) {
	if tx.excess != "" {
		return
	}
	tx.excess = query
	if tx.over {
		tx.writer.exceeded(tx)
	}
}

// exceeded reports a function that has done too much. Its changes stand.
func (w *writer) exceeded(tx *Tx) {
	w.log.Warn("a function of the writer did too much at once, and other changes waited for it: this is a defect of the broker",
		zap.Int("rows_changed", tx.rows), zap.Int("rows_read", tx.read), zap.String("statement", tx.excess))
	if w.excess != nil {
		w.excess(Excess{Changed: tx.rows, Read: tx.read, Query: tx.excess})
	}
}
