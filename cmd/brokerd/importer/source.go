package importer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/mattn/go-sqlite3" // the driver
)

// A table of the file, with the columns that the importer reads and the order in which it reads the rows.
type table struct {
	name    string
	columns []string
	where   string
	order   string
}

var (
	messageColumns = []string{"id", "type", "version", "timestamp", "correlation_id", "from_agent", "to_agent", "channel",
		"priority", "payload", "status", "expires_at"}

	agentRows        = table{"agent_status", []string{"agent_id", "status", "current_task"}, "1", "agent_id"}
	subscriptionRows = table{"channel_subscriptions", []string{"channel_name", "agent_id"}, "1", "channel_name, agent_id"}
	unfinishedRows   = table{"messages", messageColumns, "status IN ('pending', 'processing')",
		"julianday(timestamp), timestamp, rowid"}
	finishedRows = table{"messages", messageColumns, "status IS NULL OR status NOT IN ('pending', 'processing')", "rowid"}
	deadRows     = table{"dead_letter_queue", []string{"id", "original_message", "error"}, "1", "rowid"}
)

// A source is the copy of a file. Its methods are for one goroutine.
type source struct {
	file string
	db   *sql.DB
	has  map[string][]string // the columns of the tables that the file has
}

// openSource copies a file into a folder and checks the whole copy. Errors about the file are FileErrors.
func openSource(ctx context.Context, file, dir string) (*source, error) {
	copied := filepath.Join(dir, "copy.db")
	if err := snapshot(ctx, file, copied); err != nil {
		return nil, err
	}
	db, err := openDatabase(copied, "&_query_only=1")
	if err != nil {
		return nil, err
	}
	s := &source{file, db, map[string][]string{}}
	if err := s.check(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// openDatabase opens a database of the temporary folder, which no other process uses.
func openDatabase(path, options string) (*sql.DB, error) {
	name := url.URL{Scheme: "file", Path: path, RawQuery: "_synchronous=OFF" + options}
	return sql.Open("sqlite3", name.String())
}

// check looks for damage, and for the tables and columns.
func (s *source) check(ctx context.Context) error {
	var found string
	if err := s.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
		found = err.Error()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if found != "ok" {
		return &FileError{s.file, "is damaged: " + strings.ReplaceAll(found, "\n", " ")}
	}
	for _, t := range []table{unfinishedRows, agentRows, subscriptionRows, deadRows} {
		columns, err := s.columns(ctx, t.name)
		if err != nil {
			return err
		}
		if len(columns) == 0 {
			continue
		}
		s.has[t.name] = columns
		for _, c := range t.columns {
			if !slices.Contains(columns, c) {
				return &FileError{s.file, fmt.Sprintf("has a table %s without the column %s", t.name, c)}
			}
		}
		if _, err := s.db.ExecContext(ctx, "SELECT rowid FROM "+t.name+" LIMIT 0"); err != nil {
			return &FileError{s.file, fmt.Sprintf("has a table %s that cannot be read: %v", t.name, err)}
		}
	}
	if s.has[unfinishedRows.name] == nil {
		return &FileError{s.file, "has no table messages: it is no database of a team"}
	}
	return nil
}

// columns returns the names of a table's columns; none if there is no such table.
func (s *source) columns(ctx context.Context, name string) (columns []string, err error) {
	rows, err := s.db.QueryContext(ctx, `
		SELECT c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
		WHERE t.type = 'table' AND t.name = ?`, name)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err says what went wrong
	for rows.Next() {
		var c string
		if err := rows.Scan(&c); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

// each calls visit with the number and the content of each row of a table, in the table's order. SQLite sorts
// the numbers alone.
func (s *source) each(ctx context.Context, t table, visit func(number int64, r row) error) error {
	if s.has[t.name] == nil {
		return nil
	}
	numbers, err := s.db.QueryContext(ctx, "SELECT rowid FROM "+t.name+" WHERE "+t.where+" ORDER BY "+t.order)
	if err != nil {
		return err
	}
	defer numbers.Close() //nolint:errcheck // Err says what went wrong
	for numbers.Next() {
		var n int64
		if err := numbers.Scan(&n); err != nil {
			return err
		}
		r, err := s.row(ctx, t, n)
		if err != nil {
			return err
		}
		if err := visit(n, r); err != nil {
			return err
		}
	}
	return numbers.Err()
}

// row reads all columns of one row, as expressions: of a column with a type such as DATETIME, the driver would return
// its own reading of the text, which is the zero time if it cannot read it.
func (s *source) row(ctx context.Context, t table, number int64) (row, error) {
	columns := s.has[t.name]
	var list []string
	for _, c := range columns {
		list = append(list, `+"`+strings.ReplaceAll(c, `"`, `""`)+`"`)
	}
	rows, err := s.db.QueryContext(ctx, "SELECT "+strings.Join(list, ", ")+" FROM "+t.name+" WHERE rowid = ?", number)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err says what went wrong
	if !rows.Next() {
		return nil, errors.Join(rows.Err(), fmt.Errorf("row %d of %s is missing", number, t.name))
	}
	values := make([]any, len(columns))
	places := make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	if err := rows.Scan(places...); err != nil {
		return nil, err
	}
	r := row{}
	for i, c := range columns {
		r[c] = values[i]
	}
	return r, rows.Err()
}

// most returns the name that is in a column of the most unfinished messages, and of how many.
func (s *source) most(ctx context.Context, column string) (name string, n int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT "+column+", count(*) FROM messages WHERE "+unfinishedRows.where+" AND "+column+
		" IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 1").Scan(&name, &n)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return name, n, err
}
