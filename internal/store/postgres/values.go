package postgres

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Formats of values on the wire.
const (
	asText   = int16(0)
	asBinary = int16(1)
)

// encode returns an argument as PostgreSQL reads it for a parameter of the given type.
func encode(value driver.Value, oid uint32) (bytes []byte, format int16, err error) {
	switch v := value.(type) {
	case int64:
		if oid == pgtype.Int8OID {
			return binary.BigEndian.AppendUint64(nil, uint64(v)), asBinary, nil
		}
		return strconv.AppendInt(nil, v, 10), asText, nil
	case string:
		return []byte(v), asText, nil
	case []byte:
		return v, asBinary, nil // the bytes of a text are its binary format
	case float64:
		if oid == pgtype.Float8OID {
			return binary.BigEndian.AppendUint64(nil, math.Float64bits(v)), asBinary, nil
		}
		return strconv.AppendFloat(nil, v, 'g', -1, 64), asText, nil
	}
	return nil, 0, fmt.Errorf("cannot send a %T", value)
}

// typeOf returns the type of a parameter whose uses do not show one.
func typeOf(value driver.Value) uint32 {
	switch value.(type) {
	case string:
		return pgtype.TextOID
	case []byte:
		return pgtype.ByteaOID
	case float64:
		return pgtype.Float8OID
	}
	return pgtype.Int8OID
}

// formatsOf returns the formats in which the columns of a result are wanted.
func formatsOf(fields []pgconn.FieldDescription) []int16 {
	formats := make([]int16, len(fields))
	for i, f := range fields {
		switch f.DataTypeOID {
		case pgtype.Int8OID, pgtype.Float8OID, pgtype.ByteaOID:
			formats[i] = asBinary
		}
	}
	return formats
}

// decode returns a column as SQLite's driver would: a truth value is 0 or 1, and a sum of integers an integer.
func decode(bytes []byte, oid uint32) (driver.Value, error) {
	if bytes == nil {
		return nil, nil
	}
	switch oid {
	case pgtype.Int8OID:
		return int64(binary.BigEndian.Uint64(bytes)), nil
	case pgtype.ByteaOID:
		return bytes, nil
	case pgtype.Float8OID:
		return math.Float64frombits(binary.BigEndian.Uint64(bytes)), nil
	case pgtype.BoolOID:
		if bytes[0] == 't' {
			return int64(1), nil
		}
		return int64(0), nil
	case pgtype.Int4OID, pgtype.Int2OID:
		return strconv.ParseInt(string(bytes), 10, 64)
	case pgtype.NumericOID:
		if n, err := strconv.ParseInt(string(bytes), 10, 64); err == nil {
			return n, nil
		}
		return strconv.ParseFloat(string(bytes), 64)
	}
	return string(bytes), nil
}

// rows are the rows of a result, which has been read.
type rows struct {
	fields []pgconn.FieldDescription
	values [][][]byte
}

// Columns implements driver.Rows.
func (r *rows) Columns() []string {
	names := make([]string, len(r.fields))
	for i, f := range r.fields {
		names[i] = f.Name
	}
	return names
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) (err error) {
	if len(r.values) == 0 {
		return io.EOF
	}
	row := r.values[0]
	r.values = r.values[1:]
	if len(row) != len(dest) {
		return errors.New("a row has another number of columns than its statement")
	}
	for i, bytes := range row {
		if dest[i], err = decode(bytes, r.fields[i].DataTypeOID); err != nil {
			return err
		}
	}
	return nil
}

// Close implements driver.Rows.
func (r *rows) Close() error {
	r.values = nil
	return nil
}
