package move

import (
	"bufio"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"brokerd/internal/fault"
	"brokerd/internal/store/postgres"
)

// settings are those of the connection. Indexes are made faster with more memory.
const settings = `
SET client_encoding = 'UTF8';
SET synchronous_commit = on;
SET statement_timeout = 0;
SET lock_timeout = '10s';
SET idle_session_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET maintenance_work_mem = '256MB'`

// A server is a connection to PostgreSQL. It implements end.
type server struct {
	of      *postgres.Database
	db      *pgconn.PgConn
	indexes []string // statements that make those that write has dropped
}

func openServer(ctx context.Context, d *postgres.Database) (*server, error) {
	db, err := d.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &server{of: d, db: db}
	if _, err := s.query(ctx, settings); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) close() error { return s.db.Close(context.Background()) }

// query returns the rows of the last statement of a text, as texts.
func (s *server) query(ctx context.Context, text string) ([][][]byte, error) {
	results, err := s.db.Exec(ctx, text).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	return results[len(results)-1].Rows, nil
}

// selectColumns leaves out the list of replicas, which SQLite does not have.
const selectColumns = `
SELECT relname, attname, format_type(atttypid, NULL), coalesce(array_position(indkey::int2[], attnum), -1)
FROM pg_class
	JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
	LEFT JOIN pg_index ON indrelid = pg_class.oid AND indisprimary
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname <> 'replicas'
ORDER BY relname, attnum`

func (s *server) tables(ctx context.Context) (map[string]table, error) {
	found, err := s.query(ctx, selectColumns)
	if err != nil {
		return nil, err
	}
	kinds := map[string]kind{"bigint": integer, "double precision": real, "text": text, "bytea": blob}
	all, keys := map[string]table{}, map[string]map[int]string{}
	for _, row := range found {
		name, c := string(row[0]), column{string(row[1]), kinds[string(row[2])]}
		if c.kind == 0 {
			return nil, fmt.Errorf("column %s of table %s has the type %s", c.name, name, row[2])
		}
		t := all[name]
		t.name = name
		if name != "meta" || !slices.Contains(local, c.name) {
			t.columns = append(t.columns, c)
		}
		all[name] = t
		if keys[name] == nil {
			keys[name] = map[int]string{}
		}
		n, _ := strconv.Atoi(string(row[3])) // digits
		keys[name][n] = c.name
	}
	for name, t := range all {
		t.sort()
		for n := 0; keys[name][n] != ""; n++ {
			t.key = append(t.key, keys[name][n])
		}
		all[name] = t
	}
	return all, nil
}

func (s *server) meta(ctx context.Context) (revision int64, movedTo string, err error) {
	found, err := s.query(ctx, `SELECT revision, coalesce(moved, '') FROM meta`)
	if err != nil {
		return 0, "", err
	}
	revision, err = strconv.ParseInt(string(found[0][0]), 10, 64)
	return revision, string(found[0][1]), err
}

func (s *server) mark(ctx context.Context) (bool, error) {
	done, err := s.db.ExecParams(ctx, `UPDATE meta SET moved = '' WHERE revision = 0`, nil, nil, nil, nil).Close()
	return done.RowsAffected() == 1, err
}

// version implements end. Each broker that begins to write has another epoch.
func (s *server) version(context.Context) (version, error) {
	epoch, seen := s.of.Led()
	return version{epoch, seen.Commits}, nil
}

func (s *server) leave(ctx context.Context, to string, v version) (bool, error) {
	values := [][]byte{[]byte(to), strconv.AppendInt(nil, v[0], 10), strconv.AppendInt(nil, v[1], 10)}
	done, err := s.db.ExecParams(ctx, `UPDATE meta SET moved = $1 WHERE epoch = $2 AND commits = $3`,
		values, nil, nil, nil).Close()
	return done.RowsAffected() == 1, err
}

