package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
)

func TestTree_AGroupHasAPluralAndVerbsHaveTheirShortForms(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	for _, line := range []string{
		"agents ls", "agents list", "agent ls", "sessions ls", "messages ls", "tokens ls", "threads --help", "states --help",
	} {
		must0(t, strings.Fields(line)...)
	}
	must0(t, "--agent", "lead", "state", "put", "k", "v")
	must0(t, "--agent", "lead", "state", "rm", "k")
	if out := must0(t, "agent", "--help"); !strings.Contains(out, "\nAlias: agents\n") {
		t.Errorf("the help does not show the plural:\n%s", out)
	}
}

func TestTree_EveryListHasALimit(t *testing.T) {
	for _, cmd := range allCommands(newRoot(command.New(setting.Environment{}))) {
		if cmd.Name() == "list" && cmd.Flags().Lookup("limit") == nil {
			t.Errorf("%s takes no --limit", cmd.CommandPath())
		}
		since, until := cmd.Flags().Lookup("since"), cmd.Flags().Lookup("until")
		if (since == nil) != (until == nil) {
			t.Errorf("%s takes only one of --since and --until", cmd.CommandPath())
		}
	}
}

func TestTree_AnUnknownCommandOrOptionNamesTheOneThatIsMeant(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for line, want := range map[string]string{
		"sned":                 "did you mean send?",
		"logs":                 "did you mean event list or event follow?",
		"get agents":           "did you mean agent get?",
		"describe lock":        "did you mean lock get?",
		"register x":           "did you mean agent register or type register?",
		"watch":                "did you mean event follow or state follow?",
		"token show":           "did you mean token get?",
		"lock force-release x": "did you mean lock revoke?",
		"lock unlock x":        "did you mean lock release?",
		"dlq purge":            "did you mean dlq delete?",
		"lcok":                 "did you mean lock?",
		"help lokc":            "did you mean lock?",
		"lcok --help":          `unknown command "lcok" for brokerctl; did you mean lock? (see brokerctl --help)`,
		"-h frobnicate":        `unknown command "frobnicate" for brokerctl (see brokerctl --help)`,
		"lock acquir a --help": `unknown command "acquir" for brokerctl lock; did you mean lock acquire?`,
		"send x --prio 3":      "unknown flag: --prio; did you mean --priority?",
		"claim --wiat 5s":      "unknown flag: --wiat; did you mean --wait?",
		"claim --max 5":        "unknown flag: --max; did you mean --limit?",
		"claim -wait 5s":       "unknown flag: -wait; did you mean --wait?",
		"claim --wait":         "--wait needs a value: --wait DURATION",
		"claim --xyzzy 5":      "unknown flag: --xyzzy (see brokerctl claim --help)",
		"claim --limit x":      `--limit: "x" is not a number`,
		"frobnicate":           `unknown command "frobnicate" for brokerctl (see brokerctl --help)`,
	} {
		got := ctl(t, strings.Fields(line)...)
		if got.code != 2 || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
	got := ctl(t, "get")
	if got.code != 2 || !strings.Contains(got.err, "did you mean agent get, ") || strings.Contains(got.err, "next") {
		t.Errorf("%+v", got)
	}
}

func TestTree_AnUnknownCommandWithHelpIsOneLineOnStandardError(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv(asProgram, "1")
	var out, err bytes.Buffer
	cmd := t.command(self(t), "lcok", "--help")
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run() // the exit code is checked below
	want := "brokerctl: unknown command \"lcok\" for brokerctl; did you mean lock? (see brokerctl --help)\n"
	if code := cmd.ProcessState.ExitCode(); code != problem.ExitUsage || out.Len() > 0 || err.String() != want {
		t.Errorf("exit code %d, output %q, errors %q", code, out.String(), err.String())
	}
}

// allCommands returns a command and all below it, help topics included.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}
