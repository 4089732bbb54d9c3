package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/apptest"
)

// helpCharacters is how many characters all help pages may have together, counted as 4 to a token.
const helpCharacters = 38_000 * 4

func TestHelp_EveryPageFitsTheTerminalAndHasAnExample(t *testing.T) {
	rawTypes := regexp.MustCompile(`(?m)^ +(-., )?--\S+ (string|int|float|duration)|default \[`)
	root := newRoot(command.New(setting.Environment{}))
	root.InitDefaultVersionFlag()
	total := 0
	for _, cmd := range allCommands(root) {
		var page bytes.Buffer
		command.WriteHelp(&page, cmd)
		total += utf8.RuneCount(page.Bytes())
		for line := range strings.Lines(page.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
		if raw := rawTypes.FindString(page.String()); raw != "" {
			t.Errorf("%s: %q has pflag's name of a type", cmd.CommandPath(), raw)
		}
		if cmd.Example == "" && !command.IsTopic(cmd) {
			t.Errorf("%s: no example", cmd.CommandPath())
		}
	}
	t.Logf("all help pages have %d characters", total)
	if total > helpCharacters {
		t.Errorf("all pages have %d characters, %d tokens; %d tokens are allowed", total, total/4, helpCharacters/4)
	}
}

// A run adds the flags of the command at hand alone; its page must not show that.
func TestHelp_OfACommandIsTheSameWithTheFlagsOfAll(tt *testing.T) {
	t := newShell(tt)
	root := newRoot(command.New(setting.Environment{}))
	root.InitDefaultVersionFlag()
	for _, cmd := range allCommands(root) {
		var want bytes.Buffer
		command.WriteHelp(&want, cmd)
		words := strings.Fields(cmd.CommandPath())[1:]
		if got := must0(t, append(words, "--help")...); got != want.String() && !command.IsTopic(cmd) {
			t.Errorf("%s --help:\n%s\nwant\n%s", cmd.CommandPath(), got, want.String())
		}
		if got := must0(t, append([]string{"help"}, words...)...); got != want.String() {
			t.Errorf("help %s:\n%s\nwant\n%s", words, got, want.String())
		}
	}
}

func TestHelp_EveryExampleParses(t *testing.T) {
	for _, cmd := range allCommands(newRoot(command.New(setting.Environment{}))) {
		for line := range strings.Lines(strings.NewReplacer("\\\n", " ", "|\n", "| ").Replace(cmd.Example)) {
			_, line, found := strings.Cut(line, "brokerctl ")
			if !found {
				t.Errorf("%s: an example calls no brokerctl: %s", cmd.CommandPath(), line)
				continue
			}
			line, _, _ = strings.Cut(line, " | ")
			line = strings.TrimRight(strings.TrimSpace(strings.SplitN(strings.SplitN(line, " > ", 2)[0], ")  ", 2)[0]), ")")
			root := newRoot(command.New(setting.Environment{}, wordsOf(line)...)) // as the line binds it
			called, rest, err := root.Find(wordsOf(line))
			if err == nil && (called == root || called.HasSubCommands()) {
				t.Errorf("%s: %q calls no command", cmd.CommandPath(), line)
				continue
			}
			if err == nil {
				err = called.ParseFlags(rest)
			}
			if err == nil {
				err = called.ValidateArgs(called.Flags().Args())
			}
			if err == nil {
				err = called.ValidateFlagGroups()
			}
			if err != nil {
				t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
			}
		}
	}
}

// wordsOf splits a line as a shell does, without expansions.
func wordsOf(line string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`).FindAllString(line, -1) {
		all = append(all, strings.NewReplacer("'", "", `"`, "").Replace(m))
	}
	return all
}

// Without the package bash-completion, bash has none of its functions.
func TestCompletion_OfBashNeedsNoOtherPackage(tt *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		tt.Skip("bash is missing")
	}
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	programs := t.TempDir()
	apptest.NoError(t, os.Symlink(os.Args[0], filepath.Join(programs, "brokerctl")))
	for line, want := range map[string]string{
		"brokerctl sen":                                 "send",
		"brokerctl agent get b":                         "builder-1",
		"brokerctl agent get ":                          "builder-1 lead",
		"brokerctl  --agent lead  send role:bu":         "builder", // bash replaces what follows the colon
		"brokerctl agent list --health fai --role lead": "lead",
	} {
		script := must0(t, "completion", "bash") + `
COMP_LINE=$1 COMP_POINT=${#1}
COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
__start_brokerctl
echo "${COMPREPLY[*]}"`
		cmd := t.command(bash, "--norc", "--noprofile", "-c", script, "bash", line)
		cmd.Env = append(program(t), "PATH="+programs+":"+t.Getenv("PATH"))
		out, err := cmd.Output() // compopt complains on standard error, because no Tab was pressed
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", line, got, err, want)
		}
	}
}
