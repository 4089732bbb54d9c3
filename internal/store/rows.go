package store

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// ErrNoRows is returned by Row.Scan when the query found nothing.
var ErrNoRows = errors.New("store: no rows")

// A Querier reads the database: a *Tx or a *Snapshot.
type Querier interface {
	Query(query string, args ...any) *Rows
	QueryRow(query string, args ...any) *Row
}

// Rows are the result of a query. They must be read to the end or closed before the function that
// asked for them returns, and are closed for it otherwise.
type Rows struct {
	conn      *conn
	statement *statement // nil when closed
	raw       driver.Rows
	tx        *Tx // in the writer
	values    []driver.Value
	err       error
}

// Next goes to the next row. It returns false after the last one and after an error, which Err tells.
func (r *Rows) Next() bool {
	if r.statement == nil {
		return false
	}
	if r.values == nil {
		if r.statement.values == nil {
			r.statement.values = make([]driver.Value, len(r.raw.Columns()))
		}
		r.values = r.statement.values
	}
	if err := r.raw.Next(r.values); err != nil {
		if !errors.Is(err, io.EOF) {
			r.err = r.conn.classify(err)
		}
		r.Close()
		return false
	}
	if r.tx != nil {
		if r.tx.read++; r.tx.read > MaxRead {
			r.tx.exceed(r.statement.query)
		}
		if !r.statement.readonly {
			r.tx.change(r.statement.query, 1)
		}
	}
	return true
}

// Scan copies the columns of the row. It takes pointers to int, int64, int32, uint64, uint32,
// string, []byte, bool, float64, time.Time (from Unix nanoseconds, UTC) and time.Duration (from
// nanoseconds); NULL gives the zero value of each. The bytes belong to the caller. An error closes
// the rows, and Err returns it.
func (r *Rows) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	if r.statement == nil || r.values == nil {
		return errors.New("store: Scan without a row")
	}
	if len(dest) != len(r.values) {
		return fmt.Errorf("store: %d columns scanned into %d variables", len(r.values), len(dest))
	}
	for i, value := range r.values {
		if err := fromSQL(value, dest[i]); err != nil {
			r.err = fmt.Errorf("store: column %d: %w", i+1, err)
			return r.Close()
		}
	}
	return nil
}

// Err returns what ended the rows early, or kept the query from running.
func (r *Rows) Err() error { return r.err }

// Close ends the rows; closing twice is fine. It returns what Err returns.
func (r *Rows) Close() error {
	st := r.statement
	if st == nil {
		return r.err
	}
	r.statement = nil
	if err := r.raw.Close(); err != nil && r.err == nil {
		r.err = r.conn.classify(err)
	}
	clear(r.values) // or a cached statement keeps a large message in memory
	r.conn.put(st)
	open := r.conn.open
	for i := len(open) - 1; i >= 0; i-- {
		if open[i] == r {
			r.conn.open = slices.Delete(open, i, i+1)
			break
		}
	}
	if r.tx != nil && r.err != nil {
		r.tx.writer.look(r.err)
	}
	return r.err
}

// A Row is the result of a query for one row.
type Row Rows

// Scan copies the columns of the first row as Rows.Scan does, and closes the row. It returns
// ErrNoRows if there is none.
func (r *Row) Scan(dest ...any) error {
	rows := (*Rows)(r)
	if !rows.Next() {
		if rows.err != nil {
			return rows.err
		}
		return ErrNoRows
	}
	if err := rows.Scan(dest...); err != nil {
		_ = rows.Close()
		return err
	}
	return rows.Close()
}

// fromSQL copies one column into a variable.
func fromSQL(value driver.Value, dest any) error {
	if value == nil {
		return zero(dest)
	}
	switch d := dest.(type) {
	case *string:
		switch v := value.(type) {
		case string:
			*d = v
			return nil
		case []byte:
			*d = string(v)
			return nil
		}
	case *[]byte:
		switch v := value.(type) {
		case []byte:
			*d = v
			return nil
		case string:
			*d = []byte(v)
			return nil
		}
	case *float64:
		switch v := value.(type) {
		case float64:
			*d = v
			return nil
		case int64:
			*d = float64(v)
			return nil
		}
	}
	n, ok := value.(int64)
	if !ok {
		return fmt.Errorf("cannot scan a %T into a %T", value, dest)
	}
	switch d := dest.(type) {
	case *int64:
		*d = n
	case *int:
		*d = int(n)
	case *int32:
		*d = int32(n)
	case *uint64:
		*d = uint64(n)
	case *uint32:
		*d = uint32(n)
	case *bool:
		*d = n != 0
	case *time.Time:
		*d = fromNanos(n)
	case *time.Duration:
		*d = time.Duration(n)
	default:
		return fmt.Errorf("cannot scan an integer into a %T", dest)
	}
	return nil
}

// zero is what NULL becomes.
func zero(dest any) error {
	switch d := dest.(type) {
	case *int64:
		*d = 0
	case *int:
		*d = 0
	case *int32:
		*d = 0
	case *uint64:
		*d = 0
	case *uint32:
		*d = 0
	case *bool:
		*d = false
	case *string:
		*d = ""
	case *[]byte:
		*d = nil
	case *float64:
		*d = 0
	case *time.Time:
		*d = time.Time{}
	case *time.Duration:
		*d = 0
	default:
		return fmt.Errorf("cannot scan into a %T", dest)
	}
	return nil
}

// fromNanos is the time of a column: zero stands for none.
func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
