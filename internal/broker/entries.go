package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"brokerd/internal/fault"
)

// What the entries of the log say. Details are written by hand, since those of a send are made for every message.

// summary is one line about a draft for the log, with its subject or the first line of its body.
func (d *Draft) summary() string {
	s := d.Type + " to " + d.Target.String()
	if about := Title(d.Content); about != "" {
		s += ": " + about
	}
	return s
}

// details is what the log keeps of a send, as JSON. It is written by hand: it is made for every message.
func (d *Draft) details(out Outcome) string {
	var b strings.Builder
	b.Grow(96)
	b.WriteString(`{"target":`)
	writeJSON(&b, d.Target.String())
	b.WriteString(`,"type":`)
	writeJSON(&b, d.Type)
	writeNumber(&b, `,"priority":`, d.Priority)
	writeNumber(&b, `,"recipients":`, out.Count)
	if out.Refused > 0 {
		writeNumber(&b, `,"refused":`, out.Refused)
	}
	if out.More {
		b.WriteString(`,"more_follow":true`)
	}
	if out.Awaited {
		b.WriteString(`,"awaited":true`)
	}
	b.WriteByte('}')
	return b.String()
}

func writeNumber(b *strings.Builder, field string, n int) {
	b.WriteString(field)
	b.WriteString(strconv.Itoa(n))
}

// writeJSON writes a string as JSON.
func writeJSON(b *strings.Builder, s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c > '~' {
			quoted, _ := json.Marshal(s) // strings always marshal
			b.Write(quoted)
			return
		}
	}
	b.WriteByte('"')
	b.WriteString(s)
	b.WriteByte('"')
}

// counted is "1 claim" or "3 claims".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// OneLine shortens a text so that it fits into a line of the log.
func OneLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 120 {
		s = strings.ToValidUTF8(s[:120], "") + "…"
	}
	return s
}

// Quote returns a string as JSON.
func Quote(s string) string {
	var b strings.Builder
	writeJSON(&b, s)
	return b.String()
}

// RevisionsJSON is an object with one list of revisions.
func RevisionsJSON(field string, revisions []int64) string {
	var b strings.Builder
	b.WriteString(`{"` + field + `":[`)
	for i, r := range revisions {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(r, 10))
	}
	b.WriteString(`]}`)
	return b.String()
}

// Indexed says which draft an error is about: by the names of its fields, or in front of its text if there are
// several drafts.
func Indexed(err error, i, of int) error {
	at := fmt.Sprintf("messages[%d]", i)
	err = Within(at, err)
	var f *fault.Error
	if of == 1 || !errors.As(err, &f) || len(f.Violations) > 0 {
		return err
	}
	clone := *f
	clone.Message = at + ": " + f.Message
	return &clone
}

// Within puts the name of a message in front of the fields of it that an error names.
func Within(at string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || len(f.Violations) == 0 {
		return err
	}
	fields := slices.Clone(f.Violations)
	for n := range fields {
		fields[n].Field = at + "." + fields[n].Field
	}
	named := fault.Fields(fields)
	named.Reason = f.Reason
	return named
}
