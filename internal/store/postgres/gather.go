package postgres

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Statements of one text are gathered into one that reads its rows from arrays. The server then begins, checks and
// answers once for all of them: twice as many messages a second (brokerctl bench, agents and pipelined).

var (
	// insertion matches an INSERT of one row: its table, columns and values.
	insertion = regexp.MustCompile(`(?s)^\s*INSERT INTO (\w+) (\([^()]*\))\s*VALUES \((.*)\)\s*$`)

	// change matches an UPDATE of one table: what it sets, and which rows.
	change = regexp.MustCompile(`(?s)^\s*UPDATE (\w+)\s+SET (.*?)\s+WHERE (.*)$`)

	// compound matches what keeps a statement from being gathered: its result could depend on those before it.
	compound = regexp.MustCompile(`(?i)\b(SELECT|ON CONFLICT|RETURNING|FROM|WITH)\b`)

	parameter = regexp.MustCompile(`\$(\d+)`)
)

// arrays are the types of arrays, by the type of their elements.
var arrays = map[uint32]uint32{
	pgtype.Int8OID:   pgtype.Int8ArrayOID,
	pgtype.TextOID:   pgtype.TextArrayOID,
	pgtype.ByteaOID:  pgtype.ByteaArrayOID,
	pgtype.Float8OID: pgtype.Float8ArrayOID,
}

// A gathering is how statements of one text are gathered.
type gathering struct {
	table   string // that an INSERT fills; empty for an UPDATE
	stmt    *stmt
	columns []uint32 // types of the elements
}

// gathered returns how the statement, which is prepared, is gathered; nil if it is not.
func (s *stmt) gathered() *gathering {
	if s.gather != nil && slices.Equal(s.gather.columns, s.description.ParamOIDs) {
		return s.gather
	}
	g := &gathering{columns: s.description.ParamOIDs}
	table, text, types := Gather(s.text, g.columns)
	if text == "" {
		return nil
	}
	if s.gather != nil {
		s.gather.stmt.discard()
	}
	g.table, g.stmt = table, &stmt{conn: s.conn, text: text, inputs: len(types)}
	s.conn.db.types.Store(text, types)
	s.gather = g
	return g
}

// Gather returns the statement into which those of one text are gathered, with the types of its arrays, and the table
// that an INSERT fills. The text of a statement that is not gathered is empty.
func Gather(text string, elements []uint32) (table, gathered string, types []uint32) {
	types = make([]uint32, len(elements))
	names := make([]string, len(elements))
	for i, oid := range elements {
		if types[i] = arrays[oid]; types[i] == 0 {
			return "", "", nil
		}
		names[i] = "p" + strconv.Itoa(i+1)
	}
	source := `unnest(` + parameters(len(types)) + `)`
	switch i, u := insertion.FindStringSubmatch(text), change.FindStringSubmatch(text); {
	case len(types) == 0:
	case i != nil && !compound.MatchString(i[3]):
		table = i[1]
		gathered = fmt.Sprintf(`INSERT INTO %s %s SELECT %s FROM %s AS u (%s)`,
			i[1], i[2], columns(i[3]), source, strings.Join(names, ", "))
	case u != nil && !compound.MatchString(u[2]+u[3]):
		// The order of the joins is fixed: each row is found by its own look into an index. Else the planner may read a
		// whole index of few rows, as it believes, such as that of open claims, for each of the arguments.
		gathered = fmt.Sprintf(`
			UPDATE %[1]s SET %[2]s
			FROM %[3]s WITH ORDINALITY AS u (%[4]s, ordinal)
				CROSS JOIN LATERAL (SELECT ctid FROM %[1]s WHERE %[5]s OFFSET 0) AS found
			WHERE %[1]s.ctid = found.ctid
			RETURNING u.ordinal`,
			u[1], columns(u[2]), source, strings.Join(names, ", "), columns(u[3]))
	}
	return table, gathered, types
}

// columns has an expression read columns in place of its parameters.
func columns(expression string) string { return parameter.ReplaceAllString(expression, "u.p$1") }

// parameters returns a list of n parameters.
func parameters(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = "$" + strconv.Itoa(i+1)
	}
	return strings.Join(list, ", ")
}

