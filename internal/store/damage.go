package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// damagedReason is the reason of an error that damage of the database causes while the broker runs.
const damagedReason = "DATABASE_DAMAGED"

// checkAtOnce is the largest size, in bytes of database and log, that quick_check reads in less
// than 2 s: it read 250 to 300 MB/s on two slow cores from memory, and a slow disk delivers a
// quarter of that.
const checkAtOnce = 128 << 20

// answerTime is how long a batch may take on a server until Halted says that the server does not answer.
const answerTime = 5 * time.Second

// pauseFactor times the duration of a piece of a check in the background is the pause before the
// next piece.
const pauseFactor = 3

// damage keeps the first damage that a check or a statement has found. All methods may be called
// concurrently.
type damage struct {
	log   *zap.Logger
	first atomic.Pointer[string]
	found chan struct{} // closed with the first
}

func newDamage(log *zap.Logger) *damage { return &damage{log: log, found: make(chan struct{})} }

// note keeps the first damage and logs it.
func (d *damage) note(what string) {
	if d.first.CompareAndSwap(nil, &what) {
		close(d.found)
		d.log.Error("the database is damaged: the broker writes nothing more; stop it and run 'brokerd check'",
			zap.String("damage", what))
	}
}

// text returns the first damage, or "".
func (d *damage) text() string {
	if first := d.first.Load(); first != nil {
		return *first
	}
	return ""
}

// Damage describes the first damage that was found in the database since Open; it is empty if there
// is none. Once there is one, the store refuses all changes as fault.Unavailable
// (DATABASE_DAMAGED). Reads continue as far as possible.
func (s *Store) Damage() string { return s.damage.text() }

// Damaged returns a channel that is closed when damage is found.
func (s *Store) Damaged() <-chan struct{} { return s.damage.found }

// errDamaged is the error for a statement that meets damage, and for all changes after that.
func errDamaged() *fault.Error {
	return fault.New(fault.Unavailable, damagedReason,
		"the database is damaged, so the broker writes nothing more: stop the broker and run 'brokerd check'")
}

// IsDamage reports whether an error says that the database is damaged.
func IsDamage(err error) bool {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Reason == damagedReason || f.Reason == "DAMAGED"
	}
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB)
}

// isFull reports whether an error says that the disk is full.
func isFull(err error) bool {
	var f *fault.Error
	return errors.As(classify(err), &f) && f.Reason == "DISK_FULL"
}

// ReasonSilent is the reason of the error of a store whose server does not answer.
const ReasonSilent = "DATABASE_SILENT"

// Halted returns why the store writes nothing at present: damage (DATABASE_DAMAGED), a failed sync
// (SYNC_FAILED), or the error of the last transaction if it could not be committed, such as a full
// disk (DISK_FULL). With a server it also is DATABASE_SILENT, while a batch waits for it. It is nil otherwise. The next
// committed change ends the last of these.
func (s *Store) Halted() error {
	if err := s.writer.halted(); err != nil {
		return err
	}
	if began := s.writer.began.Load(); began != 0 {
		if waited := s.clock.Since(fromNanos(began)); waited > answerTime {
			return fault.New(fault.Unavailable, ReasonSilent, "the database has not answered for %v", waited.Round(time.Second))
		}
	}
	if lost := s.writer.lost.Load(); lost != nil {
		return *lost
	}
	return nil
}

// Try commits a transaction that changes nothing but the counter, to find out whether the store takes changes. After a
// failure it ends what Halted returns. Errors: those of Write.
func (s *Store) Try(ctx context.Context) error {
	return s.Drain(ctx, func(tx *Tx) error {
		tx.NextRevision()
		return nil
	})
}

// halted returns why the writer writes nothing more, or nil.
func (w *writer) halted() error {
	switch {
	case w.failed.Load() && w.replicated:
		return errNoLeader()
	case w.failed.Load():
		return errSyncFailed()
	case w.conn.damage.text() != "":
		return errDamaged()
	}
	return nil
}

