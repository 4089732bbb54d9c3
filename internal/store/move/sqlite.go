package move

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// A file is a connection to SQLite's file. It implements end.
type file struct {
	db      *sqlite3.SQLiteConn
	indexes []string // statements that make those that write has dropped
}

func openFile(path string) (*file, error) {
	q := url.Values{"_mutex": {"no"}, "_busy_timeout": {"5000"}, "_synchronous": {"full"}, "_cache_size": {"-65536"}}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	db, err := (&sqlite3.SQLiteDriver{}).Open(name.String())
	if err != nil {
		return nil, err
	}
	return &file{db: db.(*sqlite3.SQLiteConn)}, nil
}

func (f *file) close() error { return f.db.Close() }

func (f *file) exec(query string, args ...driver.Value) error {
	_, err := f.db.ExecContext(context.Background(), query, named(args))
	return err
}

func named(values []driver.Value) []driver.NamedValue {
	all := make([]driver.NamedValue, len(values))
	for i, v := range values {
		all[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return all
}

// query returns the rows of a query. The driver reuses the bytes of none of them.
func (f *file) query(ctx context.Context, query string, args ...driver.Value) rows {
	return func(yield func([]driver.Value, error) bool) {
		found, err := f.db.QueryContext(context.Background(), query, named(args))
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = found.Close() }() // it repeats the error of the last row
		row := make([]driver.Value, len(found.Columns()))
		for {
			err := found.Next(row)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				err = ctx.Err()
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// tables implements end. Those of SQLite itself and of Litestream are not the broker's.
func (f *file) tables(ctx context.Context) (map[string]table, error) {
	all := map[string]table{}
	for row, err := range f.query(ctx, `SELECT name FROM sqlite_schema WHERE type = 'table'`) {
		if err != nil {
			return nil, err
		}
		name := row[0].(string)
		if !strings.HasPrefix(name, "sqlite_") && !strings.HasPrefix(name, "_litestream_") {
			all[name] = table{name: name}
		}
	}
	kinds := map[string]kind{"INTEGER": integer, "REAL": real, "TEXT": text, "BLOB": blob}
	for name, t := range all {
		keys := map[int64]string{}
		for row, err := range f.query(ctx, `SELECT name, type, pk FROM pragma_table_info(?)`, name) {
			if err != nil {
				return nil, err
			}
			c := column{row[0].(string), kinds[row[1].(string)]}
			if c.kind == 0 {
				return nil, fmt.Errorf("column %s of table %s has the type %s", c.name, name, row[1])
			}
			if name != "meta" || !slices.Contains(local, c.name) {
				t.columns = append(t.columns, c)
			}
			keys[row[2].(int64)] = c.name
		}
		t.sort()
		for n := int64(1); keys[n] != ""; n++ {
			t.key = append(t.key, keys[n])
		}
		all[name] = t
	}
	return all, nil
}

func (f *file) meta(ctx context.Context) (revision int64, movedTo string, err error) {
	for row, err := range f.query(ctx, `SELECT revision, coalesce(moved, '') FROM meta`) {
		if err != nil {
			return 0, "", err
		}
		revision, movedTo = row[0].(int64), row[1].(string)
	}
	return revision, movedTo, nil
}

func (f *file) mark(context.Context) (bool, error) {
	return f.change(`UPDATE meta SET moved = '' WHERE revision = 0`)
}

// change runs a statement and reports whether it has changed a row.
func (f *file) change(query string, args ...driver.Value) (bool, error) {
	done, err := f.db.ExecContext(context.Background(), query, named(args))
	if err != nil {
		return false, err
	}
	rows, err := done.RowsAffected()
	return rows == 1, err
}

func (f *file) version(ctx context.Context) (v version, err error) {
	for row, err := range f.query(ctx, `SELECT revision, latest, uptime FROM meta`) {
		if err != nil {
			return v, err
		}
		v = version{row[0].(int64), row[1].(int64), row[2].(int64)}
	}
	return v, nil
}

func (f *file) leave(_ context.Context, to string, v version) (bool, error) {
	return f.change(`UPDATE meta SET moved = ? WHERE revision = ? AND latest = ? AND uptime = ?`, to, v[0], v[1], v[2])
}

func (f *file) read(context.Context) error { return f.exec(`BEGIN`) }

func (f *file) rollback(context.Context) error { return f.exec(`ROLLBACK`) }

func (f *file) commit(context.Context) error { return f.exec(`COMMIT`) }

// rows implements end. A column of SQLite may have values of any type.
func (f *file) rows(ctx context.Context, t table) rows {
	return func(yield func([]driver.Value, error) bool) {
		for row, err := range f.query(ctx, t.query()) {
			if err == nil {
				err = t.check(row)
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// check refuses a row with a value of another type than its column.
func (t table) check(row []driver.Value) error {
	for i, value := range row {
		var found kind
		switch value.(type) {
		case nil:
			continue
		case int64:
			found = integer
		case float64:
			found = real
		case string:
			found = text
		case []byte:
			found = blob
		}
		if found != t.columns[i].kind {
			return t.unfit(row, i, "a value of another type")
		}
	}
	return nil
}

func (f *file) keys(ctx context.Context) (map[string]int64, error) {
	keys := map[string]int64{}
	for row, err := range f.query(ctx, `SELECT name, seq FROM sqlite_sequence`) {
		if err != nil {
			return nil, err
		}
		keys[row[0].(string)] = row[1].(int64)
	}
	return keys, nil
}

func (f *file) write(ctx context.Context, tables []table) error {
	if err := f.exec(`BEGIN IMMEDIATE`); err != nil {
		return err
	}
	var names []string
	for row, err := range f.query(ctx, `SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL`) {
		if err != nil {
			return err
		}
		names, f.indexes = append(names, row[0].(string)), append(f.indexes, row[1].(string))
	}
	for _, name := range names {
		if err := f.exec(`DROP INDEX ` + quote(name)); err != nil {
			return err
		}
	}
	for _, t := range tables {
		if err := f.exec(`DELETE FROM ` + quote(t.name)); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) fill(_ context.Context, t table, all rows) error {
	marks := strings.TrimSuffix(strings.Repeat("?, ", len(t.columns)), ", ")
	insert, err := f.db.Prepare(`INSERT INTO ` + quote(t.name) + ` (` + t.names() + `) VALUES (` + marks + `)`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }() // it repeats the error of its last run
	args := named(make([]driver.Value, len(t.columns)))
	for row, err := range all {
		if err != nil {
			return err
		}
		for i, value := range row {
			args[i].Value = value
		}
		if _, err := insert.(driver.StmtExecContext).ExecContext(context.Background(), args); err != nil {
			return err
		}
	}
	return nil
}

// finish implements end. A table without AUTOINCREMENT gives the key behind its highest one.
func (f *file) finish(ctx context.Context, keys map[string]int64) error {
	for _, statement := range f.indexes {
		if err := f.exec(statement); err != nil {
			return err
		}
	}
	var counted []string
	for row, err := range f.query(ctx, `SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'`) {
		if err != nil {
			return err
		}
		counted = append(counted, row[0].(string))
	}
	for _, name := range counted {
		err := f.exec(`DELETE FROM sqlite_sequence WHERE name = ?`, name)
		if last, ok := keys[name]; err == nil && ok {
			err = f.exec(`INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)`, name, last)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