// gather joins items of one text. Those of an INSERT are joined across inserts into other tables: no table has a
// foreign key. The rows of one table keep their order. Those of an UPDATE are joined only if they come from ExecEach,
// whose lists concern different rows, and follow each other.
func (c *conn) gather(items []item) []item {
	var joined []item
	at := map[string]int{} // where the INSERT of a table stands in joined since the last other statement
	for number, i := range items {
		i.of = []int{number}
		g := c.rowOf(i)
		switch {
		case g == nil:
			clear(at)
			joined = append(joined, i)
		case g.table == "":
			clear(at)
			if n := len(joined); n > 0 && i.each && joined[n-1].each && joined[n-1].stmt == i.stmt {
				joined[n-1].add(i)
			} else {
				joined = append(joined, i)
			}
		default:
			n, known := at[g.table]
			if known && joined[n].stmt != i.stmt {
				clear(at)
				known = false
			}
			if known {
				joined[n].add(i)
			} else {
				at[g.table] = len(joined)
				joined = append(joined, i)
			}
		}
	}
	return joined
}

// rowOf returns how an item is gathered, nil if it is not.
func (c *conn) rowOf(i item) *gathering {
	if i.stmt == nil || i.stmt.description == nil || i.stmt.made != c.made || !fits(i.stmt.types, i.args) {
		return nil
	}
	g := i.stmt.gathered()
	if g == nil {
		return nil
	}
	for _, a := range i.args {
		if typeOf(a.Value) != g.columns[a.Ordinal-1] {
			return nil
		}
	}
	return g
}

// add joins another item of the same text.
func (i *item) add(other item) {
	if i.rows == nil {
		i.rows = [][]driver.NamedValue{i.args}
	}
	i.rows, i.of = append(i.rows, other.args), append(i.of, other.of...)
}

// bindRows returns the arguments of all rows as arrays.
func (g *gathering) bindRows(rows [][]driver.NamedValue) (values [][]byte, formats []int16, err error) {
	if err := g.stmt.prepare(nil); err != nil {
		return nil, nil, err
	}
	values, formats = make([][]byte, len(g.columns)), make([]int16, len(g.columns))
	for n, oid := range g.columns {
		formats[n] = asBinary
		head := make([]byte, 0, 20+12*len(rows))
		head = binary.BigEndian.AppendUint32(head, 1) // dimensions
		head = binary.BigEndian.AppendUint32(head, 1) // there may be NULLs
		head = binary.BigEndian.AppendUint32(head, oid)
		head = binary.BigEndian.AppendUint32(head, uint32(len(rows)))
		values[n] = binary.BigEndian.AppendUint32(head, 1) // the first index
	}
	for _, args := range rows {
		next := 0 // the column that has no value yet
		for _, a := range args {
			for ; next < a.Ordinal-1; next++ {
				values[next] = appendNull(values[next])
			}
			bytes, _, err := encode(a.Value, g.columns[next])
			if err != nil {
				return nil, nil, err
			}
			values[next] = append(binary.BigEndian.AppendUint32(values[next], uint32(len(bytes))), bytes...)
			next++
		}
		for ; next < len(values); next++ {
			values[next] = appendNull(values[next])
		}
	}
	return values, formats, nil
}

func appendNull(array []byte) []byte { return binary.BigEndian.AppendUint32(array, 1<<32-1) }

// changed returns how many rows each statement of a queue has changed, of whose items each has its result.
func changed(joined []item, results []*pgconn.Result, n int) ([]int64, error) {
	rows := make([]int64, n)
	for k, i := range joined {
		switch tag := results[k].CommandTag; {
		case i.rows == nil:
			rows[i.of[0]] = tag.RowsAffected()
		case tag.Insert():
			for _, number := range i.of {
				rows[number] = 1
			}
		default:
			for _, row := range results[k].Rows {
				ordinal, err := decode(row[0], pgtype.Int8OID)
				if err != nil {
					return nil, err
				}
				rows[i.of[ordinal.(int64)-1]]++
			}
		}
	}
	return rows, nil
}
