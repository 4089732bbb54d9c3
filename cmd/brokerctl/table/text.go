package table

import (
	"strings"
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
