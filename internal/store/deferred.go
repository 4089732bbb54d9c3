package store

import (
	"fmt"

	"brokerd/internal/fault"
)

// How many statements may wait when a function has ended. More of them would end the batch later than its limit of
// time, which their work counts for only when they are sent. A server is sent as many as possible at once.
const (
	mostDeferred         = 64
	mostDeferredOnServer = batchRows
)

// Deferred statements are those of Exec that wait to be sent, in order. A refused function removes its own.
type Deferred struct {
	statements []waitingStatement
	packed     []byte     // the arguments of all statements, one after the other; see pack
	large      []largeArg // those that are not copied
	sent       int        // how many statements have been sent
}

type waitingStatement struct {
	tx        *Tx
	query     string
	inputs    int        // the arguments that were given
	from, to  int        // those of them in packed: not the NULLs
	large     int        // the number of large arguments before these
	changed   int        // rows, once it was sent
	each      bool       // it comes from ExecEach
	statement *statement // once it is to be sent
}

// add puts a statement at the end.
func (d *Deferred) add(tx *Tx, query string, args []any) error {
	s := waitingStatement{tx: tx, query: query, inputs: len(args), from: len(d.packed), large: len(d.large)}
	for i, arg := range args {
		if err := d.pack(i+1, arg); err != nil {
			d.cutArgs(&s)
			return fmt.Errorf("argument %d: %w: %s", i+1, err, query)
		}
	}
	s.to = len(d.packed)
	d.statements = append(d.statements, s)
	return nil
}

// cut removes all statements from number n on.
func (d *Deferred) cut(n int) {
	if n >= len(d.statements) {
		return
	}
	d.sent = min(d.sent, n)
	d.cutArgs(&d.statements[n])
	clear(d.statements[n:])
	d.statements = d.statements[:n]
}

// cutArgs removes the arguments from a statement on.
func (d *Deferred) cutArgs(s *waitingStatement) {
	clear(d.large[s.large:])
	d.packed, d.large = d.packed[:s.from], d.large[:s.large]
}

// empty removes all statements. It keeps memory for further ones, of arguments up to keptArguments.
func (d *Deferred) empty() {
	d.cut(0)
	if cap(d.packed) > keptArguments {
		d.packed = nil
	}
}

// send runs the statements before number n that have not been sent. It returns the number and the error of the
// first one that fails.
func (w *writer) send(n int) (int, error) {
	d := &w.batch.deferred
	for d.sent < n {
		done, err := w.conn.runNext(d, n)
		for range done {
			s := &d.statements[d.sent]
			d.sent++
			s.tx.correct(s.query, s.changed)
		}
		if err != nil {
			w.look(err)
			return d.sent, err
		}
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

// leave has what functions that have succeeded have left run together with the commit if that is better, and at once
// if not.
func (w *writer) leave() {
	b := &w.batch
	d := &b.deferred
	n := len(d.statements) - d.sent
	if b.lost != nil || n == 0 || b.careful || !w.conn.leave(d) {
		w.sendAll()
		return
	}
	b.left, b.dirty = true, true
	d.sent = len(d.statements)
}

// lose gives a batch up because of a statement whose function has ended. Unless the disk is the reason, it is a
// defect, and the functions run again.
func (w *writer) lose(err error) {
	if b := &w.batch; b.lost == nil {
		b.lost, b.defect = err, fault.KindOf(err) != fault.Unavailable
	}
}
