package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"brokerd/internal/fault"
)

// A Tx is one function's part of a batch. It belongs to that function and to the writer goroutine,
// and is of no use once the function has returned. A function runs quickly and waits for nothing:
// everybody's changes wait for it.
type Tx struct {
	writer   *writer
	now      time.Time
	work     Work
	first    int    // its first statement among those that wait to be sent
	rows     int    // changed; one for each statement that waits
	noted    int    // rows that rounds are going to change for it
	read     int    // rows that its queries have returned
	excess   string // the statement with which it does more than a function may
	saved    bool   // the savepoint is open
	changing bool   // it has asked for a statement that may change something
	changed  bool   // a statement has changed a row
	numbered bool   // a revision was taken
	patient  bool   // nobody waits for the commit
	whole    bool   // it is a round whose failure loses the batch
	over     bool
	failed   error // of a statement; the function fails with it
	onCommit []func()
	drops    []func()
	rounds   []round   // that it has asked for
	memory   [4]func() // for drops
}

// Exec has a statement run before the next read of this function or of a later one, and before the commit, in the
// order of the calls. Arguments may be integers, strings, []byte, float64, and bool (stored as 0 or 1),
// time.Time (Unix nanoseconds, the zero time as NULL), time.Duration (nanoseconds) and nil; the bytes must not change
// afterwards. The query is one statement; it is prepared once per distinct text.
//
// After an error, such as an argument of another type, the function has failed: it gets this error whatever it
// returns, and its further statements do nothing. Where the error comes after the end of the function, the batch is
// rolled back and its functions run again.
//
// The rows that a statement of the schema changes are not counted: SQLite gives no number for them.
//
// Exec panics after the end of the function: no caller would learn that the statement was not run.
func (tx *Tx) Exec(query string, args ...any) {
	if tx.over {
		panic(errOver())
	}
	b := &tx.writer.batch
	if tx.failed != nil || b.lost != nil {
		return
	}
	if tx.failed = b.deferred.add(tx, query, args); tx.failed != nil {
		return
	}
	tx.work.Statements++
	tx.changing = true
	tx.rows++
}

// ExecCount runs a statement at once, and returns how many rows the statement has inserted, updated or deleted.
func (tx *Tx) ExecCount(query string, args ...any) (changed int64, err error) {
	st, err := tx.take(query)
	if err == nil {
		changed, err = tx.exec(st, args)
	}
	if err != nil {
		tx.failed = err
	}
	return changed, err
}

// ExecEach runs a statement at once with each of n lists of arguments, and returns how many rows it has changed each
// time. Two lists must not change the same row. args must not use the Tx. The list that it returns need not last
// longer than until the next call.
func (tx *Tx) ExecEach(query string, n int, args func(i int) []any) ([]int, error) {
	if tx.over {
		return nil, errOver()
	}
	if n == 0 {
		return nil, nil
	}
	w, d := tx.writer, &tx.writer.batch.deferred
	if !tx.whole {
		if err := tx.send(true); err != nil {
			return nil, err
		}
	}
	first := len(d.statements)
	for i := range n {
		tx.Exec(query, args(i)...)
	}
	for i := first; i < len(d.statements); i++ {
		d.statements[i].each = true
	}
	if tx.failed == nil && w.batch.lost == nil {
		_, tx.failed = w.send(len(d.statements))
	}
	if err := cmp.Or(tx.failed, w.batch.lost); err != nil {
		return nil, err
	}
	changed := make([]int, n)
	for i := range changed {
		changed[i] = d.statements[first+i].changed
	}
	d.empty()
	tx.first = 0
	return changed, nil
}

// ExecPage runs statements that each change at most a number of rows, which is their last argument,
// until they have changed limit rows together. It returns how many fewer these are: with 0, there
// may be more.
func (tx *Tx) ExecPage(limit int, statements []string, args ...any) (left int, err error) {
	for _, statement := range statements {
		n, err := tx.ExecCount(statement, append(slices.Clip(args), limit)...)
		if err != nil {
			return limit, err
		}
		if limit -= int(n); limit <= 0 {
			return 0, nil
		}
	}
	return limit, nil
}

// Query runs a query, or a statement with RETURNING, which takes effect with the first call of Next.
// Its errors show in Rows.Err and Rows.Scan.
func (tx *Tx) Query(query string, args ...any) *Rows {
	st, err := tx.take(query)
	if err != nil {
		return &Rows{err: err}
	}
	return tx.query(st, args)
}

// QueryRow runs a query for one row.
func (tx *Tx) QueryRow(query string, args ...any) *Row {
	return (*Row)(tx.Query(query, args...))
}

