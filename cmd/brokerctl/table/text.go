package table

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// Width returns how many terminal cells a line of text uses.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	if r < 0x300 { // no wide and no combining character before
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Clip shortens a line of text to at most n terminal cells.
func Clip(s string, n int) string {
	if Width(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	used := 0
	for i, r := range s {
		if used += runeWidth(r); used > n-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// Wrap breaks a line of text between words into lines of at most n terminal cells, and a longer word
// inside.
func Wrap(s string, n int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && Width(line)+1+Width(word) > n {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " " + word
			continue
		}
		for Width(word) > n {
			head, tail := split(word, n)
			lines, word = append(lines, head), tail
		}
		line = word
	}
	return append(lines, line)
}

// split divides a word after as many characters as fit into n cells, at least one.
func split(word string, n int) (head, tail string) {
	used := 0
	for i, r := range word {
		if used += runeWidth(r); used > n && i > 0 {
			return word[:i], word[i:]
		}
	}
	return word, ""
}

// Clean replaces the characters that could move the cursor of a terminal, or hide text on it: agents
// write any text. Newlines stay.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp):
			return '\ufffd'
		}
		return r
	}, s)
}

// OneLine is Clean for a text that is shown in one line: it joins the lines.
func OneLine(s string) string {
	return strings.Join(strings.FieldsFunc(Clean(s), func(r rune) bool { return r == '\n' }), "; ")
}

// Relative writes a distance from now, such as "3m ago", "in 0.9s" or "now".
func Relative(d time.Duration) string {
	switch {
	case d <= -time.Second:
		return Rough(-d) + " ago"
	case d < 50*time.Millisecond:
		return "now"
	case d < 9500*time.Millisecond:
		return "in " + d.Round(100*time.Millisecond).String()
	}
	return "in " + Rough(d)
}

// Rough writes a duration in its largest unit, rounded.
func Rough(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		unit, below time.Duration
		name        string
	}{{time.Second, time.Minute, "s"}, {time.Minute, time.Hour, "m"}, {time.Hour, 2 * day, "h"}} {
		if r := d.Round(u.unit); r < u.below {
			return fmt.Sprintf("%d%s", r/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%dd", d.Round(day)/day)
}
