package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// The files of a data folder that belong to the store. SQLite keeps two more beside the
// database while it is open, and after a crash: brokerd.db-wal and brokerd.db-shm.
const (
	DatabaseFile = "brokerd.db"
	LockFile     = "brokerd.lock"
)

// A Sync says what a commit survives.
type Sync int

const (
	// SyncFull has every commit on the disk before it is confirmed: it survives power loss.
	SyncFull Sync = iota
	// SyncNormal survives any crash of the process; power loss may take the last commits.
	SyncNormal
)

// ParseSync returns the Sync of the given name, "full" or "normal".
func ParseSync(name string) (Sync, error) {
	switch name {
	case "full":
		return SyncFull, nil
	case "normal":
		return SyncNormal, nil
	}
	return 0, fault.Field("sync", "must be full or normal, not %q", name)
}

// String returns the name that ParseSync takes.
func (s Sync) String() string {
	if s == SyncNormal {
		return "normal"
	}
	return "full"
}

// Options say how to open a store.
type Options struct {
	Dir        string          // the data folder; made with mode 0700 if missing
	Database   Database        // instead of the SQLite file in the folder; Sync and Checkpoint then mean nothing
	Sync       Sync            // what a commit survives
	Checkpoint Checkpoint      // the program that copies the log into the database
	Clock      clockwork.Clock // required
	Log        *zap.Logger     // nil logs nothing
	Migrations []Migration     // of all features, in the order in which they are to be applied

	// Fatal is called once when a sync has failed. Nobody knows then what is on disk until the
	// file is opened again, so the process must end. Without it the store logs at level Fatal.
	Fatal func(error)

	// Full is called when a write has failed because the disk is full, and by Open if the disk has less
	// than 1 MiB free, or none for the process id. It may free space. The writer calls it, so it must be
	// quick. Nil does nothing.
	Full func()

	// Committed is told of every transaction that has changed something, in the writer, before the callers are
	// answered. It must be quick. Nil costs nothing.
	Committed func(Commit)

	// Excess is called in the writer after a function that has changed more than MaxChanged rows or whose queries have
	// returned more than MaxRead. Such a function is a defect: all other changes wait for it. The store logs it in any
	// case. Nil costs nothing, and so does Planned.
	Excess func(Excess)

	// Planned is called whenever SQLite plans a part of a statement of the writer, with the table and column concerned.
	// It is for tests: SQLite plans a statement once, when the store prepares it.
	Planned func(object string)

	// Ran is called in the writer after every function with what it has done. It is for tests. Nil costs nothing.
	Ran func(Work)

	// Queued is called for every function when it is queued, with its caller: see WithCaller. It is for tests. It must not
	// use the store.
	Queued func(caller any)

	// Drop, if set, is called in the writer after every function that has changed something. The function fails with
	// the error that it returns. It is for tests of what the writer keeps in memory.
	Drop func() error

	Readers  int           // connections for Read, and so how many run at a time; 4 if zero
	ReadTime time.Duration // how long a Read may take; 10 s if zero

	// Restoring opens a folder although a restore into it has not ended.
	Restoring bool

	// Existing refuses a folder and a server without a database: fault.Precondition (NO_DATA).
	Existing bool

	// Moving opens a database into which a migration has not ended, and one whose data was moved elsewhere. A database
	// that Open makes has the mark of the former.
	Moving bool

	// Replicated says that another replica continues when this one has lost the lead. Its callers are told so.
	Replicated bool

	// Unchecked leaves out the check for damage, for a caller that runs Check itself.
	Unchecked bool

	checkAtOnce, growLog int64 // a test's own limits
	inGo                 bool  // a test has no statement run in C
}

// A Store is an open data folder. All methods may be called concurrently.
type Store struct {
	path         string   // of the SQLite file; empty with a server
	server       Database // nil without one
	sync         Sync
	instance     int64
	last         LastRun
	gaps         []gap // of restores
	clock        clockwork.Clock
	readTime     time.Duration
	lock         *os.File
	conns        []*conn // all of them, in the order of opening
	keeper       *conn   // nil with CheckpointInternal; see keepLog
	writer       *writer
	checkpointer *checkpointer // nil with CheckpointExternal
	readers      *pool         // connections for Read
	asides       *pool         // those for Aside; nil without a server
	pages        chan struct{} // has a place for each ReadPage that may run
	tasks        sync.Pool     // of *task, for Write and Drain
	reads        atomic.Uint64 // see Stats

	damage      *damage
	checkAtOnce int64
	growLog     int64          // see Backup
	sound       bool           // Open has checked the database
	unchecked   bool           // see Options.Unchecked
	checks      sync.WaitGroup // of CheckBehind, and pulse
	leftOut     int64          // bytes of the log, see Stats

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error
}

// meta is the row about the database as a whole.
type meta struct {
	instance int64
	revision int64
	latest   int64 // Unix nanoseconds
	uptime   time.Duration
	stopped  bool // cleanly
	moved    movedTo
	gaps     []gap
}

