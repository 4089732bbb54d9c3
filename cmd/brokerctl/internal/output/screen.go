package output

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// Screen returns where tables are shown: on the terminal, or in a pipe, which is as wide as COLUMNS
// says.
func (o *Output) Screen() table.Screen {
	s := table.Screen{Width: o.Env.Columns, Wide: o.Global.Wide}
	if s.Width == 0 {
		s.Width, _ = strconv.Atoi(o.Env.Get("COLUMNS")) // unlimited if it is no number
	}
	switch o.Global.Color {
	case "always":
		s.Color = true
	case "auto":
		s.Color = o.Env.Columns > 0 && o.Env.Get("NO_COLOR") == "" && o.Env.Get("TERM") != "dumb"
	}
	return s
}

// Paint adds the colour of a state or a severity, on a screen with colours.
func (o *Output) Paint(s string) string {
	if o.Screen().Color {
		return table.Paint(s)
	}
	return s
}

// TerminalColumns returns the width of a terminal, and 0 for another file.
func TerminalColumns(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0
	case width == 0: // a terminal that does not know
		return 80
	}
	return width
}

// Progress shows on the terminal of standard error what a command waits for. The returned function
// erases it. Without a terminal, or without a wait, both do nothing.
func (o *Output) Progress(wait time.Duration, what string) (done func()) {
	if !o.Env.ErrTerminal || wait <= 0 {
		return func() {}
	}
	fmt.Fprintf(o.Env.Err, "waiting up to %s for %s…", prompt.Duration(wait), what)
	return func() { fmt.Fprint(o.Env.Err, "\r\x1b[K") }
}
