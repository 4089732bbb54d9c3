// Package table lays out text so that it fits a screen.
//
// A table first omits the columns without any value, then drops columns in the order of their
// rank, and then clips the columns that may be clipped, the widest first. A row is never wider than
// the screen. Widths count the cells that a terminal uses: two for a wide character, none for a
// combining one. Colour is added after the layout and does not count.
package table

import (
	"io"
	"slices"
	"strings"

	"brokerd/cmd/brokerctl/internal/each"
)

// Screen describes where a table is shown.
type Screen struct {
	Width int  // in terminal cells; 0 = unlimited
	Color bool // whether to write escape codes for colour
	Wide  bool // show every column in full, whatever the width
}

// Column describes one column.
type Column struct {
	Name    string
	Rank    int  // 0 = never dropped; of the others, the column with the highest rank is dropped first
	Min     int  // the width down to which cells may be clipped; 0 = not clipped while the others can be
	Typical int  // the width in a table whose rows are not known in advance; 0 = that of the name
	Wide    bool // only shown with Screen.Wide

	State bool // cells name a state or a health, which has a colour
}

const (
	gap     = "  "
	missing = "-" // an empty cell
)

// A Table collects rows and then writes them.
type Table struct {
	screen  Screen
	columns []Column
	rows    [][]string
}

// New returns an empty table.
func New(s Screen, columns ...Column) *Table { return &Table{screen: s, columns: columns} }

// Row adds a row. Each cell is one line of text, without escape codes.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Write writes the head and the rows.
func (t *Table) Write(w io.Writer) error {
	natural := make([]int, len(t.columns))
	for i, c := range t.columns {
		natural[i] = -1 // no value so far
		if t.screen.Wide {
			natural[i] = Width(c.Name)
		}
		for _, row := range t.rows {
			if row[i] != "" {
				natural[i] = max(natural[i], Width(row[i]), Width(c.Name))
			}
		}
	}
	l := newLayout(t.screen, t.columns, natural)
	if err := l.head(w); err != nil {
		return err
	}
	for _, row := range t.rows {
		if err := l.row(w, row); err != nil {
			return err
		}
	}
	return nil
}

// A Stream writes rows as they come, with the columns and the layout of a table.
type Stream struct {
	w      io.Writer
	layout layout
	headed bool
}

// NewStream returns a stream that has written nothing yet. The last column takes the remaining
// width.
func NewStream(w io.Writer, s Screen, columns ...Column) *Stream {
	natural := each.Of(columns, func(c Column) int { return max(c.Typical, Width(c.Name)) })
	l := newLayout(s, columns, natural)
	if n := len(l.widths); n > 0 && s.Width > 0 && !s.Wide {
		l.widths[n-1] += max(s.Width-l.total(), 0)
	}
	return &Stream{w: w, layout: l}
}

// Row writes a row, and the head before the first one.
func (s *Stream) Row(cells ...string) error {
	if !s.headed {
		s.headed = true
		if err := s.layout.head(s.w); err != nil {
			return err
		}
	}
	return s.layout.row(s.w, cells)
}

// layout says which columns are shown, and how wide they are.
type layout struct {
	screen  Screen
	columns []Column
	shown   []int // indexes of columns
	widths  []int // of the shown ones
}

// newLayout fits columns with these natural widths to the screen; a column with a negative width is
// left out.
func newLayout(s Screen, columns []Column, natural []int) layout {
	l := layout{screen: s, columns: columns}
	for i, c := range columns {
		if natural[i] >= 0 && (s.Wide || !c.Wide) {
			l.shown, l.widths = append(l.shown, i), append(l.widths, natural[i])
		}
	}
	if s.Width <= 0 || s.Wide {
		return l
	}
	for l.least() > s.Width && l.drop() {
	}
	for l.total() > s.Width && l.shrink(func(c Column) int { return max(c.Min, 1) }, func(c Column) bool { return c.Min > 0 }) {
	}
	for l.total() > s.Width && l.shrink(func(Column) int { return 1 }, func(Column) bool { return true }) {
	}
	for len(l.shown) > 1 && l.total() > s.Width {
		l.remove(len(l.shown) - 1)
	}
	return l
}

// total is the width of a row.
func (l *layout) total() int {
	n := len(gap) * (len(l.widths) - 1)
	for _, w := range l.widths {
		n += w
	}
	return n
}

// least is the width of a row whose cells are clipped as far as they may be.
func (l *layout) least() int {
	n := l.total()
	for i, w := range l.widths {
		if c := l.columns[l.shown[i]]; c.Min > 0 {
			n -= max(w-c.Min, 0)
		}
	}
	return n
}

// drop removes the column with the highest rank, of equal ones the last; false if none may be.
func (l *layout) drop() bool {
	last := -1
	for i, column := range l.shown {
		if rank := l.columns[column].Rank; rank > 0 && (last < 0 || rank >= l.columns[l.shown[last]].Rank) {
			last = i
		}
	}
	if last >= 0 {
		l.remove(last)
	}
	return last >= 0
}

func (l *layout) remove(i int) {
	l.shown, l.widths = slices.Delete(l.shown, i, i+1), slices.Delete(l.widths, i, i+1)
}

// shrink narrows the widest column that is above its limit by one; false if there is none.
func (l *layout) shrink(limit func(Column) int, may func(Column) bool) bool {
	widest := -1
	for i, w := range l.widths {
		c := l.columns[l.shown[i]]
		if may(c) && w > limit(c) && (widest < 0 || w > l.widths[widest]) {
			widest = i
		}
	}
	if widest >= 0 {
		l.widths[widest]--
	}
	return widest >= 0
}

func (l *layout) head(w io.Writer) error {
	names := each.Of(l.columns, func(c Column) string { return c.Name })
	return l.line(w, names, func(_ Column, s string) string { return s })
}

func (l *layout) row(w io.Writer, cells []string) error {
	return l.line(w, cells, func(c Column, s string) string {
		if c.State && l.screen.Color {
			return Paint(s)
		}
		return s
	})
}

// line writes one line. A cell that is wider than its column takes the space from the rest of the line.
func (l *layout) line(w io.Writer, cells []string, paint func(Column, string) string) error {
	var b strings.Builder
	left, owed := l.screen.Width, 0 // owed: by how much the line is ahead of its columns
	limited := left > 0 && !l.screen.Wide
	for i, column := range l.shown {
		c, last := l.columns[column], i == len(l.shown)-1
		cell := cells[column]
		if cell == "" && !last {
			cell = missing
		}
		if limited {
			if i > 0 && left <= len(gap) {
				break
			}
			if i > 0 {
				left -= len(gap)
			}
			if c.Min > 0 || last {
				cell = Clip(cell, l.widths[i])
			}
			cell = Clip(cell, left)
		}
		width := Width(cell)
		left -= width
		if i > 0 {
			b.WriteString(gap)
		}
		b.WriteString(paint(c, cell))
		if last {
			break
		}
		pad := l.widths[i] - width - owed
		owed = max(-pad, 0)
		pad = max(pad, 0)
		if limited {
			pad = min(pad, max(left, 0))
		}
		b.WriteString(strings.Repeat(" ", pad))
		left -= pad
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), " ")+"\n")
	return err
}
