// Package manual writes man pages of a command line: one for the program and one for each command.
package manual

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// optionsWidth is the width of a list of options, in columns. A man page indents it by 7 on a
// terminal of 80.
const optionsWidth = 72

// NewCommand returns a hidden command that writes the pages of the program that it is added to.
// options formats flags for a number of columns.
func NewCommand(options func(flags *pflag.FlagSet, width int) string) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write man pages of all commands into a folder",
		Long:    "man writes a man page of each command into a folder that exists.",
		Example: "  brokerctl man /usr/local/share/man/man1",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return write(args[0], cmd.Root(), options)
		},
	}
}

// write writes the page of a command and those of the commands below it.
func write(dir string, cmd *cobra.Command, options func(*pflag.FlagSet, int) string) error {
	var b bytes.Buffer
	writePage(&b, cmd, options)
	err := os.WriteFile(filepath.Join(dir, pageName(cmd)+".1"), b.Bytes(), 0o644)
	for _, sub := range below(cmd) {
		err = errors.Join(err, write(dir, sub, options))
	}
	return err
}

// pageName is the name of a command's page, such as brokerctl-lock-run.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// below returns the commands and the help topics below a command that have a page.
func below(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			list = append(list, sub)
		}
	}
	return list
}

// writePage writes a page as the man macros of roff. It has no date, so that a build can be repeated.
func writePage(w io.Writer, cmd *cobra.Command, options func(*pflag.FlagSet, int) string) {
	root := cmd.Root()
	fmt.Fprintf(w, ".TH \"%s\" 1 \"\" \"%s %s\" \"brokerd\"\n",
		escape(strings.ToUpper(pageName(cmd))), escape(root.Name()), escape(root.Version))
	fmt.Fprintln(w, ".nh\n.ad l") // no hyphens and no extra spaces, so that names stay as they are
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", escape(pageName(cmd)), escape(cmd.Short))
	if cmd.Runnable() {
		section(w, "SYNOPSIS")
		verbatim(w, cmd.UseLine())
	}
	section(w, "DESCRIPTION")
	prose(w, cmd.Long, cmd.Short+".")
	if subs := below(cmd); len(subs) > 0 {
		section(w, "COMMANDS")
		for _, sub := range subs {
			fmt.Fprintf(w, ".TP\n.B %s\n%s\n", escape(sub.Name()), line(sub.Short))
		}
	}
	if text := options(cmd.LocalFlags(), optionsWidth); text != "" {
		section(w, "OPTIONS")
		verbatim(w, text)
	}
	if cmd.Example != "" {
		section(w, "EXAMPLES")
		verbatim(w, cmd.Example)
	}
	var others []string
	if cmd.HasParent() {
		others = append(others, pageName(cmd.Parent()))
	}
	for _, sub := range below(cmd) {
		others = append(others, pageName(sub))
	}
	if len(others) > 0 {
		section(w, "SEE ALSO")
		for i, name := range others {
			comma := ","
			if i == len(others)-1 {
				comma = ""
			}
			fmt.Fprintf(w, ".BR %s (1)%s\n", escape(name), comma)
		}
	}
}

func section(w io.Writer, title string) { fmt.Fprintf(w, ".SH %s\n", title) }

// prose writes paragraphs, or the text instead if there are none. A block that is indented keeps its
// lines.
func prose(w io.Writer, text, instead string) {
	if strings.TrimSpace(text) == "" {
		text = instead
	}
	indented := false
	for l := range strings.Lines(strings.TrimSpace(text) + "\n") {
		l = strings.TrimRight(l, "\n")
		if now := strings.HasPrefix(l, " ") || strings.HasPrefix(l, "\t"); now != indented && l != "" {
			indented = now
			fmt.Fprintln(w, map[bool]string{true: ".PP\n.nf", false: ".fi\n.PP"}[now])
		}
		if l == "" && !indented {
			fmt.Fprintln(w, ".PP")
		} else {
			fmt.Fprintln(w, line(l))
		}
	}
	if indented {
		fmt.Fprintln(w, ".fi")
	}
}

// verbatim writes a text whose lines are kept.
func verbatim(w io.Writer, text string) {
	fmt.Fprintln(w, ".nf")
	for l := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		fmt.Fprintln(w, line(strings.TrimRight(l, "\n")))
	}
	fmt.Fprintln(w, ".fi")
}

// line escapes a line of text, which is never a macro.
func line(text string) string {
	text = escape(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

// escape escapes what roff replaces: a plain quote, accent or minus would become another character,
// which cannot be pasted into a shell.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(text)
}