// checkBefore checks a database for damage before anything is written to it, unless the last stop
// was clean or the check would take too long. It reports whether the database has been checked. It
// also refuses a database that the migrations do not fit, whose tables may be others than the
// queries of this program expect.
func checkBefore(ctx context.Context, path string, o Options) (bool, error) {
	size := fileSize(path)
	if size == 0 {
		return false, nil
	}
	// A first start that a power cut ended before the switch to the write-ahead log leaves a rollback journal.
	// Only a connection that writes can undo what the journal has.
	if fileSize(path+"-journal") > 0 {
		return false, nil
	}
	c, err := connect(path, reading, SyncFull)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.close() }() // it only reads: nothing can be lost
	var made, stopped bool
	err = c.queryRow(`SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'meta')`).Scan(&made)
	if err == nil && made {
		_, err = missing(c, o.allMigrations())
	}
	if err == nil && made {
		err = c.queryRow(`SELECT stopped FROM meta`).Scan(&stopped)
	}
	if err != nil {
		return false, damaged(path, err)
	}
	if stopped || !made || size+fileSize(path+"-wal") > o.checkAtOnce {
		return false, nil
	}
	problems, err := quickCheck(ctx, c, "")
	if ctx.Err() != nil {
		return false, gaveUp(ctx.Err())
	}
	if err != nil {
		return false, damaged(path, err)
	}
	if len(problems) > 0 {
		return false, fault.New(fault.Precondition, "DAMAGED",
			"the database %s is damaged (%s): run 'brokerd check' for a full report; then %s", path, problems[0], wayOut)
	}
	return true, nil
}

// CheckBehind starts a check of the database for damage in the background, unless Open has made
// one. Close ends it. Damage returns the outcome. It must be called at most once.
func (s *Store) CheckBehind() {
	if s.sound {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.checks.Go(func() {
		defer cancel()
		if err := s.checkSlowly(ctx); err != nil && ctx.Err() == nil {
			s.damage.log.Warn("the check of the database for damage failed", zap.Error(err))
		}
	})
	s.checks.Go(func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	})
}

// checkSlowly checks the database until it has found damage or the context ends.
//
// A small database is checked in one statement. A large one is checked table by table, since SQLite
// has no smaller pieces, with pauses that are three times as long as the pieces. So the check takes
// a quarter of a core at most, on average, and holds no snapshot for longer than one table takes;
// during that time the log cannot start over.
func (s *Store) checkSlowly(ctx context.Context) error {
	c, err := s.reader(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }() // it only reads: nothing can be lost
	pieces := []string{""}
	if fileSize(s.path)+fileSize(s.path+"-wal") > s.checkAtOnce {
		if pieces, err = tables(c); err != nil {
			return err
		}
	}
	for i, piece := range pieces {
		begun := s.clock.Now()
		release := s.holdLog()
		problems, err := quickCheck(ctx, c, piece)
		release()
		if err != nil {
			return err
		}
		if len(problems) > 0 {
			s.damage.note(problems[0])
			return nil
		}
		if i == len(pieces)-1 {
			break
		}
		select {
		case <-s.clock.After(pauseFactor * s.clock.Since(begun)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// reader opens a connection that is not one of the pool, for statements that may take minutes.
func (s *Store) reader(ctx context.Context) (c *conn, err error) {
	if s.server != nil {
		db, err := s.server.Connect(ctx, UseInspect)
		if err != nil {
			return nil, err
		}
		c = newConn(db)
	} else if c, err = connect(s.path, reading, SyncFull); err != nil {
		return nil, err
	}
	c.damage = s.damage
	return c, nil
}

// tables returns the names of all tables, first the table of tables, with which quick_check checks
// the free pages as well.
func tables(c *conn) ([]string, error) {
	names := []string{"sqlite_schema"}
	rows := c.queryRows(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// quickCheck returns what SQLite finds wrong with a table and its indexes, or with the whole
// database.
func quickCheck(ctx context.Context, c *conn, table string) ([]string, error) {
	if table == "" {
		return pragmaCheck(ctx, c, `PRAGMA quick_check`)
	}
	return pragmaCheck(ctx, c, fmt.Sprintf(`PRAGMA quick_check('%s')`, table))
}

// pragmaCheck runs quick_check or integrity_check and returns the problems. Damage that ends the
// check is one of them.
func pragmaCheck(ctx context.Context, c *conn, pragma string) ([]string, error) {
	var problems []string
	rows := c.queryContext(ctx, pragma)
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		if text != "ok" {
			problems = append(problems, text)
		}
	}
	err := rows.Err()
	if IsDamage(err) {
		return append(problems, "SQLite cannot read on: "+errors.Unwrap(err).Error()), nil
	}
	return problems, err
}

// fileSize returns the size of a file in bytes, 0 if there is none.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
