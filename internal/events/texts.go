package events

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Texts of entries. JSON is written by hand, since there is some for every message.

// WriteJSON writes a string as JSON.
func WriteJSON(b *strings.Builder, s string) {
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

// Counted is "1 claim" or "3 claims".
func Counted(n int, noun string) string {
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
	WriteJSON(&b, s)
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
