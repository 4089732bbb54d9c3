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
	busyTimeout  = "5000" // milliseconds: another program, such as the sqlite3 shell, may hold a lock
	writerCache  = 4 << 20
	readerCache  = 8 << 20
	maxLogFile   = 64 << 20 // the log file is cut back to this after it had to grow larger
	autoVacuum   = 2        // incremental
	minSQLite    = 3_051_003
	minSQLiteTag = "3.51.3"
)

// A sqliteConn is a connection to the SQLite file.
type sqliteConn struct {
	raw    *sqlite3.SQLiteConn
	native uintptr                        // SQLite's own object; 0 if statements cannot be run in C
	calls  []nativeCall                   // reused by Run
	args   []driver.NamedValue            // reused by runInGo
	words  [steps + 1]*sqlite3.SQLiteStmt // once prepared
}

// A sqliteStmt is a statement of a sqliteConn.
type sqliteStmt struct {
	*sqlite3.SQLiteStmt
	native uintptr // SQLite's own object
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
	db := &sqliteConn{raw: raw.(*sqlite3.SQLiteConn)}
	if p == writing {
		db.native = nativeDatabase(db.raw)
	}
	c := newConn(db)
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

// Prepare implements Conn.
func (c *sqliteConn) Prepare(query string) (Stmt, error) {
	// SQLite plans a statement with LIMIT ? again whenever the value differs, which takes four times as long as an
	// indexed query itself. The sign hides the variable from the planner.
	raw, err := c.raw.Prepare(strings.ReplaceAll(query, "LIMIT ?", "LIMIT +?"))
	if err != nil {
		return nil, err
	}
	st := &sqliteStmt{SQLiteStmt: raw.(*sqlite3.SQLiteStmt)}
	if c.native != 0 {
		st.native = nativeStatement(st.SQLiteStmt)
	}
	return st, nil
}

// Script implements Conn.
func (c *sqliteConn) Script(text string) error {
	_, err := c.raw.ExecContext(context.Background(), text, nil)
	return err
}

// count is the statement of Count among the words.
const count = steps

// words are the statements of the steps, and that of Count.
var words = [...]string{
	StepBegin:    `BEGIN IMMEDIATE`,
	StepRead:     `BEGIN`,
	StepCommit:   `COMMIT`,
	StepRollback: `ROLLBACK`,
	StepMark:     `SAVEPOINT fn`,
	StepUndo:     `ROLLBACK TO fn`, // and StepRelease
	StepRelease:  `RELEASE fn`,
	count:        `UPDATE meta SET revision = ?, latest = ?, uptime = ?, stopped = 0 WHERE id = 1`,
}

// Do implements Conn.
func (c *sqliteConn) Do(step Step) error {
	err := c.say(step)
	if err == nil && step == StepUndo {
		err = c.say(StepRelease)
	}
	return err
}

// say runs one of the words.
func (c *sqliteConn) say(word Step, args ...driver.NamedValue) error {
	if c.words[word] == nil {
		raw, err := c.raw.Prepare(words[word])
		if err != nil {
			return err
		}
		c.words[word] = raw.(*sqlite3.SQLiteStmt)
	}
	_, err := c.words[word].ExecContext(context.Background(), args)
	return err
}

// Count implements Conn.
func (c *sqliteConn) Count(n Counter) error {
	return c.say(count, driver.NamedValue{Ordinal: 1, Value: n.Revision},
		driver.NamedValue{Ordinal: 2, Value: n.Latest}, driver.NamedValue{Ordinal: 3, Value: int64(n.Uptime)})
}

// State implements Conn. SQLite undoes a statement that fails by itself.
func (c *sqliteConn) State() State {
	if c.raw.AutoCommit() {
		return StateEnded
	}
	return StateOpen
}

// Close implements Conn.
func (c *sqliteConn) Close() error {
	for _, st := range c.words {
		if st != nil {
			_ = st.Close() // repeats the error of its last run
		}
	}
	return c.raw.Close()
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
	return errors.Is(err, ErrUnknown) || errors.As(err, &e) &&
		(e.ExtendedCode == sqlite3.ErrIoErrFsync || e.ExtendedCode == sqlite3.ErrIoErrDirFsync)
}
