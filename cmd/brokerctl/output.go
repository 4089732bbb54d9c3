package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Output formats.
const (
	formatTable  = "table"
	formatJSON   = "json"
	formatPrompt = "prompt"
)

var outputs = []string{formatTable, formatJSON, formatPrompt}

// format returns the output format that options, environment and file ask for.
func (c *cli) format() (string, error) {
	s, err := c.settings()
	if err != nil {
		return "", err
	}
	if s.output.value == "" {
		return formatTable, nil
	}
	if !slices.Contains(outputs, s.output.value) {
		from := s.output.from + cond(s.output.from == s.file, ": output", "")
		return "", usagef("%s %q is none of %s", from, s.output.value, strings.Join(outputs, ", "))
	}
	return s.output.value, nil
}

// promptOutput is where text for a language model goes: tables become sentences there.
type promptOutput struct{ io.Writer }

// isPrompt reports whether what is written is for a language model.
func isPrompt(w io.Writer) bool {
	_, ok := w.(promptOutput)
	return ok
}

// show prints one answer: as JSON, or as text.
func (c *cli) show(cmd *cobra.Command, m proto.Message, text func(w io.Writer)) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch format {
	case formatJSON:
		return writeJSON(out, m)
	case formatPrompt:
		text(promptOutput{out})
	default:
		text(out)
	}
	return nil
}

// showValue is show for an answer that is put together here.
func (c *cli) showValue(cmd *cobra.Command, v any, text string) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	if format != formatJSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), clean(text))
		return err
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// view is how items of one kind are listed.
type view[T proto.Message] struct {
	columns []string
	row     func(T) []string
	prompt  func(io.Writer, T) // nil: the row's cells in one line, each with its column
	none    string             // said on standard error when there is nothing, unless output is JSON
}

// list prints all items.
func list[T proto.Message](c *cli, cmd *cobra.Command, items []T, v view[T]) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case format == formatJSON:
		for _, item := range items {
			if err := writeJSON(out, item); err != nil {
				return err
			}
		}
	case len(items) == 0:
		fmt.Fprintln(cmd.ErrOrStderr(), v.none)
	case format == formatPrompt && v.prompt != nil:
		for _, item := range items {
			v.prompt(out, item)
		}
	default:
		if format == formatPrompt {
			out = promptOutput{out}
		}
		t := newTable(out, v.columns...)
		for _, item := range items {
			t.row(v.row(item)...)
		}
		return t.flush()
	}
	return nil
}

// follow returns a function that prints items one at a time, as they come. A table cannot wait for its
// widest row then: every column has the width given, the last one takes what it needs.
func follow[T proto.Message](c *cli, cmd *cobra.Command, v view[T], widths ...int) (func(T) error, error) {
	format, err := c.format()
	if err != nil {
		return nil, err
	}
	out := cmd.OutOrStdout()
	switch {
	case format == formatJSON:
		return func(item T) error { return writeJSON(out, item) }, nil
	case format == formatPrompt && v.prompt != nil:
		return func(item T) error { v.prompt(out, item); return nil }, nil
	case format == formatPrompt:
		t := newTable(promptOutput{out}, v.columns...)
		return func(item T) error { t.row(v.row(item)...); return nil }, nil
	}
	line := func(cells []string) error {
		var b strings.Builder
		for i, cell := range cells {
			width := 0
			if i < len(widths) {
				width = widths[i]
			}
			fmt.Fprintf(&b, "%-*s  ", width, oneLine(cell))
		}
		_, err := fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
		return err
	}
	headed := false
	return func(item T) error {
		if !headed {
			headed = true
			if err := line(v.columns); err != nil {
				return err
			}
		}
		return line(v.row(item))
	}, nil
}

// table writes aligned columns; for a language model one line a row instead, "agent builder-1, role builder" for
// AGENT and ROLE. Without columns its rows are a label and a value.
type table struct {
	w       *tabwriter.Writer
	prompt  io.Writer // nil: aligned
	columns []string
}

func newTable(w io.Writer, columns ...string) *table {
	if isPrompt(w) {
		return &table{prompt: w, columns: columns}
	}
	t := &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(columns) > 0 {
		t.row(columns...)
	}
	return t
}

func (t *table) row(cells ...string) {
	if t.prompt != nil {
		t.sentence(cells)
		return
	}
	for i, cell := range cells {
		cell = oneLine(cell)
		if cell == "" && i < len(cells)-1 {
			cell = "-"
		}
		cells[i] = cell
	}
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// sentence writes a row for a language model; what is empty is left out.
func (t *table) sentence(cells []string) {
	if len(t.columns) == 0 {
		fmt.Fprintf(t.prompt, "%s: %s\n", oneLine(cells[0]), oneLine(strings.Join(cells[1:], " ")))
		return
	}
	var parts []string
	for i, cell := range cells {
		if cell = oneLine(cell); cell != "" {
			parts = append(parts, strings.ToLower(t.columns[i])+" "+cell)
		}
	}
	fmt.Fprintln(t.prompt, strings.Join(parts, ", "))
}

func (t *table) flush() error {
	if t.prompt != nil {
		return nil
	}
	return t.w.Flush()
}

// clean replaces what could move the cursor of a terminal, or hide text on it: messages come from
// anybody. Newlines stay.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r), r == '\u200e', r == '\u200f', '\u202a' <= r && r <= '\u202e', '\u2066' <= r && r <= '\u2069':
			return '\ufffd'
		}
		return r
	}, s)
}

// clip shortens a text to one line of at most n runes.
func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// ago says how long a time lies back, such as "3m ago"; "" if there is none.
func (c *cli) ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	d := c.env.Now().Sub(t.AsTime())
	switch {
	case d < -time.Second:
		return "in " + rough(-d)
	case d < time.Second:
		return "now"
	}
	return rough(d) + " ago"
}

// due says when something will happen, such as "in 0.9s".
func (c *cli) due(t *timestamppb.Timestamp) string {
	d := t.AsTime().Sub(c.env.Now())
	switch {
	case d <= 0:
		return "now"
	case d < time.Minute:
		return "in " + max(d.Round(100*time.Millisecond), 100*time.Millisecond).String()
	}
	return "in " + rough(d)
}

// rough says a duration in its largest unit.
func rough(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// short says a duration exactly, without units that are zero at its end: "24h", "1m30s", "0s".
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// shortOf is short for an API duration; "" if there is none.
func shortOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return short(d.AsDuration())
}

// size says a number of bytes in its largest unit.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// count says "1 message", "2 messages", "2 deliveries", "2 keys".
func count[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.HasSuffix(stem, "e") {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// names lists names, and how many more there are if only some are known.
func names(known []string, of int) string {
	const most = 20
	shown := known[:min(len(known), most)]
	s := clean(strings.Join(shown, ", "))
	if more := of - len(shown); more > 0 {
		s += cond(s == "", "", " and ") + fmt.Sprintf("%d more", more)
	}
	return s
}

// cond chooses between two words.
func cond(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// upTo1000 formats a count that the broker ends at 1,000.
func upTo1000(n int64) string {
	if n >= 1000 {
		return "1000+"
	}
	return strconv.FormatInt(n, 10)
}
