package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
)

// maxPrepared is how many distinct queries one connection keeps prepared.
const maxPrepared = 1000

// A conn is one connection to the database with its prepared statements. It is used by one
// goroutine at a time.
//
// It goes past database/sql, whose pool, locks and conversions cost as much as the statements of a
// message do, and gives the driver contexts that never end: for one that can be cancelled the driver
// starts a goroutine per statement, and the interrupt may hit the next statement instead.
type conn struct {
	db       Conn
	sqlite   *sqliteConn // db, if it is SQLite's
	damage   *damage     // gets the damage that a statement meets; nil while the store is being opened
	prepared map[string]*prepared
	args     []driver.NamedValue // reused by every statement
	open     []*Rows             // not yet closed, so that a function that forgets them harms nobody
	failure  error               // the last one
}

func newConn(db Conn) *conn {
	c := &conn{db: db, prepared: map[string]*prepared{}}
	c.sqlite, _ = db.(*sqliteConn)
	return c
}

// prepared holds the statements of one query that nobody uses. Usually there is one; a query that
// runs again while its rows are being read takes another.
type prepared struct {
	free    *statement
	dropped bool
}

type statement struct {
	raw      Stmt
	query    string
	home     *prepared
	next     *statement // among the free ones
	inputs   int
	readonly bool
	rows     bool           // it may return rows, and is at work until they are read
	values   []driver.Value // reused by Rows
}

// take returns a prepared statement for a query, which must be a single statement. exec and query
// give it back.
func (c *conn) take(query string) (*statement, error) {
	p := c.prepared[query]
	if p == nil {
		if len(c.prepared) >= maxPrepared {
			c.forget()
		}
		p = &prepared{}
		c.prepared[query] = p
	}
	st := p.free
	if st == nil {
		raw, err := c.db.Prepare(query)
		if err != nil {
			return nil, c.classify(err)
		}
		return &statement{
			raw: raw, home: p, query: query, inputs: raw.NumInput(), readonly: raw.Readonly(),
			rows: raw.Readonly() || strings.Contains(strings.ToUpper(query), "RETURNING"),
		}, nil
	}
	p.free, st.next = st.next, nil
	return st, nil
}

func (c *conn) put(st *statement) {
	if st.home.dropped {
		_ = st.raw.Close()
		return
	}
	st.next, st.home.free = st.home.free, st
}

// discard closes a statement that is free, so that the query is prepared again, and returns the error of its last run.
func (st *statement) discard() error {
	if st.home.free == st {
		st.home.free = st.next
	}
	return st.raw.Close()
}