// Open opens the data folder, makes the database if there is none, applies the migrations that are
// missing and starts the writer. Nothing is ever repaired: a folder in use, a damaged or foreign
// database and one that a newer brokerd has written are refused as fault.Precondition with the
// reasons IN_USE, DAMAGED, EMPTY_DATABASE, FOREIGN_DATABASE, NEWER_DATABASE, CHANGED_MIGRATION and
// RESTORE_INCOMPLETE; the message names the way out.
//
// If the last stop was not clean, Open checks a small database for damage before it writes to it.
// In all other cases, CheckBehind checks the database later.
func Open(ctx context.Context, o Options) (*Store, error) {
	s, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Clock == nil {
		return nil, errors.New("no clock given")
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) {
			o.Log.Fatal("a sync failed, or a commit has no answer: what the database contains is unknown until it is opened again", zap.Error(err))
		}
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	if o.checkAtOnce == 0 {
		o.checkAtOnce = checkAtOnce
	}
	if o.growLog == 0 {
		o.growLog = growLog
	}
	if err := ctx.Err(); err != nil {
		return nil, gaveUp(err)
	}
	s := &Store{
		server:   o.Database,
		sync:     o.Sync,
		clock:    o.Clock,
		readTime: cmp.Or(o.ReadTime, readTime),
		pages:    make(chan struct{}, max(1, o.Readers/2)),
		closing:  make(chan struct{}),
		damage:   newDamage(o.Log),

		checkAtOnce: o.checkAtOnce, growLog: o.growLog, unchecked: o.Unchecked,
	}
	s.tasks.New = func() any { return &task{answer: make(chan error, 1)} }
	if o.Full == nil {
		o.Full = func() {}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if o.Dir != "" || o.Database == nil {
		if err := s.lockDir(&o); err != nil {
			return nil, err
		}
	}
	var w *conn
	var m meta
	if o.Database != nil {
		w, m, err = s.openServer(ctx, o)
	} else {
		w, m, err = s.openFolder(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	name := o.Dir
	if s.server != nil {
		name = s.server.Name()
	}
	if err := m.moved.check(name); err != nil && !o.Moving {
		return nil, err
	}
	for _, c := range s.conns {
		c.damage = s.damage
	}
	s.instance, s.gaps = m.instance, m.gaps
	if m.revision > 0 {
		s.last = LastRun{Ended: fromNanos(m.latest), Clean: m.stopped}
	}
	s.writer = newWriter(w, s.checkpointer, m, o)
	if s.checkpointer != nil {
		go s.checkpointer.run(s.writer.nudge)
	}
	go s.writer.run()
	if s.server != nil {
		s.checks.Go(s.pulse)
	}
	return s, nil
}

// openFolder opens the connections to the SQLite file of the data folder.
func (s *Store) openFolder(ctx context.Context, o Options) (_ *conn, _ meta, err error) {
	dir := o.Dir
	s.path = filepath.Join(dir, DatabaseFile)
	if !o.Restoring {
		if err := checkComplete(dir); err != nil {
			return nil, meta{}, err
		}
	}
	if err := checkFile(s.path); err != nil {
		return nil, meta{}, err
	}
	written, err := logOf(s.path + "-wal")
	if err != nil {
		return nil, meta{}, err
	}
	s.leftOut = written.leftOut
	written.log(o.Log)
	if !o.Unchecked {
		if s.sound, err = checkBefore(ctx, s.path, o); err != nil {
			return nil, meta{}, err
		}
	}
	if o.Checkpoint == CheckpointExternal {
		if s.keeper, err = s.connect(reading, o.Sync); err != nil {
			return nil, meta{}, err
		}
	}
	w, err := s.connect(writing, o.Sync)
	if err != nil {
		return nil, meta{}, err
	}
	if o.inGo {
		w.sqlite.native = 0
	}
	w.watchPlans(o.Planned)
	m, err := prepare(w, s.path, o)
	if IsDamage(err) {
		return nil, meta{}, damaged(s.path, err)
	}
	if err != nil {
		return nil, meta{}, err
	}
	if o.Checkpoint == CheckpointInternal {
		c, err := s.connect(copying, o.Sync)
		if err != nil {
			return nil, meta{}, err
		}
		s.checkpointer = newCheckpointer(c)
	}
	var readers []*conn
	for range o.Readers {
		r, err := s.connect(reading, o.Sync)
		if err != nil {
			return nil, meta{}, err
		}
		readers = append(readers, r)
	}
	s.readers = newPool(readers)
	return w, m, nil
}

// connect opens a connection that release closes.
func (s *Store) connect(p purpose, sync Sync) (*conn, error) {
	c, err := connect(s.path, p, sync)
	if err == nil {
		s.conns = append(s.conns, c)
	}
	return c, err
}

// keepLog keeps the closing of the connections from writing the log back. When the last connection
// to a database closes, SQLite runs a checkpoint and removes the log, unless that connection can only
// read. The keeper is such a connection. It was opened first and is closed last, but it counts only
// after it has read from the log.
func (s *Store) keepLog() {
	if s.keeper == nil {
		return
	}
	var objects int
	_ = s.keeper.queryRow(`SELECT count(*) FROM sqlite_schema`).Scan(&objects) // fails only if the database is damaged
}

// release closes all connections, the first one last, and unlocks the folder.
func (s *Store) release() error {
	s.keepLog()
	var errs []error
	for _, c := range slices.Backward(s.conns) {
		errs = append(errs, c.close())
	}
	if s.lock != nil {
		errs = append(errs, unlockFolder(s.lock))
	}
	return errors.Join(errs...)
}

// prepare makes the database ready for the writer: checked, with all migrations applied.
func prepare(c *conn, path string, o Options) (meta, error) {
	if err := checkSettings(c, o.Sync); err != nil {
		return meta{}, err
	}
	ready, err := made(c)
	if err != nil {
		return meta{}, damaged(path, err)
	}
	if !ready {
		if err := o.create(c, func() error { return makeTables(c) }); err != nil {
			return meta{}, err
		}
	}
	if o.Checkpoint == CheckpointExternal {
		// A commit that restarts the log would cut its file to this size, which belongs to the checkpoint.
		if err := c.script("PRAGMA journal_size_limit = -1"); err != nil {
			return meta{}, err
		}
	}
	if err := checkSize(c, path, o.Checkpoint); err != nil {
		return meta{}, err
	}
	if err := migrate(c, o.allMigrations(), o.Clock, o.Log); err != nil {
		return meta{}, err
	}
	m, err := readMeta(c)
	if err != nil {
		return meta{}, damaged(path, err)
	}
	return m, nil
}

// readMeta reads the row about the database as a whole, and the gaps of restores.
func readMeta(c *conn) (m meta, err error) {
	err = c.queryRow(`SELECT instance, revision, latest, uptime, stopped, moved IS NOT NULL, moved FROM meta`).
		Scan(&m.instance, &m.revision, &m.latest, &m.uptime, &m.stopped, &m.moved.marked, &m.moved.to)
	if err == nil {
		m.gaps, err = gapsOf(c)
	}
	return m, err
}

// Revision returns the number that the counter had reached with the last commit.
func (s *Store) Revision() int64 { return s.writer.revision.Load() }

// InstanceID returns the positive random number that was given to the database when it was made.
// It stays the same for as long as the data exists, and in copies of it.
func (s *Store) InstanceID() int64 { return s.instance }

// Check reads the whole database and returns what is wrong with it: pages, indexes and foreign
// keys. Nothing wrong is an empty result. It uses a connection of its own and slows nobody, but
// while it runs the write-ahead log cannot start over: minutes of it cost disk space.
//
// A server checks its pages whenever it reads them, and its foreign keys with every change, so that
// Check asks it for indexes alone, if it can check them.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	select {
	case <-s.closing:
		return nil, errClosed()
	default:
	}
	if s.server != nil {
		return s.server.Check(ctx)
	}
	c, err := s.reader(ctx)
	if IsDamage(err) {
		s.damage.note(detail(err))
		return []string{detail(err)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	defer func() { _ = c.close() }() // it only reads: nothing can be lost
	defer s.holdLog()()
	problems, err := check(ctx, c)
	if ctx.Err() != nil {
		return nil, gaveUp(ctx.Err())
	}
	if len(problems) > 0 {
		s.damage.note(problems[0])
	}
	if err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	return problems, nil
}

// Close accepts no more functions, finishes those that were accepted, waits for the readers,
// writes the log back into the database (with CheckpointInternal) and unlocks the folder. Further
// calls return the result of the first.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.checks.Wait()
		s.writer.stop()
		if s.checkpointer != nil {
			s.checkpointer.stop()
		}
		s.readers.drain()
		if s.asides != nil {
			s.asides.drain()
		}
		var errs []error
		if !s.writer.failed.Load() {
			if s.Damage() == "" && (!s.unchecked || s.last.Clean) {
				s.writer.markStop()
			}
			if s.checkpointer != nil {
				_, err := s.writer.conn.checkpoint("TRUNCATE")
				errs = append(errs, err)
			}
		}
		errs = append(errs, s.release())
		if err := errors.Join(errs...); err != nil {
			s.closeErr = fmt.Errorf("close store: %w", err)
		}
	})
	return s.closeErr
}

// gaveUp is the error for a caller whose context has ended.
func gaveUp(cause error) error {
	e := fault.New(fault.Canceled, "CANCELED", "the caller gave up")
	if errors.Is(cause, context.DeadlineExceeded) {
		e = fault.New(fault.Deadline, "DEADLINE_EXCEEDED", "the caller's deadline passed")
	}
	e.Cause = cause
	return e
}

// errClosed is the error for work that comes after Close.
func errClosed() error {
	return fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down")
}
