package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/apptest"
)

const (
	referenceFile  = "../../docs/brokerctl.md"
	referenceWidth = 100
)

// update is how `make generate` makes the reference.
var update = flag.Bool("update", false, "write docs/brokerctl.md instead of comparing it")

func TestReference_IsMadeFromTheCommands(t *testing.T) {
	want := reference(newRoot(command.New(setting.Environment{})))
	if *update {
		apptest.NoError(t, os.WriteFile(referenceFile, []byte(want), 0o644))
		return
	}
	got, err := os.ReadFile(referenceFile)
	apptest.NoError(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/brokerctl.md is not what the commands say; run make generate (-commands +file):\n%s", diff)
	}
}

// reference is the page about all commands.
func reference(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprint(&b, "<!-- Made from the commands by `make generate`; change the commands. -->\n# brokerctl\n\n", prose(root.Long), "\n")
	for _, group := range root.Groups() {
		var rows strings.Builder
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && shown(cmd) {
				fmt.Fprintf(&rows, "| [`%s`](#%s) | %s |\n", cmd.Name(), anchor(cmd), cmd.Short)
			}
		}
		if rows.Len() > 0 {
			fmt.Fprintf(&b, "| %s | |\n|---|---|\n%s\n", strings.TrimSuffix(group.Title, ":"), rows.String())
		}
	}
	b.WriteString("## Options of every command\n\n")
	options(&b, root.PersistentFlags())
	for _, cmd := range root.Commands() {
		section(&b, cmd)
	}
	for _, cmd := range root.Commands() {
		if command.IsTopic(cmd) {
			fmt.Fprintf(&b, "## %s\n\n%s\n", cmd.Short, prose(cmd.Long))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// section describes a command, and then those below it.
func section(b *strings.Builder, cmd *cobra.Command) {
	if !shown(cmd) {
		return
	}
	fmt.Fprintf(b, "## %s\n\n", cmd.CommandPath())
	if cmd.Long != "" {
		fmt.Fprintf(b, "%s\n", prose(cmd.Long))
	} else {
		fmt.Fprintf(b, "%s.\n\n", cmd.Short)
	}
	if !cmd.HasSubCommands() {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", command.UseLine(cmd))
	}
	for _, sub := range cmd.Commands() {
		if shown(sub) {
			fmt.Fprintf(b, "- [`%s`](#%s): %s\n", sub.Name(), anchor(sub), sub.Short)
		}
	}
	if cmd.HasSubCommands() {
		b.WriteString("\n")
	}
	options(b, command.OwnFlags(cmd))
	if cmd.Example != "" {
		fmt.Fprint(b, "```sh\n")
		for line := range strings.Lines(cmd.Example) {
			b.WriteString(strings.TrimPrefix(line, "  "))
		}
		fmt.Fprint(b, "\n```\n\n")
	}
	for _, sub := range cmd.Commands() {
		section(b, sub)
	}
}

func shown(cmd *cobra.Command) bool { return cmd.IsAvailableCommand() && cmd.Name() != "help" }

func anchor(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func options(b *strings.Builder, flags *pflag.FlagSet) {
	if usages := command.FlagUsages(flags, referenceWidth); usages != "" {
		fmt.Fprintf(b, "```text\n%s```\n\n", usages)
	}
}

// prose makes Markdown of a help text: what is indented in it is kept as it is.
func prose(text string) string {
	var b strings.Builder
	verbatim := false
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != verbatim {
			if verbatim = indented; verbatim {
				b.WriteString("\n```text\n")
			} else {
				b.WriteString("```\n\n")
			}
		}
		if verbatim {
			b.WriteString(strings.TrimPrefix(line, "  "))
		} else {
			b.WriteString(strings.NewReplacer("*", `\*`, "<", "&lt;").Replace(line))
		}
	}
	if verbatim {
		b.WriteString("```\n")
	}
	return strings.ReplaceAll(b.String(), "\n\n\n", "\n\n")
}
