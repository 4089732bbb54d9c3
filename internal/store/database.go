package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"iter"
	"time"
)

// ErrUnknown is the cause of an error after which the store must not go on: a server may have committed a transaction
// or not, or another broker writes to the database. The process ends, as it does after a failed sync.
var ErrUnknown = errors.New("what the database contains is unknown")

// A Use is what a connection to a server is for.
type Use int

// The uses.
const (
	UseWrite   Use = iota // by the writer
	UseRead               // for a Read, whose statements are short
	UseInspect            // for a check, whose statements read whole tables
	UseAside              // for changes beside the writer: each Run is a transaction
)

// A Database is a database on a server, which takes the place of the SQLite file.
type Database interface {
	// Connect opens a connection. The writer's is opened first. Connect refuses a database that another broker writes
	// to, or that is unfit. A connection of a pool may connect when it is first used, which then has the errors of that.
	// A connection beside the writer changes nothing once another broker leads.
	Connect(ctx context.Context, use Use) (Conn, error)

	// Made reports whether the database has the tables of the engine. It refuses one that has other tables alone.
	Made(c Conn) (bool, error)

	// Create makes the tables of the engine, as schema declares them.
	Create(c Conn, schema string) error

	// Check returns what the server finds wrong with the database.
	Check(ctx context.Context) (problems []string, err error)

	// Name returns the URL of the database, without a password.
	Name() string

	// Facts asks the server, on a connection that reads.
	Facts(c Conn) (Facts, error)

	// Lead makes sure that no other broker commits anything from now on. The tables of the engine are there.
	Lead(c Conn) error

	// CountOn has the server count the keys of each table on from the highest one. All tables are there.
	CountOn(c Conn) error
}

// A Conn is a connection to a database: to the SQLite file, or to a server. One goroutine uses it at a time. Its errors
// are faults where a caller can do something about them.
type Conn interface {
	// Prepare returns a statement for a query, which is a single statement.
	Prepare(query string) (Stmt, error)

	// Script runs any number of statements without arguments, such as those of a migration.
	Script(text string) error

	// Run runs the next n statements that wait, in order, and notes how many rows each has changed. It returns how many
	// have succeeded, and the error of the next one.
	Run(d *Deferred, n int) (done int, err error)

	// Leave has the next n statements run together with the commit, whose error is then theirs as well. It reports
	// false, and does nothing, where Run is as good.
	Leave(d *Deferred, n int) bool

	// Do takes a step of a transaction.
	Do(step Step) error

	// Count has the transaction store the counter, as the last thing before its end.
	Count(c Counter) error

	// State says where a transaction stands.
	State() State

	Close() error
}

// A Stmt is a statement of a Conn. Arguments are those that are not NULL, by ordinal: integers (int64), texts (string),
// blobs ([]byte) and float64.
type Stmt interface {
	driver.StmtExecContext
	driver.StmtQueryContext
	NumInput() int
	Readonly() bool // it changes nothing
	Close() error
}

// A Step is a step of a transaction.
type Step int

// The steps, each with what it does.
const (
	StepBegin    Step = iota // a transaction that may change something
	StepRead                 // one that reads the database as one commit has left it
	StepCommit               // ends the transaction; what it has changed stays
	StepRollback             // ends the transaction; what it has changed is undone
	StepMark                 // sets the savepoint; there is one at a time
	StepUndo                 // undoes everything after the savepoint, and removes it
	StepRelease              // removes the savepoint
	steps
)

// A State is where a transaction stands.
type State int

// The states.
const (
	StateEnded  State = iota // there is none
	StateOpen                // there is one
	StateFailed              // a statement has failed, and the transaction refuses everything but StepUndo and StepRollback
)

// A Counter is what every transaction that changes something stores about the database as a whole.
type Counter struct {
	Revision int64
	Latest   int64 // the highest wall clock, Unix nanoseconds
	Uptime   time.Duration
}

// Next returns the next n statements with their arguments, in order. The list of arguments is used again for the next
// statement.
func (d *Deferred) Next(n int) iter.Seq2[Stmt, []driver.NamedValue] {
	return func(yield func(Stmt, []driver.NamedValue) bool) {
		var args []driver.NamedValue
		for i := range n {
			s := &d.statements[d.sent+i]
			args = d.unpack(args[:0], s)
			if !yield(s.statement.raw, args) {
				return
			}
		}
	}
}

// Each reports whether statement i of the next ones, from 0, comes from ExecEach, whose lists of arguments concern
// different rows.
func (d *Deferred) Each(i int) bool { return d.statements[d.sent+i].each }

// Changed notes how many rows statement i of the next ones, from 0, has changed.
func (d *Deferred) Changed(i int, rows int64) { d.statements[d.sent+i].changed = int(rows) }

// openServer opens the connections to a database on a server.
func (s *Store) openServer(ctx context.Context, o Options) (*conn, meta, error) {
	w, err := s.connectServer(ctx, UseWrite)
	if err != nil {
		return nil, meta{}, err
	}
	made, err := o.Database.Made(w.db)
	if err == nil && !made {
		err = o.createOnServer(w)
	}
	if err == nil {
		err = o.Database.Lead(w.db) // before the migrations, which must not meet a commit of the broker before
	}
	if err == nil {
		err = migrate(w, o.allMigrations(), o.Clock, o.Log)
	}
	if err == nil {
		err = o.Database.CountOn(w.db)
	}
	var m meta
	if err == nil {
		m, err = readMeta(w)
	}
	if err != nil {
		return nil, meta{}, err
	}
	if s.readers, err = s.poolOnServer(ctx, UseRead, o.Readers); err == nil {
		s.asides, err = s.poolOnServer(ctx, UseAside, asides)
	}
	if err != nil {
		return nil, meta{}, err
	}
	s.sound = true // the server checks what it reads
	return w, m, nil
}

// beat is how often a broker shows its server that it lives. Another replica may end the writer's connection if it is
// silent for several times as long.
const beat = time.Second

// pulse reads something on the writer's connection in each beat, until Close. Thus the broker also notices that the
// connection was lost, or that another broker leads, before the next change does.
func (s *Store) pulse() {
	ticker := time.NewTicker(beat) //nolint:forbidigo // the server measures by another clock
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.closing:
			return
		}
		// The error is that of a batch, which the writer keeps for Halted, until a change is committed.
		if s.writer.lost.Load() != nil {
			_ = s.Try(context.Background())
			continue
		}
		_ = s.Drain(context.Background(), func(tx *Tx) error {
			var revision int64
			return tx.QueryRow(`SELECT revision FROM meta WHERE id = 1`).Scan(&revision)
		})
	}
}

// createOnServer makes all tables of an empty database.
func (o *Options) createOnServer(c *conn) error {
	if o.Existing {
		return errNoData(o.Database.Name())
	}
	return o.create(c, func() error { return o.Database.Create(c.db, schema) })
}

func (s *Store) poolOnServer(ctx context.Context, use Use, size int) (*pool, error) {
	var all []*conn
	for range size {
		c, err := s.connectServer(ctx, use)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return newPool(all), nil
}

func (s *Store) connectServer(ctx context.Context, use Use) (*conn, error) {
	db, err := s.server.Connect(ctx, use)
	if err != nil {
		return nil, err
	}
	c := newConn(db)
	s.conns = append(s.conns, c)
	return c, nil
}

// failed returns the error for which a server refuses everything in the present transaction, or nil.
func (c *conn) failed() error {
	if c.db.State() != StateFailed {
		return nil
	}
	return c.failure
}
