package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
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
		from := s.output.from + prompt.Either(s.output.from == s.file, ": output", "")
		return "", usagef("%s%s is none of %s", from, quoteWord(s.output.value), strings.Join(outputs, ", "))
	}
	return s.output.value, nil
}

// forModel reports whether this run prints for a language model.
func (c *cli) forModel() bool {
	format, err := c.format()
	return err == nil && format == formatPrompt
}

// plainOutputs are the commands whose output has no frames in the format prompt, and what it is instead of
// texts of others: brokerctl's own words, data that a program reads, or the output of another program.
var plainOutputs = map[string]string{
	"admin backup":      "the backup",
	"agent run":         "the output of the program",
	"artifact download": "the content of the artifact",
	"bench":             "measurements",
	"bridge":            "no output",
	"call":              "JSON",
	"completion":        "a script for a shell",
	"credential tls":    "the names of files",
	"dashboard":         "a link",
	"demo":              "the demonstration's own story",
	"down":              "brokerctl's own words",
	"guide":             "brokerctl's own words",
	"help":              "brokerctl's own words",
	"init":              "brokerctl's own words",
	"lock run":          "the output of the program",
	"man":               "brokerctl's own words",
	"mcp":               "results of tools, each with its frames",
	"ping":              "brokerctl's own words",
	"setup":             "brokerctl's own words",
	"task work":         "the output of the program",
	"token run":         "the output of the program",
	"top":               "a screen for a person",
	"up":                "brokerctl's own words",
	"version":           "brokerctl's own words",
	"work":              "the output of the program",
	"trust":             "the path of the file; standard error has its values",
}

// frameOutput makes what cmd prints a text for a language model, if that is the format.
func (c *cli) frameOutput(cmd *cobra.Command, format string) {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	if format != formatPrompt || plainOutputs[name] != "" {
		return
	}
	c.prompt = prompt.NewWriter(cmd.OutOrStdout(), c.env.Mark, name+": texts of others")
	cmd.Root().SetOut(c.prompt)
}

// endOutput ends the text for a language model.
func (c *cli) endOutput() error {
	if c.prompt == nil {
		return nil
	}
	return c.prompt.Flush()
}

// apart separates two parts of a text for people by an empty line.
func apart(w io.Writer) {
	if !prompt.ForModel(w) {
		fmt.Fprintln(w)
	}
}

// show prints one answer: as JSON, or as text.
func (c *cli) show(cmd *cobra.Command, m proto.Message, text func(w io.Writer)) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if format == formatJSON {
		return writeJSON(out, m)
	}
	text(out)
	return c.endOutput() // the command may continue for a long time
}

// showValue is show for an answer that is put together here.
func (c *cli) showValue(cmd *cobra.Command, v any, text string) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	if format != formatJSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), prompt.Clean(text))
		return err
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// view describes how items of one kind are listed.
type view[T proto.Message] struct {
	columns []table.Column
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
		t := c.newTable(out, v.columns...)
		for _, item := range items {
			t.row(v.row(item)...)
		}
		return t.flush()
	}
	return nil
}

// follow returns a function that prints items one at a time, as they come, with the columns and the
// layout of list.
func follow[T proto.Message](c *cli, cmd *cobra.Command, v view[T]) (func(T) error, error) {
	format, err := c.format()
	if err != nil {
		return nil, err
	}
	out := cmd.OutOrStdout()
	switch format {
	case formatJSON:
		return func(item T) error { return writeJSON(out, item) }, nil
	case formatPrompt:
		print := v.prompt
		if print == nil {
			t := c.newTable(out, v.columns...)
			print = func(_ io.Writer, item T) { t.row(v.row(item)...) }
		}
		return func(item T) error {
			print(out, item)
			return c.prompt.Next()
		}, nil
	}
	lines := table.NewStream(out, c.screen(), v.columns...)
	return func(item T) error { return lines.Row(eachOneLine(v.row(item))...) }, nil
}

// textTable writes rows in columns; for a language model one line a row instead, "agent builder-1,
// role builder" for AGENT and ROLE.
type textTable struct {
	w       io.Writer
	columns []table.Column
	aligned *table.Table
}

func (c *cli) newTable(w io.Writer, columns ...table.Column) *textTable {
	return &textTable{w: w, columns: columns, aligned: table.New(c.screen(), columns...)}
}

func (t *textTable) row(cells ...string) {
	cells = eachOneLine(cells)
	if !prompt.ForModel(t.w) {
		t.aligned.Row(cells...)
		return
	}
	var parts []string
	for i, cell := range cells {
		if cell != "" && !t.columns[i].Wide {
			parts = append(parts, strings.ToLower(t.columns[i].Name)+" "+cell)
		}
	}
	fmt.Fprintln(t.w, strings.Join(parts, ", "))
}

func (t *textTable) flush() error {
	if prompt.ForModel(t.w) {
		return nil
	}
	return t.aligned.Write(t.w)
}

// textLabels writes lines of a label and a value; for a language model "label: value".
type textLabels struct {
	w       io.Writer
	aligned *table.Labels
}

func (c *cli) newLabels(w io.Writer) *textLabels {
	return &textLabels{w: w, aligned: table.NewLabels(c.screen())}
}

// line adds a line, unless the value is empty.
func (l *textLabels) line(name, value string) { l.add(l.aligned.Add, name, value) }

// state adds a line whose value is a state or a health, unless it is empty.
func (l *textLabels) state(name, value string) { l.add(l.aligned.AddState, name, value) }

func (l *textLabels) add(to func(name, value string), name, value string) {
	name, value = prompt.OneLine(name), prompt.OneLine(value)
	switch {
	case value == "":
	case prompt.ForModel(l.w):
		fmt.Fprintf(l.w, "%s: %s\n", name, value)
	default:
		to(name, value)
	}
}

func (l *textLabels) flush() {
	_ = l.aligned.Write(l.w) // to the command's own output: an error cannot be reported anywhere
}

// eachOneLine applies oneLine to cells.
func eachOneLine(cells []string) []string {
	lines := make([]string, len(cells))
	for i, cell := range cells {
		lines[i] = prompt.OneLine(cell)
	}
	return lines
}

// mostText is how much of a text of any length a table shows, in runes.
const mostText = 500

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
