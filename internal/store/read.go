package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
)

// readTime bounds a Read: the write-ahead log cannot start over while an old snapshot is in use, and
// grows until the snapshot is released.
const readTime = 10 * time.Second

// A Snapshot is the database as one commit has left it. It belongs to the function that Read calls,
// and to the goroutine of that function.
type Snapshot struct {
	ctx      context.Context
	conn     *conn
	clock    clockwork.Clock
	taken    time.Time
	most     time.Duration // after taken, that the snapshot may be used
	least    int64         // the revision that was committed before
	revision int64
	latest   time.Time
	over     bool
}

// Read runs fn on a snapshot. It waits for a free connection, and returns fault.Canceled or
// fault.Deadline if the caller gives up before it has one, fault.Unavailable after Close, and
// otherwise what fn returns.
//
// A Read is short: read a page, return, send it. Never wait inside for anything but the database.
// After ten seconds the snapshot refuses further queries.
func (s *Store) Read(ctx context.Context, fn func(*Snapshot) error) error {
	c, err := s.readers.take(ctx, s.closing)
	if err != nil {
		return err
	}
	defer s.readers.give(c)
	s.reads.Add(1)
	return s.snapshot(ctx, c).read(fn)
}

// Inspect is Read for checks, whose queries may read whole tables. It uses a connection of its own, takes as long as they
// do, and ends with the first error. Each has a snapshot of its own, during which the write-ahead log cannot start over.
func (s *Store) Inspect(ctx context.Context, checks ...func(*Snapshot) error) error {
	c, err := s.reader(ctx)
	if err != nil {
		return fmt.Errorf("begin reading: %w", err)
	}
	defer func() { _ = c.close() }() // it only reads: nothing can be lost
	for _, check := range checks {
		select {
		case <-s.closing:
			return errClosed()
		default:
		}
		release := s.holdLog()
		snap := s.snapshot(ctx, c)
		snap.most = math.MaxInt64
		err := snap.read(check)
		release()
		if err != nil {
			return err
		}
	}
	return nil
}

// read runs fn on the snapshot, in a transaction that begins and ends here.
func (s *Snapshot) read(fn func(*Snapshot) error) error {
	c := s.conn
	if err := c.do(StepRead); err != nil {
		return fmt.Errorf("begin reading: %w", err)
	}
	defer func() {
		s.over = true
		c.closeRows()
		_ = c.do(StepRollback) // nothing was written, and without a transaction there is nothing to end
	}()
	// On a server, the index finds the newest version of the row first, and the limit keeps it from looking at others.
	if err := c.queryRow(`SELECT revision, latest FROM meta WHERE id = 1 LIMIT 1`).Scan(&s.revision, &s.latest); err != nil {
		return fmt.Errorf("begin reading: %w", err)
	}
	if s.revision < s.least { // a server after a failover to a standby that lacks commits
		return fault.New(fault.Unavailable, "COMMITS_LOST",
			"the database has lost changes that were confirmed: it is at revision %d, and was at %d", s.revision, s.least)
	}
	return fn(s)
}

// snapshot returns the snapshot of the transaction that has begun on a connection.
func (s *Store) snapshot(ctx context.Context, c *conn) *Snapshot {
	return &Snapshot{ctx: ctx, conn: c, clock: s.clock, taken: s.clock.Now(), most: s.readTime,
		least: s.writer.revision.Load()}
}

// ReadPage is Read for a page that a stream sends. Pages use at most half of the connections, so
// that many streams that start at once do not keep other calls waiting.
func (s *Store) ReadPage(ctx context.Context, fn func(*Snapshot) error) error {
	select {
	case s.pages <- struct{}{}:
		defer func() { <-s.pages }()
	case <-ctx.Done():
		return gaveUp(ctx.Err())
	case <-s.closing:
		return errClosed()
	}
	return s.Read(ctx, fn)
}

// Revision returns the counter as of the snapshot.
func (s *Snapshot) Revision() int64 { return s.revision }

// Latest returns the highest wall clock that any transaction before the snapshot has seen.
func (s *Snapshot) Latest() time.Time { return s.latest }

// Query runs a query. Its errors show in Rows.Err and Rows.Scan.
func (s *Snapshot) Query(query string, args ...any) *Rows {
	if s.over {
		return &Rows{err: fault.New(fault.Internal, "SNAPSHOT_OVER", "a snapshot was used after its function had returned")}
	}
	if err := s.ctx.Err(); err != nil {
		return &Rows{err: gaveUp(err)}
	}
	if s.clock.Since(s.taken) > s.most {
		return &Rows{err: fault.New(fault.Unavailable, "SNAPSHOT_TOO_OLD", "reading took longer than %v: read a smaller page", s.most)}
	}
	return s.conn.queryRows(query, args...)
}

// QueryRow runs a query for one row.
func (s *Snapshot) QueryRow(query string, args ...any) *Row {
	return (*Row)(s.Query(query, args...))
}

// check asks SQLite to read everything, on a connection that nobody else uses.
func check(ctx context.Context, c *conn) ([]string, error) {
	problems, err := pragmaCheck(ctx, c, `PRAGMA integrity_check`)
	if err != nil || len(problems) > 0 {
		return problems, err
	}
	rows := c.queryContext(ctx, `PRAGMA foreign_key_check`)
	for rows.Next() {
		var table, parent string
		var row, key int64
		if err := rows.Scan(&table, &row, &parent, &key); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("row %d of table %s refers to a row of %s that does not exist", row, table, parent))
	}
	return problems, rows.Err()
}