// forget closes all statements, those in use as soon as they are given back. None may be left to the
// driver's finalizers, which would close them beside the goroutine that uses the connection.
func (c *conn) forget() {
	for _, p := range c.prepared {
		for st := p.free; st != nil; st = st.next {
			_ = st.raw.Close() // repeats the error of the statement's last run
		}
		p.free, p.dropped = nil, true
	}
	clear(c.prepared)
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(st *statement, args []any) (int64, error) {
	if err := c.bind(st, args); err != nil {
		c.put(st)
		return 0, err
	}
	result, err := st.raw.ExecContext(context.Background(), c.args)
	c.put(st)
	if err != nil {
		return 0, c.classify(err)
	}
	return result.RowsAffected()
}

// find returns the statement for a query of Exec and leaves it among the free ones. It is nil if it would have to be
// prepared first, unless prepare is true.
func (c *conn) find(query string, inputs int, prepare bool) (*statement, error) {
	if p := c.prepared[query]; !prepare && (p == nil || p.free == nil) {
		return nil, nil
	}
	st, err := c.take(query)
	if err != nil {
		return nil, err
	}
	c.put(st)
	switch {
	case inputs != st.inputs:
		return nil, st.wrongInputs(inputs)
	case st.rows:
		return nil, fmt.Errorf("a statement that returns rows needs Query or ExecCount: %s", query)
	}
	return st, nil
}

// query starts a statement that returns rows.
func (c *conn) query(ctx context.Context, st *statement, args []any) *Rows {
	if err := c.bind(st, args); err != nil {
		c.put(st)
		return &Rows{err: err}
	}
	raw, err := st.raw.QueryContext(ctx, c.args)
	if err != nil {
		c.put(st)
		return &Rows{err: c.classify(err)}
	}
	r := &Rows{conn: c, statement: st, raw: raw}
	c.open = append(c.open, r)
	return r
}

// run executes one of the engine's own statements.
func (c *conn) run(query string, args ...any) error {
	st, err := c.take(query)
	if err != nil {
		return err
	}
	_, err = c.exec(st, args)
	return err
}

// queryRow runs one of the engine's own queries.
func (c *conn) queryRow(query string, args ...any) *Row {
	return (*Row)(c.queryRows(query, args...))
}

func (c *conn) queryRows(query string, args ...any) *Rows {
	return c.queryContext(context.Background(), query, args...)
}

// queryContext is for connections that serve one caller alone: see conn for what a context costs.
func (c *conn) queryContext(ctx context.Context, query string, args ...any) *Rows {
	st, err := c.take(query)
	if err != nil {
		return &Rows{err: err}
	}
	return c.query(ctx, st, args)
}

// runNext runs statements before number n, as many as are prepared, and at least the next one. It returns how many have
// succeeded, and the error of the next one.
func (c *conn) runNext(d *Deferred, n int) (int, error) {
	ready := 0
	for i := d.sent; i < n; i++ {
		s := &d.statements[i]
		st, err := c.find(s.query, s.inputs, i == d.sent)
		if err != nil && i == d.sent {
			return 0, err
		}
		if st == nil {
			break // to prepare it may close those before it, which must run first; and they may make its table
		}
		s.statement = st
		ready++
	}
	done, err := c.db.Run(d, ready)
	return done, c.classify(err)
}

// leave has all statements that wait run together with the commit. It reports false if that cannot be, or is no gain.
func (c *conn) leave(d *Deferred) bool {
	if c.sqlite != nil {
		return false
	}
	for i := d.sent; i < len(d.statements); i++ {
		s := &d.statements[i]
		st, err := c.find(s.query, s.inputs, false)
		if st == nil || err != nil {
			return false
		}
		s.statement = st
	}
	return c.db.Leave(d, len(d.statements)-d.sent)
}

// script runs any number of statements without arguments.
func (c *conn) script(text string) error { return c.classify(c.db.Script(text)) }

// do takes a step of a transaction.
func (c *conn) do(step Step) error { return c.classify(c.db.Do(step)) }

// count has the transaction store the counter.
func (c *conn) count(n Counter) error { return c.classify(c.db.Count(n)) }

// closeRows closes what a function has left open.
func (c *conn) closeRows() {
	for len(c.open) > 0 {
		_ = c.open[len(c.open)-1].Close()
	}
}

func (c *conn) close() error {
	c.closeRows()
	c.forget()
	return c.db.Close()
}

// bind converts the arguments of a statement to what the driver takes.
func (c *conn) bind(st *statement, args []any) (err error) {
	if len(args) != st.inputs {
		return st.wrongInputs(len(args))
	}
	c.args, err = appendArgs(c.args[:0], st.query, args)
	return err
}

func (st *statement) wrongInputs(n int) error {
	return fmt.Errorf("%d arguments for a query that takes %d: %s", n, st.inputs, st.query)
}

// appendArgs converts the arguments of a query. What is not bound is NULL, and each binding is a call of C.
func appendArgs(to []driver.NamedValue, query string, args []any) ([]driver.NamedValue, error) {
	for i, arg := range args {
		value, err := toSQL(arg)
		if err != nil {
			return to, fmt.Errorf("argument %d: %w: %s", i+1, err, query)
		}
		if value != nil {
			to = append(to, driver.NamedValue{Ordinal: i + 1, Value: value})
		}
	}
	return to, nil
}

// toSQL converts an argument: integers, booleans, times and durations become INTEGER.
func toSQL(arg any) (driver.Value, error) {
	switch arg.(type) {
	case nil, int64, string, []byte, float64:
		return arg, nil
	}
	n, null, err := toInteger(arg)
	if null || err != nil {
		return nil, err
	}
	return n, nil
}

// classify is the function classify that also takes note of damage.
func (c *conn) classify(err error) error {
	if err == nil {
		return nil
	}
	classified := classify(err)
	c.failure = classified
	if c.damage != nil && IsDamage(classified) {
		c.damage.note(err.Error())
	}
	return classified
}
