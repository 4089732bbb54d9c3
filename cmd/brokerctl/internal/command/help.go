package command

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

const (
	helpWidth  = 80
	flagColumn = 24 // where the text of an option begins at the latest; a longer option has it on the next line
)

// WriteHelp writes the help page of a command.
func WriteHelp(w io.Writer, cmd *cobra.Command) {
	text := cmp.Or(cmd.Long, cmd.Short+".")
	fmt.Fprintf(w, "%s\n", reflow(text, helpWidth))
	if cmd.Runnable() {
		fmt.Fprintf(w, "\nUsage: %s\n", strings.ReplaceAll(UseLine(cmd), "\n", "\n  "))
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "Alias: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	inGroup := func(id string) func(*cobra.Command) bool {
		return func(sub *cobra.Command) bool { return sub.GroupID == id && sub.IsAvailableCommand() }
	}
	writeStart(w, cmd)
	for _, g := range cmd.Groups() {
		writeCommands(w, g.Title, cmd, inGroup(g.ID))
	}
	writeCommands(w, "Commands:", cmd, inGroup(""))
	writeCommands(w, "Help topics (brokerctl help TOPIC):", cmd, IsTopic)
	if usages := FlagUsages(OwnFlags(cmd), helpWidth); usages != "" {
		fmt.Fprintf(w, "\n%s:\n%s", prompt.Either(cmd.HasParent(), "Flags", "Global flags"), usages)
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasParent() && !IsTopic(cmd) {
		fmt.Fprint(w, "\nGlobal flags: --agent, --session, --addr, --output (brokerctl --help)\n")
	}
}

// StartHere is the annotation of the root with the commands that a new user needs first, with commas between them.
const StartHere = "start here"

// writeStart lists the commands that a new user needs first.
func writeStart(w io.Writer, root *cobra.Command) {
	paths := strings.Split(root.Annotations[StartHere], ",")
	if paths[0] == "" {
		return
	}
	column := 0
	for _, path := range paths {
		column = max(column, len(path)+4)
	}
	fmt.Fprint(w, "\nStart here:\n")
	for _, path := range paths {
		cmd, _, err := root.Find(strings.Fields(path))
		Must(err)
		fmt.Fprintf(w, "  %-*s%s\n", column-2, path, hang(cmd.Short, helpWidth-column, column))
	}
}

// FlagsOf is the annotation of a command that also takes the flags of another one: its page does
// not repeat them, its text names the other command.
const FlagsOf = "flags of"

// OwnFlags returns the flags that a command's page describes.
func OwnFlags(cmd *cobra.Command) *pflag.FlagSet {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	other := &cobra.Command{}
	if path := cmd.Annotations[FlagsOf]; path != "" {
		var err error
		other, _, err = cmd.Root().Find(strings.Fields(path))
		Must(err)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if same := other.LocalFlags().Lookup(f.Name); same == nil || same.Usage != f.Usage || same.DefValue != f.DefValue {
			own.AddFlag(f)
		}
	})
	return own
}

// UseLine is how a command is written.
func UseLine(cmd *cobra.Command) string {
	line := cmd.UseLine()
	if cmd.HasParent() && FlagUsages(cmd.LocalFlags(), helpWidth) == "" {
		line = strings.TrimSuffix(line, " [flags]")
	}
	return reflow(line+prompt.Either(cmd.HasParent(), "", " COMMAND"), helpWidth-len("Usage: "))
}

// IsTopic reports whether a command is a page of help and nothing else.
func IsTopic(cmd *cobra.Command) bool { return !cmd.Runnable() && !cmd.HasSubCommands() }

// writeCommands lists commands below another one.
func writeCommands(w io.Writer, title string, parent *cobra.Command, listed func(*cobra.Command) bool) {
	column := 0
	for _, sub := range parent.Commands() {
		if listed(sub) {
			column = max(column, len(sub.Name())+4)
		}
	}
	if column == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, sub := range parent.Commands() {
		if listed(sub) {
			fmt.Fprintf(w, "  %-*s%s\n", column-2, sub.Name(), hang(sub.Short, helpWidth-column, column))
		}
	}
}

