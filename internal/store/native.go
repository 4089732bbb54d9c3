package store

// #cgo darwin LDFLAGS: -Wl,-undefined,dynamic_lookup
// #include "native.h"
import "C"

import (
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	"github.com/mattn/go-sqlite3"
)

// How the arguments of a statement are packed: see native.h.
const (
	packedInteger = C.STORE_INTEGER
	packedReal    = C.STORE_REAL
	packedText    = C.STORE_TEXT
	packedBlob    = C.STORE_BLOB
	packedLarge   = C.STORE_LARGE_TEXT - C.STORE_TEXT // more, for a text or blob that is elsewhere
)

// A nativeCall is one run of a statement by runInC.
type nativeCall = C.store_call

// configure sets what all connections have in common. It has no effect once there is one.
var configure = sync.OnceFunc(func() { C.store_configure() })

// nativeDatabase returns SQLite's own object behind a connection of the driver. It is 0 if C cannot run the statements of
// the connection, because the driver is another one than this file expects.
func nativeDatabase(c *sqlite3.SQLiteConn) uintptr {
	statement, _ := reflect.TypeFor[sqlite3.SQLiteStmt]().FieldByName("s")
	db, _ := reflect.TypeFor[sqlite3.SQLiteConn]().FieldByName("db")
	if !isPointerTo(statement, "_Ctype_struct_sqlite3_stmt") || !isPointerTo(db, "_Ctype_struct_sqlite3") || C.store_usable() == 0 {
		return 0
	}
	return reflect.ValueOf(c).Elem().FieldByIndex(db.Index).Pointer()
}

func isPointerTo(f reflect.StructField, name string) bool {
	return f.Type != nil && f.Type.Kind() == reflect.Pointer && f.Type.Elem().Name() == name
}

// nativeStatement returns SQLite's own object behind a statement of a connection that has a nativeDatabase.
func nativeStatement(s *sqlite3.SQLiteStmt) uintptr {
	return reflect.ValueOf(s).Elem().FieldByName("s").Pointer()
}

// runNext runs statements before number n, as many as are prepared, and at least the next one. It returns how many have
// succeeded, and the error of the next one.
func (c *conn) runNext(d *deferred, n int) (int, error) {
	d.calls = d.calls[:0]
	for i := d.sent; i < n; i++ {
		s := &d.statements[i]
		st, err := c.find(s.query, s.inputs, i == d.sent)
		if err != nil && i == d.sent {
			return 0, err
		}
		if st == nil {
			break // to prepare it may close those before it, which must run first; and they may make its table
		}
		d.calls = append(d.calls, nativeCall{statement: C.uintptr_t(st.native), end: C.int64_t(s.to)})
	}
	if c.native == 0 {
		return c.runInGo(d)
	}
	return c.runInC(d)
}

// runInC runs the calls of the statements that wait. It returns how many have succeeded, and the error of the next one.
//
// One call of C runs all of them, where the driver needs one for each argument and several for the statement. The broker
// takes 12 % less processor time for a message sent over a stream (brokerctl bench, pipelined), and 7 % less with few
// messages to a batch (agents).
func (c *conn) runInC(d *deferred) (int, error) {
	first, last := &d.statements[d.sent], d.sent+len(d.calls)
	large := d.large[first.large:]
	if last < len(d.statements) {
		large = d.large[first.large:d.statements[last].large]
	}
	if len(large) > 0 {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		d.pin(&pinner, large)
	}
	done := int(C.store_run(C.uintptr_t(c.native), &d.calls[0], C.int(len(d.calls)),
		(*C.uchar)(unsafe.SliceData(d.packed)), C.int64_t(first.from)))
	if done == len(d.calls) {
		return done, nil
	}
	return done, c.failure(d.statements[d.sent+done].query, int(d.calls[done].outcome))
}

// failure returns the error of the statement that runInC could not run. SQLite repeats the error when the statement
// is closed, and the driver makes of it what it makes of all errors.
func (c *conn) failure(query string, code int) error {
	st, err := c.take(query)
	if err == nil {
		err = st.raw.Close()
	}
	if err == nil { // an argument was refused: the statement itself has not failed
		err = sqlite3.Error{Code: sqlite3.ErrNo(code & 0xff), ExtendedCode: sqlite3.ErrNoExtended(code)}
	}
	return c.classify(err)
}

// runInGo does what runInC does, through the driver.
func (c *conn) runInGo(d *deferred) (int, error) {
	for i := range d.calls {
		s := &d.statements[d.sent+i]
		st, err := c.take(s.query)
		if err != nil {
			return i, err
		}
		c.args = d.unpack(c.args[:0], s)
		changed, err := c.execBound(st, c.args)
		if err != nil {
			return i, err
		}
		d.calls[i].outcome = C.int64_t(changed)
	}
	return len(d.calls), nil
}
