package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/mattn/go-sqlite3"

	"brokerd/internal/fault"
)

// A purpose is what a connection is for.
type purpose int

const (
	writing purpose = iota
	copying         // the log back into the database
	reading
)

// Settings of every connection. Larger pages than SQLite's 4 KiB were worth a quarter of the
// speed with messages of 1 KiB; 16 KiB was worse again. A larger cache of the writer costs more than it saves, since
// most commits make SQLite walk through all of it: 3 % of a message's processor time with 16 MiB.
const (
	pageSize     = 8192
	busyTimeout  = "5000" // milliseconds: somebody else, such as the sqlite3 shell, may hold a lock
	writerCache  = 4 << 20
	readerCache  = 8 << 20
	maxLogFile   = 64 << 20 // the log file is cut back to this after it had to grow larger
	maxPrepared  = 1000     // distinct queries kept prepared by one connection
	autoVacuum   = 2        // incremental
	minSQLite    = 3_051_003
	minSQLiteTag = "3.51.3"
)

// A conn is one connection to the database with its prepared statements. It is used by one
// goroutine at a time.
//
// It goes past database/sql, whose pool, locks and conversions cost as much as the statements of a
// message do, and gives the driver contexts that never end: for one that can be cancelled the driver
// starts a goroutine per statement, and the interrupt may hit the next statement instead.
type conn struct {
	raw      *sqlite3.SQLiteConn
	native   uintptr // SQLite's own object; 0 if statements cannot be run in C
	damage   *damage // is told of damage that a statement meets; nil while the store is being opened
	prepared map[string]*prepared
	args     []driver.NamedValue // reused by every statement
	open     []*Rows             // not yet closed, so that a function that forgets them harms nobody
}

// prepared holds the statements of one query that nobody uses. Usually there is one; a query that
// runs again while its rows are being read takes another.
type prepared struct {
	free    *statement
	dropped bool
}

type statement struct {
	raw      *sqlite3.SQLiteStmt
	native   uintptr // SQLite's own object
	query    string
	home     *prepared
	next     *statement // among the free ones
	inputs   int
	readonly bool
	rows     bool           // it may return rows, and is at work until they are read
	values   []driver.Value // reused by Rows
}

// connect opens a connection.
func connect(path string, p purpose, sync Sync) (*conn, error) {
	q := url.Values{
		"_mutex":        {"no"}, // one goroutine at a time
		"_busy_timeout": {busyTimeout},
		"_synchronous":  {sync.String()},
		"_foreign_keys": {"on"},
		"_cache_size":   {strconv.Itoa(-writerCache >> 10)},
	}
	if p != writing {
		q.Set("_cache_size", strconv.Itoa(-readerCache>>10))
	}
	if p == reading {
		q.Set("mode", "ro")
		q.Set("_query_only", "on")
	}
	configure()
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	raw, err := (&sqlite3.SQLiteDriver{}).Open(name.String())
	if err != nil {
		return nil, damaged(path, err)
	}
	c := &conn{raw: raw.(*sqlite3.SQLiteConn), prepared: map[string]*prepared{}}
	if p == writing {
		c.native = nativeDatabase(c.raw)
	}
	if err := c.configure(p); err != nil {
		return nil, errors.Join(damaged(path, err), c.close())
	}
	return c, nil
}

// configure sets what the driver has no parameter for, or sets in the wrong order: page size and
// vacuum mode must be chosen before the first table, and before the switch to a write-ahead log,
// which writes the first page. Choosing them again would write to the database on every start.
func (c *conn) configure(p purpose) error {
	settings := []string{"temp_store = memory", "wal_autocheckpoint = 0"}
	if p != reading {
		var pages int
		if err := c.queryRow(`PRAGMA page_count`).Scan(&pages); err != nil {
			return err
		}
		if pages == 0 {
			settings = append(settings, "page_size = "+strconv.Itoa(pageSize), "auto_vacuum = "+strconv.Itoa(autoVacuum))
		}
		settings = append(settings, "journal_mode = wal", "journal_size_limit = "+strconv.Itoa(maxLogFile))
	}
	for _, setting := range settings {
		if err := c.script("PRAGMA " + setting); err != nil {
			return err
		}
	}
	return nil
}

