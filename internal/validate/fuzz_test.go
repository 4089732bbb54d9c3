package validate_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/validate"
)

func FuzzName(f *testing.F) {
	const more = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	made := func(s, first, rest string) bool {
		return s != "" && len(s) <= 128 && strings.Contains(first, s[:1]) && strings.Trim(s, rest) == "" && utf8.ValidString(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok := func(check func(*validate.Check)) bool { return fields(check) == nil }
		name := made(s, more, more+"._:-")
		reserved := s == "all" || s == "ALL" || s == "everyone" || s == "system"
		if ok(func(c *validate.Check) { c.Name("f", s) }) != name || ok(func(c *validate.Check) { c.NewName("f", s) }) != (name && !reserved) ||
			ok(func(c *validate.Check) { c.OptionalName("f", s) }) != (name || s == "") ||
			ok(func(c *validate.Check) { c.Pattern("f", s) }) != made(s, more+"*?", more+"._:-*?") {
			t.Fatalf("%q", s)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string, most uint16) {
		text := len(s) <= int(most) && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
		line := text && !strings.ContainsFunc(s, unicode.IsControl)
		var c validate.Check
		if c.Text("f", s, int(most)) != text || (c.Err() == nil) != text {
			t.Fatalf("text %q, at most %d: %v", s, most, c.Err())
		}
		if got := fields(func(c *validate.Check) { c.Line("f", s, int(most)) }); (got == nil) != line {
			t.Fatalf("line %q, at most %d: %v", s, most, got)
		}
		value := s == "" || len(s) <= int(most) && utf8.ValidString(s) && json.Valid([]byte(s)) && levels(s) <= validate.MaxDepth
		if got := fields(func(c *validate.Check) { c.JSON("f", s, int(most)) }); (got == nil) != value {
			t.Fatalf("JSON %q, at most %d: %v", s, most, got)
		}
		if got := fields(func(c *validate.Check) { c.Labels("f", map[string]string{s: s}) }); got == nil != (s != "" && len(s) <= 256 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)) {
			t.Fatalf("label %q: %v", s, got)
		}
	})
}

// levels returns how many lists and objects are open at the deepest place of JSON text.
func levels(s string) (deepest int) {
	d := json.NewDecoder(strings.NewReader(s))
	for open := 0; ; deepest = max(deepest, open) {
		switch token, err := d.Token(); {
		case err != nil:
			return deepest
		case token == json.Delim('['), token == json.Delim('{'):
			open++
		case token == json.Delim(']'), token == json.Delim('}'):
			open--
		}
	}
}

func FuzzTimes(f *testing.F) {
	f.Fuzz(func(t *testing.T, seconds int64, nanos int32) {
		var c validate.Check
		d := &durationpb.Duration{Seconds: seconds, Nanos: nanos}
		got := c.Duration("f", d, time.Second, time.Hour, -1)
		in := seconds >= 1 && seconds <= 3600 && nanos >= 0 && nanos < 1e9 && (seconds < 3600 || nanos == 0)
		if (c.Err() == nil) != in || in && got != time.Duration(seconds)*time.Second+time.Duration(nanos) || !in && got != -1 {
			t.Fatalf("%v is taken as %v: %v", d, got, c.Err())
		}
		c = validate.Check{}
		at := c.Time("f", &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos})
		if c.Err() == nil && (at.Unix() != seconds || at.Nanosecond() != int(nanos) || at.UnixNano() < 0 || seconds > 9_223_372_035) {
			t.Fatalf("%d.%d is taken as %v", seconds, nanos, at)
		}
	})
}
