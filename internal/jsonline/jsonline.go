// Package jsonline appends JSON to lines of archives and exports, just as encoding/json writes it, without reflection and without
// memory of its own: a busy broker archives as many lines as it takes messages, beside the agents' work.
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

// Time appends a time as RFC 3339 has it, in UTC.
func Time(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// Nanos appends a time, given as Unix nanoseconds, as Time does.
func Nanos(b []byte, n int64) []byte {
	if n < 0 {
		return Time(b, time.Unix(0, n))
	}
	const day = 86_400
	seconds, fraction := n/1e9, int(n%1e9)
	clock := int(seconds % day)
	year, month, date := civil(seconds / day)
	b = append(b, '"')
	b = append(two(two(b, year/100), year%100), '-')
	b = append(two(b, month), '-')
	b = append(two(b, date), 'T')
	b = append(two(b, clock/3600), ':')
	b = append(two(b, clock/60%60), ':')
	b = two(b, clock%60)
	if fraction > 0 {
		b = append(b, '.')
		for unit := int(1e8); fraction > 0; unit /= 10 {
			b = append(b, byte('0'+fraction/unit))
			fraction %= unit
		}
	}
	return append(b, 'Z', '"')
}

// two appends a number of two digits.
func two(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

// civil returns the date of a day, counted from 1970. It counts years from March, so that a leap day is the last of one, and from the
// first of March of the year 0: all periods of 400 years are alike.
func civil(days int64) (year, month, date int) {
	const era, century, four, common = 146_097, 36_524, 1_461, 365
	n := int(days) + 719_468
	eras, n := n/era, n%era
	years := (n - n/(four-1) + n/century - n/(era-1)) / common
	n -= common*years + years/4 - years/100
	month = (5*n + 2) / 153
	date = n - (153*month+2)/5 + 1
	year = eras*400 + years
	if month < 10 {
		return year, month + 3, date
	}
	return year + 1, month - 9, date
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