// checkSettings reads back what the durability of the data rests upon.
func checkSettings(c *conn, sync Sync) error {
	version, number, _ := sqlite3.Version()
	if number < minSQLite {
		return fmt.Errorf("SQLite %s can corrupt a write-ahead log that several connections use: %s or later is needed", version, minSQLiteTag)
	}
	var mode string
	if err := c.queryRow("PRAGMA journal_mode").Scan(&mode); err != nil {
		return fmt.Errorf("read back journal_mode: %w", err)
	}
	if mode != "wal" {
		return fmt.Errorf("SQLite runs with journal_mode = %s: the data folder's file system has no shared memory, use a local one", mode)
	}
	synchronous := 2
	if sync == SyncNormal {
		synchronous = 1
	}
	for _, s := range []struct {
		pragma string
		want   int
	}{
		{"synchronous", synchronous},
		{"page_size", pageSize},
		{"auto_vacuum", autoVacuum},
		{"foreign_keys", 1},
		{"wal_autocheckpoint", 0},
	} {
		var got int
		if err := c.queryRow("PRAGMA " + s.pragma).Scan(&got); err != nil {
			return fmt.Errorf("read back %s: %w", s.pragma, err)
		}
		if got != s.want {
			return fmt.Errorf("SQLite runs with %s = %d where %d was asked for", s.pragma, got, s.want)
		}
	}
	return nil
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
		// SQLite plans a statement with LIMIT ? again whenever the value differs, which takes four times as long as an
		// indexed query itself. The sign hides the variable from the planner.
		raw, err := c.raw.Prepare(strings.ReplaceAll(query, "LIMIT ?", "LIMIT +?"))
		if err != nil {
			return nil, c.classify(err)
		}
		s := raw.(*sqlite3.SQLiteStmt)
		st := &statement{
			raw: s, home: p, query: query, inputs: s.NumInput(), readonly: s.Readonly(),
			rows: s.Readonly() || strings.Contains(strings.ToUpper(query), "RETURNING"),
		}
		if c.native != 0 {
			st.native = nativeStatement(s)
		}
		return st, nil
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
	return c.execBound(st, c.args)
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

func (c *conn) execBound(st *statement, args []driver.NamedValue) (int64, error) {
	result, err := st.raw.ExecContext(context.Background(), args)
	c.put(st)
	if err != nil {
		return 0, c.classify(err)
	}
	changed, err := result.RowsAffected()
	return changed, err
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
	r := &Rows{conn: c, statement: st, raw: raw.(*sqlite3.SQLiteRows)}
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

// script runs any number of statements without arguments.
func (c *conn) script(sql string) error {
	_, err := c.raw.ExecContext(context.Background(), sql, nil)
	return c.classify(err)
}

// standing says whether a transaction is open.
func (c *conn) standing() bool { return !c.raw.AutoCommit() }

// closeRows closes what a function has left open.
func (c *conn) closeRows() {
	for len(c.open) > 0 {
		_ = c.open[len(c.open)-1].Close()
	}
}

func (c *conn) close() error {
	c.closeRows()
	c.forget()
	return c.raw.Close()
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
	classified := classify(err)
	if c.damage != nil && IsDamage(classified) {
		c.damage.note(err.Error())
	}
	return classified
}

// classify turns the driver's errors into faults where the caller can do something about them.
func classify(err error) error {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return err
	}
	full := e.Code == sqlite3.ErrFull || e.SystemErrno == syscall.ENOSPC || e.SystemErrno == syscall.EDQUOT
	var f *fault.Error
	switch {
	case full:
		f = fault.New(fault.Unavailable, "DISK_FULL", "the disk of the broker is full: nothing can be written until there is room")
	case e.Code == sqlite3.ErrIoErr, e.Code == sqlite3.ErrCantOpen, e.Code == sqlite3.ErrReadonly:
		f = fault.New(fault.Unavailable, "IO_ERROR", "the disk of the broker fails")
	case e.Code == sqlite3.ErrBusy, e.Code == sqlite3.ErrLocked:
		f = fault.New(fault.Unavailable, "BUSY", "another program holds the database of the broker")
	case e.Code == sqlite3.ErrCorrupt, e.Code == sqlite3.ErrNotADB:
		f = errDamaged()
	default:
		return err
	}
	f.Cause = err
	return f
}

// syncFailed says whether the error leaves unknown what is on disk.
func syncFailed(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) &&
		(e.ExtendedCode == sqlite3.ErrIoErrFsync || e.ExtendedCode == sqlite3.ErrIoErrDirFsync)
}
