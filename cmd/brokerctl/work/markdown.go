package work

import (
	"fmt"
	"io"
	"strings"

	"brokerd/internal/prompt"
)

// markup are the characters that have a meaning in a line of Markdown.
var markup = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`, `<`, `\<`, `>`, `\>`, `|`, `\|`, `~`, `\~`, `&`, `\&`,
)

// inMarkdown writes a text of any origin as one line of Markdown that shows that text. The line can be
// a cell of a table, and follows other text of its line.
func inMarkdown(s string) string {
	return markup.Replace(prompt.Clean(strings.Join(strings.Fields(s), " ")))
}

// A markdownTable writes rows as a table in Markdown. Columns without any value are left out.
type markdownTable struct {
	names []string
	rows  [][]string
}

// NewMarkdownTable returns an empty table.
func NewMarkdownTable(names ...string) *markdownTable { return &markdownTable{names: names} }

// Row adds a row. The cells are plain text of any origin.
func (t *markdownTable) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Write writes the table. It writes nothing if there are no rows.
func (t *markdownTable) Write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	used := make([]bool, len(t.names))
	for _, row := range t.rows {
		for i, cell := range row {
			used[i] = used[i] || cell != ""
		}
	}
	line := func(cells []string) {
		for i, cell := range cells {
			if used[i] {
				fmt.Fprintf(w, "| %s ", cell)
			}
		}
		fmt.Fprintln(w, "|")
	}
	rule := make([]string, len(t.names))
	for i := range rule {
		rule[i] = "---"
	}
	line(t.names)
	line(rule)
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = inMarkdown(cell)
		}
		line(cells)
	}
}
