package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// A stmt is a statement of a conn. It implements store.Stmt.
type stmt struct {
	conn     *conn
	text     string
	inputs   int
	readonly bool

	description *pgconn.StatementDescription // nil until it is prepared
	made        int                          // the connection that has prepared it: see conn
	formats     []int16                      // of its columns
}

// undetermined is PostgreSQL's error for an argument whose uses do not show one type.
var undetermined = regexp.MustCompile(`^(?:could not determine data type of|inconsistent types deduced for) parameter \$(\d+)$`)

// prepare has the server prepare the statement, unless it has.
func (s *stmt) prepare(args []driver.NamedValue) error {
	c := s.conn
	if s.description != nil && s.made == c.made {
		return nil
	}
	if c.undone() { // the server prepares nothing in a transaction that has failed
		if _, err := c.exchange(); err != nil {
			return err
		}
	}
	if c.pg == nil {
		return classify(errors.New("no connection"), true)
	}
	types := make([]uint32, s.inputs)
	for {
		c.named++
		description, err := c.pg.Prepare(context.Background(), "s"+strconv.Itoa(c.named), s.text, types)
		if err == nil {
			s.description, s.made, s.formats = description, c.made, formatsOf(description.Fields)
			return nil
		}
		if c.pg.IsClosed() {
			c.drop()
			return classify(err, true)
		}
		var refused *pgconn.PgError
		if !errors.As(err, &refused) {
			return classify(err, false)
		}
		m := undetermined.FindStringSubmatch(refused.Message)
		if m == nil {
			return fmt.Errorf("%w: %s", classify(err, false), s.text)
		}
		n, _ := strconv.Atoi(m[1]) // digits
		if n < 1 || n > s.inputs || types[n-1] != 0 {
			return err
		}
		var value driver.Value
		for _, a := range args {
			if a.Ordinal == n {
				value = a.Value
			}
		}
		types[n-1] = typeOf(value)
	}
}

// bind returns the arguments as the server reads them.
func (s *stmt) bind(args []driver.NamedValue) (values [][]byte, formats []int16, err error) {
	if err := s.prepare(args); err != nil {
		return nil, nil, err
	}
	values, formats = make([][]byte, s.inputs), make([]int16, s.inputs)
	for _, a := range args {
		n := a.Ordinal - 1
		if values[n], formats[n], err = encode(a.Value, s.description.ParamOIDs[n]); err != nil {
			return nil, nil, fmt.Errorf("argument %d: %w: %s", a.Ordinal, err, s.text)
		}
	}
	return values, formats, nil
}

func (s *stmt) run(args []driver.NamedValue) (*pgconn.Result, error) {
	results, err := s.conn.exchange(item{stmt: s, args: args})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(_ context.Context, args []driver.NamedValue) (driver.Result, error) {
	result, err := s.run(args)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(result.CommandTag.RowsAffected()), nil
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(_ context.Context, args []driver.NamedValue) (driver.Rows, error) {
	result, err := s.run(args)
	if err != nil {
		return nil, err
	}
	return &rows{fields: s.description.Fields, values: result.Rows}, nil
}

// NumInput implements store.Stmt.
func (s *stmt) NumInput() int { return s.inputs }

// Readonly implements store.Stmt.
func (s *stmt) Readonly() bool { return s.readonly }

// Close implements store.Stmt.
func (s *stmt) Close() error {
	if s.description != nil && s.made == s.conn.made {
		s.conn.closed = append(s.conn.closed, s.description.Name)
	}
	s.description = nil
	return nil
}
