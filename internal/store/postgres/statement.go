package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// A stmt is a statement of a conn. It implements store.Stmt.
type stmt struct {
	conn     *conn
	text     string
	inputs   int
	readonly bool

	description *pgconn.StatementDescription // nil until it is prepared
	made        int                          // the connection that has prepared it: see conn
	types       []uint32                     // that its parameters were said to have; see typesOf
	formats     []int16                      // of its columns
	gather      *gathering                   // nil until statements of its text were gathered
}

// undetermined is PostgreSQL's error for an argument whose uses do not show one type.
var undetermined = regexp.MustCompile(`^(?:could not determine data type of|inconsistent types deduced for) parameter \$(\d+)$`)

// prepare has the server prepare the statement, unless it has. Arguments show the types of parameters that the text
// leaves open. Where the types are not known yet, a savepoint keeps the refusals of the server from ending the
// transaction.
func (s *stmt) prepare(args []driver.NamedValue) error {
	c := s.conn
	if s.description != nil && s.made == c.made && fits(s.types, args) {
		return nil
	}
	types, known := c.db.typesOf(s.text)
	if c.undone() { // the server prepares nothing in a transaction that has failed
		if _, err := c.exchange(); err != nil {
			return err
		}
	}
	if c.pg == nil {
		return errLost()
	}
	within := c.pg.TxStatus() == 'T' && !(known && fits(types, args))
	if within {
		if _, err := c.send([]item{{word: `SAVEPOINT types`}}); err != nil {
			return err
		}
	}
	err := s.prepareTyped(slices.Clone(types), args, known, within)
	if within && c.pg != nil {
		_, ended := c.send([]item{{word: `RELEASE types`}})
		err = errors.Join(err, ended)
	}
	return err
}

// prepareTyped prepares the statement with the types that are known, and finds out the others.
func (s *stmt) prepareTyped(types []uint32, args []driver.NamedValue, known, within bool) error {
	c := s.conn
	s.discard()
	if types == nil {
		types = make([]uint32, s.inputs)
	}
	for _, a := range args {
		if types[a.Ordinal-1] != 0 {
			types[a.Ordinal-1] = typeOf(a.Value)
		}
	}
	for {
		description, err := c.describe(s.text, types)
		if err == nil {
			s.take(description, types)
			if !known {
				err = s.widen(within)
			}
			c.db.types.Store(s.text, s.types)
			return err
		}
		if c.pg.IsClosed() {
			c.drop()
			return classify(err, true)
		}
		if within {
			if _, err := c.send([]item{{word: `ROLLBACK TO types`}}); err != nil {
				return err
			}
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
			return fmt.Errorf("%w: %s", err, s.text)
		}
		types[n-1] = pgtype.Int8OID // as good as any for NULL, but for a list
		if strings.Contains(s.text, `CAST($`+m[1]+` AS json)`) {
			types[n-1] = pgtype.TextOID
		}
		for _, a := range args {
			if a.Ordinal == n {
				types[n-1] = typeOf(a.Value)
			}
		}
	}
}

// widen has the statement prepared with 64 bits for parameters for which PostgreSQL has found fewer, as it does beside a
// small number in the text: for all of them, or for those that may have them. A position in a text may not.
func (s *stmt) widen(within bool) error {
	c := s.conn
	var all []int
	for i, oid := range s.description.ParamOIDs {
		if s.types[i] == 0 && (oid == pgtype.Int4OID || oid == pgtype.Int2OID) {
			all = append(all, i)
		}
	}
	for i := -1; len(all) > 0 && i < len(all); i++ {
		some := all
		if i >= 0 {
			some = all[i : i+1]
		}
		types := slices.Clone(s.types)
		for _, n := range some {
			types[n] = pgtype.Int8OID
		}
		description, err := c.describe(s.text, types)
		switch {
		case err == nil:
			s.discard()
			s.take(description, types)
			if i < 0 {
				return nil
			}
		case c.pg.IsClosed():
			c.drop()
			return classify(err, true)
		case within:
			if _, err := c.send([]item{{word: `ROLLBACK TO types`}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// take has the statement use what the server has prepared.
func (s *stmt) take(description *pgconn.StatementDescription, types []uint32) {
	s.description, s.made, s.types, s.formats = description, s.conn.made, slices.Clone(types), formatsOf(description.Fields)
}

// describe has the server prepare a statement under a new name.
func (c *conn) describe(text string, types []uint32) (*pgconn.StatementDescription, error) {
	c.named++
	return c.pg.Prepare(context.Background(), "s"+strconv.Itoa(c.named), text, types)
}

// discard has the server forget the statement.
func (s *stmt) discard() {
	if s.description != nil && s.made == s.conn.made {
		s.conn.closed = append(s.conn.closed, s.description.Name)
	}
	s.description = nil
}

// typesOf returns the types of a statement's parameters that its text leaves open, 0 for each other parameter, if they are
// known.
func (d *Database) typesOf(text string) (types []uint32, known bool) {
	value, known := d.types.Load(text)
	types, _ = value.([]uint32)
	return types, known
}

// fits reports whether arguments are of the types that the text leaves open.
func fits(types []uint32, args []driver.NamedValue) bool {
	for _, a := range args {
		if len(types) > 0 && types[a.Ordinal-1] != 0 && types[a.Ordinal-1] != typeOf(a.Value) {
			return false
		}
	}
	return true
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
	s.discard()
	return nil
}
