// Package move copies all rows of a store to another one: from SQLite's file to PostgreSQL, or back.
//
// The rows are read as one commit has left them, and written in one transaction, so that a copy is whole or not
// there. Two marks in the row of meta keep brokers away from a store that does not have the data: the target has one
// from its first change on, which the transaction removes, and the source gets one right before the transaction is
// committed. At each moment, one of the two at most can be opened.
//
// Each table has the same checksum in both stores: a SHA-256 of its rows in the order of their keys. Before the
// transaction is committed, Run reads all rows of the target again and compares the checksums.
package move

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"brokerd/internal/fault"
	"brokerd/internal/store/postgres"
)

// A Place is a store that is open for the caller alone: see store.Options.Moving.
type Place struct {
	Name   string             // for people
	File   string             // SQLite's; empty if the store is on a server
	Server *postgres.Database // nil if it is not
}

// Options say what to copy.
type Options struct {
	From, To Place
	Without  []string          // tables that are not copied
	Contents func() error      // copies what is not in these tables, once the target has its mark; nil = nothing
	Progress func(line string) // receives what was done, for people
}

// A Report says what was copied.
type Report struct {
	Tables, Rows int64
	Revision     int64
}

// progressRows is after how many rows of a table Progress gets a line.
const progressRows = 100_000

// A kind is the type that a column has in both stores.
type kind byte

const (
	integer kind = 'i'
	real    kind = 'f'
	text    kind = 't'
	blob    kind = 'b'
)

type column struct {
	name string
	kind kind
}

// A table is a table that both stores have.
type table struct {
	name    string
	columns []column // by name
	key     []string // empty if it has no primary key
}

// sort orders the columns: those of two stores that have come by other migrations are in another order.
func (t *table) sort() {
	slices.SortFunc(t.columns, func(a, b column) int { return strings.Compare(a.name, b.name) })
}

// local are columns of meta that each store has for itself.
var local = []string{"moved", "epoch", "commits"}

// localTable is the table that each store has for itself: the two have run different texts of migrations.
const localTable = "migrations"

// rows are the values of a table in the order of their columns: nil, int64, float64, string or []byte. A row is valid
// until the next one.
type rows = iter.Seq2[[]driver.Value, error]

// A version is what the commits of a broker change in the row of meta.
type version [3]int64

// An end is a connection to one of the two stores.
type end interface {
	// tables returns all tables by their names.
	tables(ctx context.Context) (map[string]table, error)
	// meta returns the revision, and where the data was moved to.
	meta(ctx context.Context) (revision int64, movedTo string, err error)
	// mark notes that data is being moved here. It reports false, and notes nothing, if there is data already.
	mark(ctx context.Context) (bool, error)
	// version returns the version with which the caller has opened the store.
	version(ctx context.Context) (version, error)
	// leave notes where the data was moved to. It reports false, and notes nothing, if the store has another version.
	leave(ctx context.Context, to string, v version) (bool, error)
	// read begins a transaction that reads the store as one commit has left it, and rollback ends it.
	read(ctx context.Context) error
	rollback(ctx context.Context) error
	// rows returns the rows of a table by its key.
	rows(ctx context.Context, t table) rows
	// keys returns the highest key that each table has ever given to a row.
	keys(ctx context.Context) (map[string]int64, error)

	// write begins a transaction that fills tables, without the indexes that slow it. It removes the rows that
	// migrations have made.
	write(ctx context.Context, tables []table) error
	fill(ctx context.Context, t table, all rows) error
	// finish makes the indexes again, and has tables continue behind keys.
	finish(ctx context.Context, keys map[string]int64) error
	commit(ctx context.Context) error

	close() error
}

func (p Place) open(ctx context.Context) (end, error) {
	if p.Server != nil {
		return openServer(ctx, p.Server)
	}
	return openFile(p.File)
}

