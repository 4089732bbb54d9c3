package store

import (
	"database/sql/driver"
	"time"
)

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

const (
	StepBegin Step = iota // a transaction that may change something
	StepRead              // one that reads the database as one commit has left it
	StepCommit
	StepRollback
	StepMark    // sets the savepoint; there is one at a time
	StepUndo    // undoes everything after the savepoint, and removes it
	StepRelease // removes the savepoint
	steps
)

// A State is where a transaction stands.
type State int

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