// NextRevision returns the next number of the counter. Numbers are never given twice; those of a
// function that fails are lost.
func (tx *Tx) NextRevision() int64 {
	tx.numbered = true
	tx.writer.counter++
	return tx.writer.counter
}

// Changed returns how many rows the function has inserted, updated or deleted so far. A statement of Exec that has not
// been run yet counts as one row.
func (tx *Tx) Changed() int { return tx.rows }

// Now returns the wall clock as it was when the function started: one value per function.
func (tx *Tx) Now() time.Time { return tx.now }

// Latest returns the highest wall clock that any transaction of this database has seen, Now
// included. It never goes back, even if the clock does, not over a restart either.
func (tx *Tx) Latest() time.Time { return fromNanos(tx.writer.latest) }

// Patient says that nobody is kept waiting by the commit of what the function does. Where it stands alone its
// batch waits for more work, a millisecond at most, which spares a sync.
func (tx *Tx) Patient() { tx.patient = true }

// OnCommit registers a function that runs in the writer once the commit is on disk, before any
// caller of the batch is answered, in the order of registration. It is dropped if this function
// fails or the batch does. It must be quick, must not block and must not call Write, Drain or Close.
func (tx *Tx) OnCommit(fn func()) { tx.onCommit = append(tx.onCommit, fn) }

// onDrop registers a function that runs in the writer if what this function did is rolled back, alone or with its
// batch: it puts back what was changed in memory.
func (tx *Tx) onDrop(fn func()) { tx.drops = append(tx.drops, fn) }

// take prepares a statement that runs at once, after all that wait.
func (tx *Tx) take(query string) (*statement, error) {
	if tx.over {
		return nil, errOver()
	}
	if tx.failed != nil {
		return nil, tx.failed
	}
	if err := tx.writer.batch.lost; err != nil {
		return nil, err // outside the transaction that is gone it would run by itself
	}
	st, err := tx.writer.conn.take(query)
	if err != nil {
		return nil, err
	}
	if st.readonly {
		tx.work.Reads++
	} else {
		tx.work.Statements++
		tx.changing = true
	}
	if err := tx.send(!st.readonly); err != nil {
		tx.writer.conn.put(st)
		return nil, err
	}
	return st, nil
}

// send runs the statements that wait: those of functions before this one, and its own. These follow a savepoint, as
// does a statement that changes something at once, so that the function can still be refused.
func (tx *Tx) send(changes bool) error {
	w, d := tx.writer, &tx.writer.batch.deferred
	if err := cmp.Or(tx.failed, w.batch.lost); err != nil {
		return err // outside the transaction that is gone the statements would run by themselves
	}
	if _, err := w.send(tx.first); err != nil {
		w.lose(err)
		return err
	}
	if changes || len(d.statements) > tx.first {
		if err := tx.save(); err != nil {
			return err
		}
	}
	if _, err := w.send(len(d.statements)); err != nil {
		tx.failed = err
		return err
	}
	d.empty()
	tx.first = 0
	return nil
}

// save sets the savepoint, unless it is set.
func (tx *Tx) save() error {
	if tx.saved || tx.whole {
		return nil
	}
	if err := tx.writer.conn.do(StepMark); err != nil {
		tx.writer.look(err)
		return err
	}
	tx.saved = true
	tx.work.Statements += 2 // it is released as well
	return nil
}

// correct replaces the one row that a statement of Exec has counted for by those that it has changed.
func (tx *Tx) correct(query string, changed int) {
	tx.rows--
	tx.change(query, changed)
	if tx.over {
		b := &tx.writer.batch
		b.rows += changed - 1
		b.dirty = b.dirty || changed > 0
	}
}

func (tx *Tx) query(st *statement, args []any) *Rows {
	rows := tx.writer.conn.query(context.Background(), st, args)
	if rows.err != nil {
		tx.writer.look(rows.err)
		return rows
	}
	rows.tx = tx
	return rows
}

// exec runs a statement for its effect, and returns how many rows it has changed.
func (tx *Tx) exec(st *statement, args []any) (int64, error) {
	if st.rows {
		before := tx.rows
		rows := tx.query(st, args)
		for rows.Next() {
		}
		return int64(tx.rows - before), rows.Err()
	}
	changed, err := tx.writer.conn.exec(st, args)
	if err != nil {
		tx.writer.look(err)
		return 0, err
	}
	tx.change(st.query, int(changed))
	return changed, nil
}

// call runs fn and turns a panic into an error.
func (tx *Tx) call(fn func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = tx.writer.panicked(p)
		}
	}()
	return fn(tx)
}

func errOver() error {
	return fault.New(fault.Internal, "TRANSACTION_OVER", "a transaction was used after its function had returned")
}