// Run copies all rows. The target must have the tables of a store and no data. Errors: fault.Precondition (NOT_EMPTY,
// MOVED, UNFIT_VALUE, UNEQUAL_TABLES, CHANGED_SOURCE).
func Run(ctx context.Context, o Options) (r Report, err error) {
	from, err := o.From.open(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	to, err := o.To.open(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	if err := o.checkPlaces(ctx, from, to); err != nil {
		return r, err
	}
	tables, err := o.common(ctx, from, to)
	if err != nil {
		return r, err
	}
	copied, err := from.version(ctx)
	if err != nil {
		return r, err
	}
	if marked, err := to.mark(ctx); err != nil {
		return r, fmt.Errorf("mark %s: %w", o.To.Name, err)
	} else if !marked {
		return r, fault.New(fault.Precondition, "NOT_EMPTY",
			"another brokerd has just used %s: name an empty database, or a folder without a database", o.To.Name)
	}
	if o.Contents != nil {
		if err := o.Contents(); err != nil {
			return r, err
		}
	}
	if err := to.write(ctx, tables); err != nil {
		return r, fmt.Errorf("begin to write to %s: %w", o.To.Name, err)
	}
	if r, err = o.copy(ctx, from, to, tables); err == nil {
		err = o.leave(ctx, from, copied)
	}
	if err != nil {
		return r, err // to.close undoes what was written
	}
	return r, to.commit(ctx)
}

// leave closes the source. A broker can have used it meanwhile, if the connection with the lock was lost: the copy
// lacks its changes.
func (o *Options) leave(ctx context.Context, from end, copied version) error {
	left, err := from.leave(ctx, o.To.Name, copied)
	if err != nil {
		return fmt.Errorf("mark %s: %w", o.From.Name, err)
	}
	if !left {
		return fault.New(fault.Precondition, "CHANGED_SOURCE", "another brokerd has used %s during the migration, "+
			"and the copy lacks its changes: stop that brokerd, and repeat the same command", o.From.Name)
	}
	return nil
}

// checkPlaces refuses a source whose data continues elsewhere, and a target with data. Each change of data has a
// revision.
func (o *Options) checkPlaces(ctx context.Context, from, to end) error {
	_, movedTo, err := from.meta(ctx)
	if err != nil {
		return err
	}
	revision, _, err := to.meta(ctx)
	switch {
	case err != nil:
		return err
	case movedTo != "" && movedTo != o.To.Name: // else the migration was interrupted right before its end
		return fault.New(fault.Precondition, "MOVED", "the data of %s was moved to %s, and continues there: "+
			"name that as the source, or repeat that migration", o.From.Name, movedTo)
	case revision == 0:
		return nil
	case movedTo != "":
		return fault.New(fault.Precondition, "NOT_EMPTY", "the data was moved to %s already: start brokerd there", movedTo)
	}
	return fault.New(fault.Precondition, "NOT_EMPTY",
		"%s has data already (revision %d): name an empty database, or a folder without a database", o.To.Name, revision)
}

// common returns the tables to copy, and refuses stores that do not have the same ones.
func (o *Options) common(ctx context.Context, from, to end) ([]table, error) {
	ours, err := from.tables(ctx)
	if err != nil {
		return nil, err
	}
	theirs, err := to.tables(ctx)
	if err != nil {
		return nil, err
	}
	var all []table
	for name, t := range ours {
		other := theirs[name]
		sameKey := slices.Equal(t.key, other.key) || name == "meta" // whose one row has no key on a server
		if !sameKey || !slices.Equal(t.columns, other.columns) {
			return nil, fault.New(fault.Precondition, "UNEQUAL_TABLES", "%s and %s do not have the same table %s",
				o.From.Name, o.To.Name, name)
		}
		delete(theirs, name)
		if name != localTable && !slices.Contains(o.Without, name) {
			all = append(all, t)
		}
	}
	for name := range theirs {
		return nil, fault.New(fault.Precondition, "UNEQUAL_TABLES", "%s has no table %s", o.From.Name, name)
	}
	slices.SortFunc(all, func(a, b table) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// copy copies the tables and compares them.
func (o *Options) copy(ctx context.Context, from, to end, tables []table) (r Report, err error) {
	if err := from.read(ctx); err != nil {
		return r, fmt.Errorf("begin to read %s: %w", o.From.Name, err)
	}
	defer func() { err = errors.Join(err, from.rollback(context.WithoutCancel(ctx))) }()
	sums := make([]sum, len(tables))
	for i, t := range tables {
		if err := to.fill(ctx, t, o.summed(&sums[i], t, "copied", from.rows(ctx, t))); err != nil {
			return r, fmt.Errorf("copy table %s: %w", t.name, err)
		}
		r.Tables, r.Rows = r.Tables+1, r.Rows+sums[i].rows
	}
	keys, err := from.keys(ctx)
	if err != nil {
		return r, err
	}
	o.Progress("making the indexes")
	if err := to.finish(ctx, keys); err != nil {
		return r, fmt.Errorf("make the indexes: %w", err)
	}
	for i, t := range tables {
		var found sum
		for _, err := range o.summed(&found, t, "compared", to.rows(ctx, t)) {
			if err != nil {
				return r, fmt.Errorf("compare table %s: %w", t.name, err)
			}
		}
		if found != sums[i] {
			return r, fault.New(fault.Internal, "UNEQUAL_ROWS", "the copy of table %s is not equal: it has %d rows of %d",
				t.name, found.rows, sums[i].rows)
		}
	}
	r.Revision, _, err = from.meta(ctx)
	return r, err
}

// A sum is the checksum of a table.
type sum struct {
	rows int64
	hash [sha256.Size]byte
}

// summed passes rows on, and sets the checksum after the last one.
func (o *Options) summed(s *sum, t table, done string, all rows) rows {
	return func(yield func([]driver.Value, error) bool) {
		hash, line := sha256.New(), []byte(nil)
		for row, err := range all {
			if err == nil {
				line = appendRow(line[:0], row)
				hash.Write(line)
				if s.rows++; s.rows%progressRows == 0 {
					o.Progress(fmt.Sprintf("%s: %d rows %s", t.name, s.rows, done))
				}
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
		hash.Sum(s.hash[:0])
		if s.rows%progressRows != 0 {
			o.Progress(fmt.Sprintf("%s: %d rows %s", t.name, s.rows, done))
		}
	}
}

// appendRow encodes a row so that different rows have different encodings.
func appendRow(to []byte, row []driver.Value) []byte {
	for _, value := range row {
		switch v := value.(type) {
		case nil:
			to = append(to, 0)
		case int64:
			to = binary.BigEndian.AppendUint64(append(to, byte(integer)), uint64(v))
		case float64:
			to = binary.BigEndian.AppendUint64(append(to, byte(real)), math.Float64bits(v))
		case string:
			to = binary.BigEndian.AppendUint64(append(to, byte(text)), uint64(len(v)))
			to = append(to, v...)
		case []byte:
			to = binary.BigEndian.AppendUint64(append(to, byte(blob)), uint64(len(v)))
			to = append(to, v...)
		}
	}
	return to
}

// names returns the names of the columns, quoted.
func (t table) names() string {
	var all []string
	for _, c := range t.columns {
		all = append(all, quote(c.name))
	}
	return strings.Join(all, ", ")
}

// query returns the statement that reads a table in the order of its key. A row without a key is where all its columns
// place it.
func (t table) query() string {
	var order []string
	for _, name := range t.key {
		order = append(order, quote(name))
	}
	if len(order) == 0 {
		for _, c := range t.columns {
			order = append(order, quote(c.name)+" NULLS FIRST")
		}
	}
	return "SELECT " + t.names() + " FROM " + quote(t.name) + " ORDER BY " + strings.Join(order, ", ")
}

// unfit refuses a value that one of the stores cannot have.
func (t table) unfit(row []driver.Value, i int, what string) error {
	var key []string
	for n, c := range t.columns {
		if slices.Contains(t.key, c.name) {
			key = append(key, fmt.Sprintf("%s = %v", c.name, row[n]))
		}
	}
	return fault.New(fault.Precondition, "UNFIT_VALUE", "table %s has a row (%s) whose column %s has %s: change it first",
		t.name, strings.Join(key, ", "), t.columns[i].name, what)
}

// quote quotes a name for a statement.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
