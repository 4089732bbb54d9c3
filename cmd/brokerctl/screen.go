package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// screenOptions say how text is laid out and coloured, and how times are written.
type screenOptions struct {
	color    string
	wide     bool
	absolute bool
	utc      bool
	relative bool
}

var colorChoices = []string{"auto", "always", "never"}

// AddFlags adds the options.
func (o *screenOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.color, "color", "auto", strings.Join(colorChoices, ", ")+" (NO_COLOR)")
	f.BoolVar(&o.wide, "wide", false, "show all columns in full")
	f.BoolVar(&o.absolute, "absolute", false, "show times as local times")
	f.BoolVar(&o.utc, "utc", false, "show times as UTC")
	f.BoolVar(&o.relative, "relative", false, "show times as distances from now")
}

// check reports options that cannot be right.
func (o *screenOptions) check() error {
	switch {
	case !slices.Contains(colorChoices, o.color):
		return usagef("--color %q is none of %s", o.color, strings.Join(colorChoices, ", "))
	case o.absolute && o.utc:
		return usagef("--absolute and --utc exclude each other")
	case o.relative && (o.absolute || o.utc):
		return usagef("--relative excludes --absolute and --utc")
	}
	return nil
}

// screen returns where tables are shown: on the terminal, or in a pipe, which is as wide as COLUMNS
// says.
func (c *cli) screen() table.Screen {
	s := table.Screen{Width: c.env.Columns, Wide: c.global.wide}
	if s.Width == 0 {
		s.Width, _ = strconv.Atoi(c.env.get("COLUMNS")) // unlimited if it is no number
	}
	switch c.global.color {
	case "always":
		s.Color = true
	case "auto":
		s.Color = c.env.Columns > 0 && c.env.get("NO_COLOR") == "" && c.env.get("TERM") != "dumb"
	}
	return s
}

// paint adds the colour of a state or a severity, on a screen with colours.
func (c *cli) paint(s string) string {
	if c.screen().Color {
		return table.Paint(s)
	}
	return s
}

// terminalColumns returns the width of a terminal, and 0 for another file.
func terminalColumns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0: // a terminal that does not know
		return 80
	}
	return int(size.Col)
}

// progress shows on the terminal of standard error what a command waits for. The returned function
// erases it. Without a terminal, or without a wait, both do nothing.
func (c *cli) progress(wait time.Duration, what string) (done func()) {
	if !c.env.ErrTerminal || wait <= 0 {
		return func() {}
	}
	fmt.Fprintf(c.env.Err, "waiting up to %s for %s…", prompt.Duration(wait), what)
	return func() { fmt.Fprint(c.env.Err, "\r\x1b[K") }
}
