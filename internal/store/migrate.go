package store

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// A Migration is one step of a feature's tables from one version to the next. It runs once in the
// life of a database. Open runs all missing ones in one transaction. Once released it must never change.
type Migration struct {
	Name string // unique and lasting, such as broker/001_messages
	SQL  string // any number of statements

	// Server replaces SQL in a database on a server, where the two differ in more than the names of types. Such a
	// database begins with the newest version, so it has nothing to convert. Empty = SQL.
	Server string

	// Convert runs after SQL, in the same transaction, for what SQL cannot say, such as encoding rows.
	// Nil = nothing.
	Convert func(d Converter) error
}

// A Converter reads and writes the database during a migration.
type Converter interface {
	Querier
	// Exec runs a statement at once.
	Exec(query string, args ...any) error
}

// converter is the Converter of a connection.
type converter struct{ *conn }

// Exec implements Converter.
func (c converter) Exec(query string, args ...any) error { return c.run(query, args...) }

// Query implements Querier.
func (c converter) Query(query string, args ...any) *Rows { return c.queryRows(query, args...) }

// QueryRow implements Querier.
func (c converter) QueryRow(query string, args ...any) *Row { return c.queryRow(query, args...) }

// applicationID marks the file as a database of brokerd: "brkd" in ASCII.
const applicationID = 0x62726b64

const schema = `
CREATE TABLE meta (
	id         INTEGER PRIMARY KEY CHECK (id = 1),
	instance   INTEGER NOT NULL, -- random, made with the database
	revision   INTEGER NOT NULL, -- the counter
	latest     INTEGER NOT NULL, -- highest wall clock a transaction has seen
	uptime     INTEGER NOT NULL, -- nanoseconds for which brokers have run on the database
	stopped    INTEGER NOT NULL, -- 1 after a clean stop, until the next change
	created_at INTEGER NOT NULL
);
CREATE TABLE migrations (
	name       TEXT PRIMARY KEY,
	sha256     TEXT NOT NULL,
	applied_at INTEGER NOT NULL
) WITHOUT ROWID;
`

// made reports whether a SQLite database has the engine's own tables. It refuses a database of another program.
func made(c *conn) (bool, error) {
	var id, tables int64
	if err := c.queryRow(`PRAGMA application_id`).Scan(&id); err != nil {
		return false, err
	}
	if err := c.queryRow(`SELECT count(*) FROM sqlite_schema`).Scan(&tables); err != nil {
		return false, err
	}
	if id == applicationID && tables > 0 {
		return true, nil
	}
	if id != 0 || tables > 0 {
		return false, fmt.Errorf("application id %#x with %d tables and indexes", id, tables)
	}
	return false, nil
}

// makeTables makes the engine's own tables in a SQLite database.
func makeTables(c *conn) error {
	return c.script(schema + fmt.Sprintf(`PRAGMA application_id = %d;`, applicationID))
}

// create makes all tables of an empty database in one transaction. engine makes those of the engine. The target of a
// migration has the mark of one that is incomplete from its first change on.
func (o *Options) create(c *conn, engine func() error) error {
	return transact(c, func() error {
		err := engine()
		if err == nil {
			err = insertMeta(c, o.Clock.Now())
		}
		if err == nil {
			err = apply(c, o.allMigrations(), o.Clock, o.Log)
		}
		if err == nil && o.Moving {
			err = c.run(`UPDATE meta SET moved = ''`)
		}
		return err
	})
}

// insertMeta makes the row about the database as a whole.
func insertMeta(c *conn, now time.Time) error {
	return c.run(`INSERT INTO meta (id, instance, revision, latest, uptime, stopped, created_at) VALUES (1, ?, 0, ?, 0, 0, ?)`,
		randomInstance(), now, now)
}

// allMigrations returns the migrations of the engine and of all features.
func (o *Options) allMigrations() []Migration { return slices.Concat(ownMigrations, o.Migrations) }

// missing returns the migrations that the database lacks. It refuses a database that has one that the
// program does not know, or knows differently.
func missing(c *conn, migrations []Migration) ([]Migration, error) {
	applied := map[string]string{}
	rows := c.queryRows(`SELECT name, sha256 FROM migrations`)
	for rows.Next() {
		var name, sum string
		if err := rows.Scan(&name, &sum); err != nil {
			return nil, err
		}
		applied[name] = sum
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var lacks []Migration
	for _, m := range migrations {
		if known[m.Name] {
			return nil, fmt.Errorf("two migrations are named %s", m.Name)
		}
		known[m.Name] = true
		sum, done := applied[m.Name]
		if !done {
			lacks = append(lacks, m)
		} else if sum != c.checksum(m) {
			return nil, fault.New(fault.Precondition, "CHANGED_MIGRATION",
				"the database was made with another %s than this brokerd has: use the brokerd that made it, or restore a backup", m.Name)
		}
	}
	for name := range applied {
		if !known[name] {
			return nil, fault.New(fault.Precondition, "NEWER_DATABASE",
				"the database was made by a newer brokerd (it has %s): use that version, or restore a backup", name)
		}
	}
	return lacks, nil
}

// migrate applies the migrations that are missing. Its refusals are those of missing.
func migrate(c *conn, migrations []Migration, clock clockwork.Clock, log *zap.Logger) error {
	lacks, err := missing(c, migrations)
	if err != nil {
		return err
	}
	if len(lacks) == 0 {
		return nil
	}
	return transact(c, func() error { return apply(c, lacks, clock, log) })
}

// apply applies migrations in the transaction of the caller.
func apply(c *conn, migrations []Migration, clock clockwork.Clock, log *zap.Logger) error {
	for _, m := range migrations {
		err := c.script(c.text(m))
		if err == nil && m.Convert != nil {
			err = m.Convert(converter{c})
		}
		if err == nil {
			err = c.run(`INSERT INTO migrations (name, sha256, applied_at) VALUES (?, ?, ?)`, m.Name, c.checksum(m), clock.Now())
		}
		if err != nil {
			return fmt.Errorf("apply migration %s: %w", m.Name, err)
		}
		log.Debug("migration applied", zap.String("name", m.Name))
	}
	return nil
}

// transact runs fn in a transaction before there is a writer.
func transact(c *conn, fn func() error) error {
	if err := c.do(StepBegin); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		err = c.do(StepCommit)
	}
	if err != nil && c.db.State() != StateEnded {
		err = errors.Join(err, c.do(StepRollback))
	}
	return err
}

// text returns the statements of a migration for this database.
func (c *conn) text(m Migration) string {
	if c.sqlite == nil {
		return cmp.Or(m.Server, m.SQL)
	}
	return m.SQL
}

// checksum is that of the statements that the database has run.
func (c *conn) checksum(m Migration) string {
	sum := sha256.Sum256([]byte(c.text(m)))
	return hex.EncodeToString(sum[:])
}

func randomInstance() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint64(b[:])>>1) | 1
}