// trailing is the space at the end of a line, of an option without a text.
var trailing = regexp.MustCompile(` +\n`)

// FlagUsages describes options, one a line.
func FlagUsages(flags *pflag.FlagSet, width int) string {
	var heads, texts []string
	column := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		head := "  " + prompt.Either(f.Shorthand != "", "-"+f.Shorthand+", ", "") + "--" + f.Name
		if name := valueOf(f); name != "" {
			head += " " + name
		}
		text := f.Usage
		switch f.DefValue {
		case "", "0", "0s", "false", "[]":
		default:
			text += " (default " + f.DefValue + ")"
		}
		heads, texts = append(heads, head), append(texts, text)
		if len(head)+2 <= flagColumn {
			column = max(column, len(head)+2)
		}
	})
	var b strings.Builder
	for i, head := range heads {
		if len(head)+2 > column {
			head += "\n"
			fmt.Fprintf(&b, "%s%*s", head, column, "")
		} else {
			fmt.Fprintf(&b, "%-*s", column, head)
		}
		b.WriteString(hang(texts[i], width-column, column) + "\n")
	}
	return trailing.ReplaceAllString(b.String(), "\n")
}

// hang wraps a text whose lines but the first are indented.
func hang(text string, width, indent int) string {
	return strings.ReplaceAll(reflow(text, width), "\n", "\n"+strings.Repeat(" ", indent))
}

// reflow wraps the paragraphs of a text; lines that are indented stay as they are.
func reflow(text string, width int) string {
	var lines []string
	open := false // the last line is of a paragraph that goes on
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		if line == "" || strings.HasPrefix(line, " ") {
			lines, open = append(lines, line), false
			continue
		}
		for word := range strings.FieldsSeq(line) {
			if last := len(lines) - 1; open && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= width {
				lines[last] += " " + word
			} else {
				lines, open = append(lines, word), true
			}
		}
	}
	return strings.Join(lines, "\n")
}

// NewHelpCommand returns the command that prints help pages.
func NewHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Help for a command or a topic",
		Example: "  brokerctl help lock acquire\n  brokerctl help receivers",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var words []string
			if at, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range at.Commands() {
					if sub.IsAvailableCommand() || IsTopic(sub) {
						words = append(words, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && (at.HasSubCommands() || at == cmd.Root()) {
				return UnknownCommand(at, rest)
			}
			at.InitDefaultVersionFlag() // as cobra does before --help
			return at.Help()
		},
	}
}

// bashCompletion writes the script for bash. That of cobra needs a function of the package bash-completion, which a
// machine may not have; the words before the cursor are all that it takes from it.
func bashCompletion(root *cobra.Command, w io.Writer) error {
	const (
		ofPackage = `_get_comp_words_by_ref "$@" cur prev words cword`
		own       = `local before=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$before"
    [[ $before != *[[:space:]] ]] || words+=("")
    cword=$((${#words[@]} - 1)) cur=${words[-1]} prev=${words[-2]}`
	)
	var script strings.Builder
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.Replace(script.String(), ofPackage, own, 1))
	return err
}

// NewCompletionCommand returns the command that writes completion scripts.
func NewCompletionCommand() *cobra.Command {
	shells := map[string]func(*cobra.Command, io.Writer) error{
		"bash":       bashCompletion,
		"zsh":        func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": func(root *cobra.Command, w io.Writer) error { return root.GenPowerShellCompletionWithDesc(w) },
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print the script that completes commands in a shell",
		Long: `Print the script that completes commands, options, and names that the broker
knows, such as agents, roles, claims, locks and keys.`,
		Example: `  source <(brokerctl completion bash)      # in ~/.bashrc
  source <(brokerctl completion zsh)       # in ~/.zshrc
  brokerctl completion fish > ~/.config/fish/completions/brokerctl.fish`,
		DisableFlagsInUseLine: true,
		Args:                  Exactly("the shell"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return slices.Sorted(maps.Keys(shells)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := shells[args[0]]
			if !ok {
				return problem.Usagef("%q is none of bash, zsh, fish and powershell", args[0])
			}
			return write(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
