package importer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// A row has the columns of a row of the file: nil, int64, float64, string or []byte each. SQLite does not restrict a
// column to its type.
type row map[string]any

// text returns a column as text, "" for NULL.
func (r row) text(column string) string {
	switch v := r[column].(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}

// whole returns a column that has a whole number.
func (r row) whole(column string) (int64, bool) {
	switch v := r[column].(type) {
	case int64:
		return v, true
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	default:
		return 0, false
	}
}

// A key identifies a row in every copy of its file.
type key = uuid.UUID

// keyOf returns the key of a row of a table.
func (r row) keyOf(t table, columns ...string) key {
	hash := sha256.New()
	add := func(s string) {
		_ = binary.Write(hash, binary.BigEndian, uint64(len(s))) // a hash never fails
		_, _ = hash.Write([]byte(s))
	}
	add(t.name)
	for _, c := range columns {
		add(r.text(c))
	}
	k, _ := uuid.FromBytes(hash.Sum(nil)[:16]) // it has the size
	return k
}

// MarshalJSON writes the row as an object. A value that JSON cannot hold becomes {"base64": …} or text.
func (r row) MarshalJSON() ([]byte, error) {
	object := map[string]any{}
	for column, v := range r {
		switch x := v.(type) {
		case string:
			if !utf8.ValidString(x) {
				v = map[string][]byte{"base64": []byte(x)}
			}
		case []byte:
			v = map[string][]byte{"base64": x}
		case float64:
			if math.IsInf(x, 0) {
				v = fmt.Sprint(x)
			}
		}
		object[column] = v
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(object)
	return bytes.TrimSpace(out.Bytes()), err
}

// original returns the message of a dead letter: the JSON object of the column original_message.
func (r row) original() (row, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.text("original_message")), &fields); err != nil {
		return nil, fmt.Errorf("original_message is no JSON object: %w", err)
	}
	m := row{}
	for name, raw := range fields {
		var text string
		switch {
		case string(raw) == "null":
		case json.Unmarshal(raw, &text) == nil:
			m[name] = text
		default:
			m[name] = string(raw)
		}
	}
	return m, nil
}

// times are the forms of ISO 8601 in which programs write a time. One without a zone is UTC.
var times = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999"}

// time returns a column as a time; the zero time for NULL and empty text.
func (r row) time(column string) (time.Time, error) {
	text := r.text(column)
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range times {
		if at, err := time.Parse(form, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s %q is no time of ISO 8601", column, clip(text, 40))
}

// clip shortens a text to a number of bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
