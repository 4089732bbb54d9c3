package store

import (
	"database/sql/driver"

	"brokerd/internal/fault"
)

// mostDeferred is how many statements may wait when a function has ended. More of them would end the batch later
// than its limit of time, which their work counts for only when they are sent.
const mostDeferred = 64

// Deferred statements are those of Exec that wait to be sent, in order. A refused function removes its own.
type deferred struct {
	statements []waitingStatement
	args       []driver.NamedValue // of all statements, one after the other
	sent       int                 // how many statements have been sent
}

type waitingStatement struct {
	tx       *Tx
	query    string
	inputs   int // the arguments that were given
	from, to int // those of them in args: not the NULLs
}

// add puts a statement at the end.
func (d *deferred) add(tx *Tx, query string, args []any) error {
	s := waitingStatement{tx: tx, query: query, inputs: len(args), from: len(d.args)}
	all, err := appendArgs(d.args, query, args)
	if err != nil {
		clear(all[len(d.args):])
		return err
	}
	d.args = all
	s.to = len(d.args)
	d.statements = append(d.statements, s)
	return nil
}

// cut removes all statements from number n on.
func (d *deferred) cut(n int) {
	if n >= len(d.statements) {
		return
	}
	d.sent = min(d.sent, n)
	from := d.statements[n].from
	clear(d.args[from:])
	clear(d.statements[n:])
	d.args, d.statements = d.args[:from], d.statements[:n]
}

// empty keeps the memory for further statements. It forgets the arguments, which may be large.
func (d *deferred) empty() {
	d.cut(0)
}

// send runs the statements before number n that have not been sent. It returns the number and the error of the
// first one that fails.
func (w *writer) send(n int) (int, error) {
	d := &w.batch.deferred
	for ; d.sent < n; d.sent++ {
		s := &d.statements[d.sent]
		changed, err := w.conn.execWith(s.query, s.inputs, d.args[s.from:s.to])
		if err != nil {
			w.look(err)
			return d.sent, err
		}
		s.tx.correct(s.query, int(changed))
	}
	return n, nil
}

// sendAll runs what functions that have succeeded have left. An error loses the batch.
func (w *writer) sendAll() {
	b := &w.batch
	if b.lost != nil {
		return
	}
	if _, err := w.send(len(b.deferred.statements)); err != nil {
		w.lose(err)
		return
	}
	b.deferred.empty()
}

// lose gives a batch up because of a statement whose function has ended. Unless the disk is the reason, it is a
// defect, and the functions run again.
func (w *writer) lose(err error) {
	if b := &w.batch; b.lost == nil {
		b.lost, b.defect = err, fault.KindOf(err) != fault.Unavailable
	}
}
