// Package jsonline appends JSON to the lines of archives and exports. It writes what encoding/json
// writes, without reflection and without allocations, because a busy broker archives every message
// while agents work.
package jsonline

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Null is no value.
const Null = "null"

// List appends values, each with one.
func List[T any](b []byte, list []T, one func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, v)
	}
	return append(b, ']')
}

// Time appends a time in the form of RFC 3339, in UTC.
func Time(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// Raw appends JSON that was checked before, without the space around its parts. No text is null.
func Raw(b []byte, text string) ([]byte, error) {
	if text == "" {
		return append(b, Null...), nil
	}
	if !spaced(text) {
		return append(b, text...), nil
	}
	compact := bytes.NewBuffer(b)
	err := json.Compact(compact, []byte(text))
	return compact.Bytes(), err
}

// spaced reports whether there is space in JSON, in its strings or around its parts.
func spaced(text string) bool {
	return strings.IndexByte(text, ' ') >= 0 || strings.IndexByte(text, '\n') >= 0 ||
		strings.IndexByte(text, '\t') >= 0 || strings.IndexByte(text, '\r') >= 0
}

// Text appends a string.
func Text(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	const escaped = 1<<' ' - 1 | 1<<'"' | 1<<'&' | 1<<'<' | 1<<'>' // of the first 64 characters
	b = append(b, '"')
	begin := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
		case c >= 64 && c != '\\', c < 64 && uint64(escaped)>>c&1 == 0:
			i++
			continue
		default:
			b = escape(append(b, s[begin:i]...), c)
			i++
			begin = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[begin:i]...), `\ufffd`...)
			begin = i + 1
		case r == '\u2028' || r == '\u2029': // ends of lines in JavaScript
			b = append(append(b, s[begin:i]...), '\\', 'u', '2', '0', '2', hex[r&0xf])
			begin = i + size
		}
		i += size
	}
	b = append(b, s[begin:]...)
	return append(b, '"')
}

func escape(b []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, `\b`...)
	case '\f':
		return append(b, `\f`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}
