package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// Output formats.
const (
	FormatTable  = "table"
	FormatJSON   = "json"
	FormatPrompt = "prompt"
	FormatID     = "id" // only what names things, for scripts
)

// Outputs are the values of --output.
var Outputs = []string{FormatTable, FormatJSON, FormatPrompt, FormatID}

// Output is how one run prints.
type Output struct {
	setting.Resolver
	Prompt *prompt.Writer // standard output, if this run prints for a language model
}

// Format returns the output format that options, environment and file ask for.
func (o *Output) Format() (string, error) {
	s, err := o.Settings()
	if err != nil {
		return "", err
	}
	if s.Output.Value == "" {
		return FormatTable, nil
	}
	if !slices.Contains(Outputs, s.Output.Value) {
		from := s.Output.From + prompt.Either(s.Output.From == s.File, ": output", "")
		return "", problem.Usagef("%s%s is none of %s", from, setting.QuoteWord(s.Output.Value), strings.Join(Outputs, ", "))
	}
	return s.Output.Value, nil
}

// ForModel reports whether this run prints for a language model.
func (o *Output) ForModel() bool {
	format, err := o.Format()
	return err == nil && format == FormatPrompt
}

// PlainOutputs are the commands whose output has no frames in the format prompt, and what it is instead of
// texts of others: brokerctl's own words, data that a program reads, or the output of another program.
var PlainOutputs = map[string]string{
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

// FrameOutput makes what cmd prints a text for a language model, if that is the format. It refuses ids of a command that
// prints no objects of the API.
func (o *Output) FrameOutput(cmd *cobra.Command, format string) error {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	switch plain := PlainOutputs[name]; {
	case format == FormatID && plain != "":
		return problem.Usagef("%s prints %s, which has no ids: -o id is for commands that print objects", cmd.CommandPath(), plain)
	case format == FormatPrompt && plain == "":
		o.Prompt = prompt.NewWriter(cmd.OutOrStdout(), o.Env.Mark, name+": texts of others")
		cmd.Root().SetOut(o.Prompt)
	}
	return nil
}

// EndOutput ends the text for a language model.
func (o *Output) EndOutput() error {
	if o.Prompt == nil {
		return nil
	}
	return o.Prompt.Flush()
}

// ShortID writes the id of a message as its number. Another UUID is only shown with --wide; a name is shown as it is.
// newest is the highest number that it can have.
func (o *Output) ShortID(id string, newest int64) string {
	short := prompt.ShortID(id, newest)
	if format, _ := o.Format(); short == "" && o.Global.Wide && format != FormatPrompt {
		return id
	}
	return short
}

// Apart separates two parts of a text for people by an empty line.
func Apart(w io.Writer) {
	if !prompt.ForModel(w) {
		fmt.Fprintln(w)
	}
}

// Show prints one answer: as JSON, as ids, or as text.
func (o *Output) Show(cmd *cobra.Command, m proto.Message, text func(w io.Writer)) error {
	format, err := o.Format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch format {
	case FormatJSON:
		return WriteJSON(out, m)
	case FormatID:
		return writeIDs(out, m)
	}
	text(out)
	return o.EndOutput() // the command may continue for a long time
}

// ShowValue is show for an answer that is put together here.
func (o *Output) ShowValue(cmd *cobra.Command, v any, text string) error {
	format, err := o.Format()
	if err != nil {
		return err
	}
	if format == FormatID {
		return problem.Usagef("what %s prints has no ids: use -o json", cmd.CommandPath())
	}
	if format != FormatJSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), prompt.Clean(text))
		return err
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// View describes how items of one kind are listed.
type View[T proto.Message] struct {
	Columns []table.Column
	Row     func(T) []string
	Prompt  func(io.Writer, T) // nil: the row's cells in one line, each with its column
	None    string             // said on standard error when there is nothing, unless output is JSON
}

