package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/mattn/go-sqlite3"

	"brokerd/internal/fault"
)

const (
	copyPages = 128       // pages that one step of a backup copies: 1 MiB
	growLog   = 256 << 20 // bytes by which the log may grow during a backup, or the size of the database if that is more
)

// Backup copies the database, as one commit has left it, to a new file, and returns the counter of
// that commit. The file must not exist; if Backup fails, it removes the file. Before the copy begins,
// look reads the same snapshot. progress receives the bytes that are copied and those of the whole
// database; it must be quick.
//
// The writer continues meanwhile and waits for nothing. The write-ahead log cannot restart until
// Backup returns. A backup during which the log grows by more than the size of the database, or by
// more than 256 MiB if the database is smaller, ends as fault.Unavailable (BACKUP_TOO_SLOW).
// Other errors: fault.Canceled; fault.Unavailable after Close, if the disk is full, or if the
// database is damaged; fault.Precondition (ON_SERVER) if it is on a server.
func (s *Store) Backup(ctx context.Context, path string, look func(*Snapshot) error, progress func(copied, total int64)) (revision int64, err error) {
	select {
	case <-s.closing:
		return 0, errClosed()
	default:
	}
	if s.server != nil {
		return 0, errOnServer(s.server.Name())
	}
	defer s.holdLog()()
	from, err := s.reader(ctx)
	if err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	defer func() { _ = from.close() }() // it only reads: nothing can be lost
	// The read transaction keeps every step on the same snapshot. Without it, each commit would
	// restart the backup.
	if err := from.do(StepRead); err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	if err := from.queryRow(`SELECT revision FROM meta`).Scan(&revision); err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	snap := s.snapshot(ctx, from)
	snap.revision = revision
	if err := look(snap); err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	from.closeRows()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	if err := errors.Join(f.Close(), s.copyTo(ctx, path, from, progress)); err != nil {
		return 0, fmt.Errorf("back up: %w", errors.Join(err, os.Remove(path)))
	}
	return revision, nil
}

// errOnServer refuses a backup of a database on a server, and names the programs that make one.
func errOnServer(name string) error {
	return fault.New(fault.Precondition, "ON_SERVER",
		"the broker keeps its data in PostgreSQL, which backs it up: pg_dump --format=custom --file=FILE '%s', "+
			"or pg_basebackup with an archive of its log; after a restore, run brokerd restored --store '%[1]s' "+
			"before brokerd starts again (docs/scale.md)", name)
}

// copyTo copies the snapshot of a connection to an empty file.
func (s *Store) copyTo(ctx context.Context, path string, from *conn, progress func(copied, total int64)) (err error) {
	to, err := connectCopy(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	b, err := to.sqlite.raw.Backup("main", from.sqlite.raw, "main")
	if err != nil {
		return classify(err)
	}
	defer func() { _ = b.Finish() }() // it repeats the error of the last step
	before := fileSize(s.path + "-wal")
	for {
		if err := ctx.Err(); err != nil {
			return gaveUp(err)
		}
		select {
		case <-s.closing:
			return errClosed()
		default:
		}
		done, err := b.Step(copyPages)
		if err != nil {
			return from.classify(stepError(err))
		}
		total := int64(b.PageCount()) * pageSize
		progress(total-int64(b.Remaining())*pageSize, total)
		if done {
			return nil
		}
		if grown := fileSize(s.path+"-wal") - before; grown > max(s.growLog, total) {
			return fault.New(fault.Unavailable, "BACKUP_TOO_SLOW",
				"the write-ahead log grew by %d bytes while the backup copied %d bytes: repeat it when the broker is less busy",
				grown, total-int64(b.Remaining())*pageSize)
		}
	}
}

// holdLog notes that a reader will use one snapshot for long, until the returned function is called.
// Meanwhile the writer does not try to restart the log, since it would wait for that reader.
func (s *Store) holdLog() (release func()) {
	s.writer.held.Add(1)
	return func() { s.writer.held.Add(-1) }
}

// connectCopy opens an empty file as a database that a backup writes. If the process or the machine
// fails, the file is useless, so SQLite keeps no journal and does not sync it.
func connectCopy(path string) (*conn, error) {
	q := url.Values{"_mutex": {"no"}, "_synchronous": {"off"}, "_journal_mode": {"off"}}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	raw, err := (&sqlite3.SQLiteDriver{}).Open(name.String())
	if err != nil {
		return nil, classify(err)
	}
	return newConn(&sqliteConn{raw: raw.(*sqlite3.SQLiteConn)}), nil
}

// stepError is an error of a backup in the form of the driver's other errors: it has an extended
// code where they have a primary one.
func stepError(err error) error {
	var e sqlite3.Error
	if errors.As(err, &e) {
		e.ExtendedCode = sqlite3.ErrNoExtended(e.Code)
		e.Code &= 0xff
		return e
	}
	return err
}
