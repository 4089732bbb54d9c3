package main

import (
	"net"
	"os"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/apptest"
)

// inPath puts brokerctl into the PATH of the shell, as coding agents need it.
func inPath(t *shell) {
	t.Helper()
	for _, variable := range program(t) {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}

// A member of a team is a coding agent with its name.
type teamMember struct{ vendor, agent, role string }

var team = []teamMember{
	{"claude-code", "claude-1", "lead"}, {"codex", "codex-1", "builder"}, {"gemini", "gemini-1", "reviewer"},
}

// serverArgs returns the arguments of the MCP server that the files of a coding agent have.
func serverArgs(t *shell, vendor string) []string {
	t.Helper()
	v, err := setup.Find(vendor, setup.Options{})
	apptest.NoError(t, err)
	text, err := os.ReadFile(t.path(v.Files[0].Path))
	apptest.NoError(t, err)
	if name := v.Files[0].Agent(setup.Content{Text: string(text), Exists: true}); name != "" {
		return []string{"--agent", name}
	}
	return nil
}

func TestSetup_SeveralCodingAgentsInAFolderActUnderTheirOwnNames(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	inPath(t)
	var out string
	for _, m := range team {
		out = must0(t, "setup", m.vendor, "--agent", m.agent, "--role", m.role)
		if want := "ok         hooks: brokerctl hook " + m.vendor + " --agent " + m.agent + " answers\n"; !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
	if !strings.Contains(out, "this folder has several (claude-1, codex-1, gemini-1): export BROKERD_AGENT=NAME") {
		t.Errorf("%s", out)
	}
	for _, i := range []int{1, 2, 0} { // whatever the order in which they start
		m := team[i]
		startModel(t, serverArgs(t, m.vendor)...).call("turn", `{}`, "You are the agent "+m.agent+" ("+m.role+")")
	}
	write := func(vendor string, args ...string) result {
		if vendor == "claude-code" {
			return hooked(t, editInput, args...)
		}
		return hookedBy(t, vendor, vendorInputs[vendor].write, "s-"+vendor, args...)
	}
	if got := write("codex", "--agent", "codex-1"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	for _, m := range []teamMember{team[0], team[2]} {
		if got := write(m.vendor, "--agent", m.agent); got.code != 2 || !strings.Contains(got.err, "codex-1") {
			t.Errorf("%s writes what codex-1 has locked: %+v", m.agent, got)
		}
	}
	for _, command := range []string{
		"agent list", "agent get codex-1", "status", "explain", "event list", "lock list", "dlq list", "session get", "type list",
		"agent nudge codex-1 look", "agent register zed",
	} {
		must0(t, strings.Fields(command)...)
	}
	if got := ctl(t, "send", "codex-1", "hi"); got.code != 2 || !strings.Contains(got.err, "--agent ''") {
		t.Errorf("no agent is chosen as the sender: %+v", got)
	}
	if found := must0(t, "explain"); strings.Contains(found, "ERROR") {
		t.Errorf("%s", found)
	}
	for _, m := range team {
		must0(t, "setup", m.vendor, "--check")
	}
}

// What speaks of one session wins over the name in a file that all sessions of the folder read.
func TestSetup_TheNameInAFileYieldsToThatOfASession(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	for _, m := range team {
		must0(t, "setup", m.vendor, "--agent", m.agent)
	}
	t.Setenv("BROKERD_AGENT", "critic-1")
	for _, c := range []struct{ vendor, file, want string }{
		{"gemini", "src/a.go", "critic-1"},
		{"codex", "src/b.go", "codex-1"}, // its hooks have the environment of its daemon
	} {
		t.Setenv("BROKERD_AGENT", "critic-1")
		input := strings.ReplaceAll(vendorInputs[c.vendor].write, "src/a.go", c.file)
		if got := hookedBy(t, c.vendor, strings.ReplaceAll(input, "DIR/src/b.go", "DIR/src/c.go"), "s-"+c.vendor, "--agent", c.vendor+"-1"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		if lock := fields(t, "lock", "list", "--owner", c.want); !strings.Contains(at(t, lock, "paths", 0).(string), c.file) {
			t.Errorf("%s: %v", c.vendor, lock)
		}
	}
	startModel(t, "--agent", "gemini-1").call("turn", `{}`, "You are the agent critic-1")
	delete(t.variables, "BROKERD_AGENT")
	t.Setenv("CLAUDE_CODE_SESSION_ID", "5b1c")
	must0(t, "init", "--agent", "editor-1")
	delete(t.variables, "CLAUDE_CODE_SESSION_ID")
	if got := hooked(t, strings.ReplaceAll(editInput, "src/a.go", "src/d.go"), "--agent", "claude-1"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if lock := fields(t, "lock", "list", "--owner", "editor-1"); at(t, lock, "paths", 0) != "src/d.go" {
		t.Errorf("%v", lock)
	}
}

func TestSetup_AnotherNameReplacesTheFirst(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	empty := tree(t)
	for _, v := range setup.Vendors(setup.Options{}) {
		t.Run(v.Name, func(t *shell) {
			isolate(t)
			must0(t, "setup", v.Name, "--agent", "typo-1", "--unattended")
			if got := serverArgs(t, v.Name); len(got) != 2 || got[1] != "typo-1" {
				t.Errorf("%q", got)
			}
			must0(t, "setup", v.Name, "--agent", "builder-1")
			for path, text := range tree(t) {
				if strings.Contains(text, "--listen") || path != setting.ConfigFile && strings.Contains(text, "typo-1") {
					t.Errorf("%s: %s", path, text)
				}
			}
			added := tree(t)
			if out := must0(t, "setup", v.Name); strings.Contains(out, "  changed") {
				t.Errorf("without a name, it does not stay:\n%s", out)
			}
			if diff := gocmp.Diff(added, tree(t)); diff != "" {
				t.Errorf("without a name, it does not stay:\n%s", diff)
			}
			must0(t, "setup", v.Name, "--remove")
			if err := os.Remove(t.path(setting.ConfigFile)); err != nil { // it has an agent that setup has not created it for
				t.Error(err)
			}
			if diff := gocmp.Diff(empty, tree(t)); diff != "" {
				t.Errorf("--remove left:\n%s", diff)
			}
		})
	}
}

func TestSetup_NamesThoseThatTheFolderMakesAmbiguous(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	must0(t, "setup", "claude-code")
	out := must0(t, "setup", "codex", "--agent", "codex-1")
	if want := "Next: name Claude Code too, or it takes any free name and its hooks only warn: brokerctl setup claude-code --agent NAME\n"; !strings.Contains(out, want) {
		t.Errorf("without %q:\n%s", want, out)
	}
	if out := must0(t, "setup", "claude-code"); !strings.Contains(out, ": brokerctl setup claude-code --agent NAME\n") {
		t.Errorf("%s", out)
	}
}

func TestSetup_RefusesWhatIsNoName(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	before := tree(t)
	for _, args := range [][]string{
		{"setup", "codex", "--agent", "bad name"}, {"setup", "codex", "--agent", "a", "--role", "bad role"},
		{"init", "--agent", "bad name"}, {"init", "--agent", "a", "--role", "bad role"}, {"init", "--session", "bad session"},
	} {
		got := ctl(t, args...)
		if got.code != 2 || !strings.Contains(got.err, `: "bad `) || !strings.Contains(got.err, "nothing was changed") {
			t.Errorf("%q: %+v", args, got)
		}
		if diff := gocmp.Diff(before, tree(t)); diff != "" {
			t.Errorf("%q:\n%s", args, diff)
		}
	}
}

func TestSetup_CheckSaysWhatDoesNotWork(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	checks := func(code int, wants ...string) {
		t.Helper()
		got := ctl(t, "setup", "codex", "--check")
		if got.code != code {
			t.Errorf("exit code %d, want %d: %s", got.code, code, got.err)
		}
		for _, want := range wants {
			if !strings.Contains(got.out, want) {
				t.Errorf("without %q:\n%s", want, got.out)
			}
		}
	}
	empty := tree(t)
	checks(1, "not ok     files: .codex/config.toml is not as setup makes it", "not ok     broker: ", "start one with `brokerctl up`")
	if diff := gocmp.Diff(empty, tree(t)); diff != "" {
		t.Errorf("--check wrote:\n%s", diff)
	}
	if out := must0(t, "setup", "codex", "--agent", "codex-1"); !strings.Contains(out, "start one with `brokerctl up`") {
		t.Errorf("%s", out)
	}
	startBroker(t)
	dir := t.dir
	must0(t, "setup", "codex", "--agent", "codex-1")
	checks(1, "ok         files: ", "ok         broker: ", "ok         agent: codex-1 is a free name", "not ok     hooks: put brokerctl into PATH")
	inPath(t)
	checks(0, "ok         hooks: brokerctl hook codex --agent codex-1 answers")
	must0(t, "--agent", "codex-1", "agent", "register", "--role", "builder", "--worktree", dir)
	checks(0, "ok         agent: codex-1 is registered as builder")
	must0(t, "--agent", "codex-1", "agent", "register", "--worktree", "/elsewhere")
	checks(1, "not ok     agent: codex-1 is the name of an agent in another folder")
	if out := must0(t, "agent", "get", "codex-1"); !strings.Contains(out, "builder") {
		t.Errorf("the check has changed the agent:\n%s", out)
	}
}

// Only a broker that decides about a file may stop a tool for longer than a moment.
func TestHook_ThatLooksGivesUpOnABrokerThatHangs(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	apptest.NoError(t, err)
	defer silent.Close() //nolint:errcheck // nothing was written
	t.Setenv("BROKERD_ADDR", silent.Addr().String())
	for _, event := range []string{"PostToolUse", "Stop"} {
		input := strings.ReplaceAll(strings.ReplaceAll(editInput, "PreToolUse", event), "DIR", t.dir)
		got := t.invoke(t.Context(), input, nil, "hook", "claude-code", "--agent", "builder-1")
		if got.code != 0 || !strings.Contains(got.err, "the broker did not answer within 300ms") {
			t.Errorf("%s: %+v", event, got)
		}
	}
}