// List prints all items.
func List[T proto.Message](o *Output, cmd *cobra.Command, items []T, v View[T]) error {
	format, err := o.Format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case format == FormatJSON:
		for _, item := range items {
			if err := WriteJSON(out, item); err != nil {
				return err
			}
		}
	case format == FormatID:
		for _, item := range items {
			if err := writeIDs(out, item); err != nil {
				return err
			}
		}
	case len(items) == 0:
		fmt.Fprintln(cmd.ErrOrStderr(), v.None)
	case format == FormatPrompt && v.Prompt != nil:
		for _, item := range items {
			v.Prompt(out, item)
		}
	default:
		t := o.NewTable(out, v.Columns...)
		for _, item := range items {
			t.Row(v.Row(item)...)
		}
		return t.Flush()
	}
	return nil
}

// Follow returns a function that prints items one at a time, as they come, with the columns and the
// layout of list.
func Follow[T proto.Message](o *Output, cmd *cobra.Command, v View[T]) (func(T) error, error) {
	format, err := o.Format()
	if err != nil {
		return nil, err
	}
	out := cmd.OutOrStdout()
	switch format {
	case FormatJSON:
		return func(item T) error { return WriteJSON(out, item) }, nil
	case FormatID:
		return func(item T) error { return writeIDs(out, item) }, nil
	case FormatPrompt:
		print := v.Prompt
		if print == nil {
			t := o.NewTable(out, v.Columns...)
			print = func(_ io.Writer, item T) { t.Row(v.Row(item)...) }
		}
		return func(item T) error {
			print(out, item)
			return o.Prompt.Next()
		}, nil
	}
	lines := table.NewStream(out, o.Screen(), v.Columns...)
	return func(item T) error { return lines.Row(eachOneLine(v.Row(item))...) }, nil
}

// A Table writes rows in columns; for a language model one line a row instead, "agent builder-1,
// role builder" for AGENT and ROLE.
type Table struct {
	w       io.Writer
	columns []table.Column
	aligned *table.Table
}

// NewTable returns an empty table.
func (o *Output) NewTable(w io.Writer, columns ...table.Column) *Table {
	return &Table{w: w, columns: columns, aligned: table.New(o.Screen(), columns...)}
}

// Row adds a row.
func (t *Table) Row(cells ...string) {
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

// Flush writes the rows that are not written yet.
func (t *Table) Flush() error {
	if prompt.ForModel(t.w) {
		return nil
	}
	return t.aligned.Write(t.w)
}

// A Labels writes lines of a label and a value; for a language model "label: value".
type Labels struct {
	w       io.Writer
	aligned *table.Labels
}

// NewLabels returns an empty list of labels.
func (o *Output) NewLabels(w io.Writer) *Labels {
	return &Labels{w: w, aligned: table.NewLabels(o.Screen())}
}

// Line adds a line, unless the value is empty.
func (l *Labels) Line(name, value string) { l.add(l.aligned.Add, name, value) }

// State adds a line whose value is a state or a health, unless it is empty.
func (l *Labels) State(name, value string) { l.add(l.aligned.AddState, name, value) }

func (l *Labels) add(to func(name, value string), name, value string) {
	name, value = prompt.OneLine(name), prompt.OneLine(value)
	switch {
	case value == "":
	case prompt.ForModel(l.w):
		fmt.Fprintf(l.w, "%s: %s\n", name, value)
	default:
		to(name, value)
	}
}

// Flush writes the lines that are not written yet.
func (l *Labels) Flush() {
	_ = l.aligned.Write(l.w) // to the command's own output: an error cannot be reported anywhere
}

// eachOneLine applies oneLine to cells.
func eachOneLine(cells []string) []string {
	lines := each.Of(cells, prompt.OneLine)
	return lines
}

// MostText is how much of a text of any length a table shows, in runes.
const MostText = 500

// Size says a number of bytes in its largest unit.
func Size(n int64) string {
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
