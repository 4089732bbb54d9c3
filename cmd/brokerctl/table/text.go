package table

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Width returns how many terminal cells a line of text uses.
func Width(s string) int { return ansi.StringWidth(s) }

// Clip shortens a line of text to at most n terminal cells.
func Clip(s string, n int) string { return ansi.Truncate(s, max(n, 0), "…") }

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
	if head = ansi.Truncate(word, n, ""); head == "" {
		head, _ = ansi.FirstGraphemeCluster(word, ansi.GraphemeWidth)
	}
	return head, word[len(head):]
}