func (s *server) read(ctx context.Context) error {
	_, err := s.query(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	return err
}

func (s *server) rollback(ctx context.Context) error {
	if s.db.IsClosed() {
		return nil
	}
	_, err := s.query(ctx, `ROLLBACK`)
	return err
}

func (s *server) commit(ctx context.Context) error {
	_, err := s.query(ctx, `COMMIT`)
	return err
}

func (s *server) rows(ctx context.Context, t table) rows {
	return func(yield func([]driver.Value, error) bool) {
		result := s.db.ExecParams(ctx, t.query(), nil, nil, nil, []int16{1})
		row := make([]driver.Value, len(t.columns))
		for result.NextRow() {
			for i, bytes := range result.Values() {
				row[i] = t.columns[i].kind.decode(bytes)
			}
			if !yield(row, nil) {
				_, _ = result.Close() // the caller has another error
				return
			}
		}
		if _, err := result.Close(); err != nil {
			yield(nil, err)
		}
	}
}

// decode returns a value that PostgreSQL has sent in its binary format.
func (k kind) decode(bytes []byte) driver.Value {
	switch {
	case bytes == nil:
		return nil
	case k == integer:
		return int64(binary.BigEndian.Uint64(bytes))
	case k == real:
		return math.Float64frombits(binary.BigEndian.Uint64(bytes))
	case k == text:
		return string(bytes)
	}
	return bytes
}

const selectSequences = `
SELECT relname, pg_get_serial_sequence(quote_ident(relname), attname)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attidentity <> ''
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'`

func (s *server) keys(ctx context.Context) (map[string]int64, error) {
	sequences, err := s.query(ctx, selectSequences)
	if err != nil {
		return nil, err
	}
	keys := map[string]int64{}
	for _, row := range sequences {
		last, err := s.query(ctx, `SELECT last_value FROM `+string(row[1])+` WHERE is_called`)
		if err != nil {
			return nil, err
		}
		if len(last) > 0 {
			keys[string(row[0])], _ = strconv.ParseInt(string(last[0][0]), 10, 64) // digits
		}
	}
	return keys, nil
}

// selectIndexes are the indexes that are not those of keys.
const selectIndexes = `
SELECT relname, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE relnamespace = current_schema()::regnamespace AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid)`

// write implements end. It looks again for data, since it may have waited for the lock while another copy was made.
func (s *server) write(ctx context.Context, tables []table) error {
	if _, err := s.query(ctx, `BEGIN; LOCK TABLE meta IN ACCESS EXCLUSIVE MODE`); err != nil {
		return err
	}
	revision, _, err := s.meta(ctx)
	if err == nil && revision != 0 {
		err = fault.New(fault.Precondition, "NOT_EMPTY", "another migration has filled the database")
	}
	var indexes [][][]byte
	if err == nil {
		indexes, err = s.query(ctx, selectIndexes)
	}
	for _, row := range indexes {
		s.indexes = append(s.indexes, string(row[1]))
		if err == nil {
			_, err = s.query(ctx, `DROP INDEX `+quote(string(row[0])))
		}
	}
	for _, t := range tables {
		if err == nil {
			_, err = s.query(ctx, `DELETE FROM `+quote(t.name))
		}
	}
	return err
}

// fill implements end. The encoder of the rows and the connection each have a goroutine.
func (s *server) fill(ctx context.Context, t table, all rows) error {
	reader, writer := io.Pipe()
	encoded := make(chan error, 1)
	go func() {
		err := t.encode(writer, all)
		_ = writer.CloseWithError(err) // never fails
		encoded <- err
	}()
	_, err := s.db.CopyFrom(ctx, reader, `COPY `+quote(t.name)+` (`+t.names()+`) FROM STDIN (FORMAT binary)`)
	_ = reader.CloseWithError(errStopped) // never fails
	if own := <-encoded; own != nil && !errors.Is(own, errStopped) {
		return own // err says only that the copy was ended
	}
	return err
}

// errStopped ends the encoder after the server has ended the copy.
var errStopped = errors.New("the copy was ended")

// encode writes rows in the format of COPY.
func (t table) encode(to io.Writer, all rows) error {
	w := bufio.NewWriterSize(to, 1<<16)
	_, _ = w.WriteString("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00") // Flush returns the first error
	var line []byte
	for row, err := range all {
		if err != nil {
			return err
		}
		line = binary.BigEndian.AppendUint16(line[:0], uint16(len(row)))
		for i, value := range row {
			switch v := value.(type) {
			case nil:
				line = binary.BigEndian.AppendUint32(line, math.MaxUint32) // -1
			case int64:
				line = binary.BigEndian.AppendUint64(append(line, 0, 0, 0, 8), uint64(v))
			case float64:
				line = binary.BigEndian.AppendUint64(append(line, 0, 0, 0, 8), math.Float64bits(v))
			case string:
				if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
					return t.unfit(row, i, "a text with a NUL or a byte that is not UTF-8, which PostgreSQL refuses")
				}
				line = append(binary.BigEndian.AppendUint32(line, uint32(len(v))), v...)
			case []byte:
				line = append(binary.BigEndian.AppendUint32(line, uint32(len(v))), v...)
			}
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	_, _ = w.Write([]byte{0xff, 0xff})
	return w.Flush()
}

// finish implements end. The planner needs statistics of tables that were empty.
func (s *server) finish(ctx context.Context, keys map[string]int64) error {
	for _, statement := range s.indexes {
		if _, err := s.query(ctx, statement); err != nil {
			return err
		}
	}
	sequences, err := s.query(ctx, selectSequences)
	if err != nil {
		return err
	}
	for _, row := range sequences {
		if last, ok := keys[string(row[0])]; ok {
			if _, err := s.query(ctx, fmt.Sprintf(`SELECT setval('%s', %d)`, row[1], last)); err != nil {
				return err
			}
		}
	}
	_, err = s.query(ctx, `ANALYZE`)
	return err
}
