package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/apptest"
)

func TestInit_WritesTheFileAndRegistersTheAgentOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	out := must0(t, "init", "--agent", "builder-1", "--role", "builder")
	for _, want := range []string{
		"wrote ", setting.ConfigFile, " answers\n", "builder-1 is registered now\n",
		"Next: brokerctl guide", "brokerctl next --wait 90s",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if got := fields(t, "whoami"); at(t, got, "agent") != "builder-1" || at(t, got, "role") != "builder" {
		t.Errorf("%v", got)
	}
	before := must0(t, "agent", "get", "-o", "json")
	if out := must0(t, "init", "--agent", "builder-1"); !strings.Contains(out, "registered already") {
		t.Errorf("%q", out)
	}
	after := must0(t, "agent", "get", "-o", "json")
	if at(t, decode(t, before), "agent", "incarnation") != at(t, decode(t, after), "agent", "incarnation") {
		t.Errorf("the second call registers again:\n%s%s", before, after)
	}
	if got := ctl(t, "init", "--role", "builder"); got.code != 2 || !strings.Contains(got.err, "--agent NAME") {
		t.Errorf("a role without an agent: %+v", got)
	}
}

func TestInit_ANewAgentJoinsTheOthersOfTheFolder(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "# ours\noutput: table # for people\n")
	must0(t, "init", "--agent", "builder-1", "--role", "builder")
	out := must0(t, "init", "--agent", "critic-1", "--role", "critic")
	next := "Next: export BROKERD_AGENT=critic-1, since this folder has several agents: builder-1, critic-1"
	if !strings.Contains(out, next) {
		t.Errorf("%s", out)
	}
	text, err := os.ReadFile(t.path(setting.ConfigFile))
	apptest.NoError(t, err)
	want := "# ours\noutput: table # for people\nsession: default\n" +
		"agents:\n  builder-1: {role: builder}\n  critic-1: {role: critic}\n"
	if string(text) != want {
		t.Errorf("the file is\n%s\nwant\n%s", text, want)
	}

	got := ctl(t, "inbox")
	if got.code != 2 || !strings.Contains(got.err, "has several agents (builder-1, critic-1)") ||
		!strings.Contains(got.err, "export BROKERD_AGENT=NAME") {
		t.Errorf("no agent is chosen: %+v", got)
	}
	for agent, args := range map[any][]string{"critic-1": {"--agent", "critic-1"}, nil: {"--agent", ""}} {
		got := fields(t, append(args, "whoami")...)
		if at(t, got, "agent") != agent || at(t, got, "agent_from") != "--agent" {
			t.Errorf("%q: %v", args, got)
		}
	}
	t.Setenv("BROKERD_AGENT", "builder-1")
	if got := fields(t, "whoami"); at(t, got, "agent") != "builder-1" || at(t, got, "agent_from") != "BROKERD_AGENT" {
		t.Errorf("%v", got)
	}
}

func TestInit_ACodingAgentsSessionKeepsItsAgent(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	dir := t.dir
	t.Setenv("CLAUDE_CODE_SESSION_ID", "5b1c")
	must0(t, "init", "--agent", "builder-1", "--role", "builder")
	t.Setenv("CLAUDE_CODE_SESSION_ID", "77aa")
	if out := must0(t, "init", "--agent", "critic-1", "--role", "critic"); strings.Contains(out, "export") {
		t.Errorf("the session chooses the agent without a variable:\n%s", out)
	}
	file := filepath.Join(dir, setting.ConfigFile)
	who := fields(t, "whoami")
	if at(t, who, "agent") != "critic-1" || at(t, who, "agent_from") != file+", hook session 77aa" {
		t.Errorf("%v", who)
	}

	// Hooks get the session as input. The commands that they suggest work in any shell.
	t.Setenv("CLAUDE_CODE_SESSION_ID", "")
	for session, agent := range map[string]string{"5b1c": "builder-1", "77aa": "critic-1"} {
		input := strings.ReplaceAll(strings.ReplaceAll(editInput, "5b1c", session), "a.go", session+".go")
		if got := hooked(t, input); got.code != 0 || got.err != "" {
			t.Fatalf("%s: %+v", session, got)
		}
		lock := fields(t, "--agent", "", "lock", "list", "--owner", agent)
		if at(t, lock, "paths", 0) != "src/"+session+".go" {
			t.Errorf("%s: %v", agent, lock)
		}
	}
	got := hooked(t, strings.ReplaceAll(editInput, "a.go", "77aa.go"))
	if got.code != 2 || !strings.Contains(got.err, "brokerctl --agent builder-1 lock acquire src/77aa.go --holder 5b1c") {
		t.Errorf("%+v", got)
	}
	if got := hooked(t, strings.ReplaceAll(editInput, "5b1c", "new")); !strings.Contains(got.err, "has several agents") {
		t.Errorf("a session without an agent: %+v", got)
	}

	t.Setenv("CLAUDE_CODE_SESSION_ID", "5b1c") // the model changes its mind
	must0(t, "init", "--agent", "critic-1")
	if got := fields(t, "whoami"); at(t, got, "agent") != "critic-1" {
		t.Errorf("%v", got)
	}
}

func TestInit_HonoursTheEnvironment(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "session", "create", "website")
	must0(t, "session", "create", "other")
	t.Setenv("BROKERD_SESSION", "website")
	t.Setenv("BROKERD_AGENT", "zed")
	if got := fields(t, "init", "--role", "z"); at(t, got, "session") != "website" || at(t, got, "agent") != "zed" {
		t.Errorf("%v", got)
	}
	t.Setenv("BROKERD_SESSION", "")
	t.Setenv("BROKERD_AGENT", "")
	who := fields(t, "whoami")
	if at(t, who, "session") != "website" || at(t, who, "agent") != "zed" || at(t, who, "role") != "z" {
		t.Errorf("%v", who)
	}
	got := ctl(t, "-o", "table", "init", "--session", "other", "--agent", "zed")
	if got.code != 5 || strings.Contains(got.err, "force") ||
		!strings.Contains(got.err, `has session "website", and this call has "other"`) {
		t.Errorf("another session: %+v", got)
	}
}

func TestInit_AddsTheFileToGitignoreOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.git("init", "--quiet")
	apptest.NoError(t, os.WriteFile(t.path(".gitignore"), []byte("bin/"), 0o600))
	if out := must0(t, "init", "--agent", "builder-1"); !strings.Contains(out, "added .brokerd.yaml to ") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "init", "--agent", "builder-2"); strings.Contains(out, "gitignore") {
		t.Errorf("the second call: %s", out)
	}
	apptest.NoError(t, os.Mkdir(t.path("web"), 0o700))
	top := t.dir
	t.Chdir("web")
	must0(t, "init", "--agent", "builder-3")
	text, err := os.ReadFile(filepath.Join(top, ".gitignore"))
	if err != nil || string(text) != "bin/\n.brokerd.yaml\n" {
		t.Errorf(".gitignore is %q, %v", text, err)
	}
}

func TestInit_SaysThatNoBrokerAnswers(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	got := ctl(t, "init", "--agent", "builder-1")
	if got.code != 69 || !strings.Contains(got.err, "wrote ") || !strings.Contains(got.err, "start one with `brokerctl up`") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(t.path(setting.ConfigFile)); err != nil {
		t.Error(err)
	}
}

// Another process, such as git pull, can change the file while init runs.
func TestInit_TakesTheConnectionThatTheTrustCheckHasRead(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	configure(t, "addr: 127.0.0.1:4711\n")
	must0(t, "trust", "--yes")
	c, _, _ := printer(output.FormatTable)
	c.Env.Variables, c.Env.Dir = t.environ(), t.dir
	if s, err := c.Settings(); err != nil || s.Refused != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	configure(t, "addr: 192.0.2.1:1\n")
	above, err := setup.ConnectionAbove(c, t.path(filepath.Join("web", setting.ConfigFile)))
	if err != nil || above["addr"] != "127.0.0.1:4711" {
		t.Errorf("%v, %v", above, err)
	}
}

func TestInit_AddsNoAddressToACredentialOfTheFile(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	server := newForeign(t)
	for _, file := range []string{"credential_file: " + secretFile(t, aSecret) + "\n", "tls_cert: c.pem\ntls_key: c.key\n"} {
		configure(t, file)
		must0(t, "trust", "--yes")
		key, _, _ := strings.Cut(file, ":")
		for _, args := range [][]string{{"init", "--agent", "a"}, {"setup", "claude-code", "--agent", "a"}} {
			got := ctl(t, append([]string{"--addr", server.address}, args...)...)
			if got.code != problem.ExitConflict || !strings.Contains(got.err, "has "+key+" and no addr, and --addr would send it to "+server.address) {
				t.Errorf("%s, %q: %+v", key, args, got)
			}
		}
		if files := tree(t); len(files) != 2 || !strings.HasSuffix(files[setting.ConfigFile], "\n"+file) { // the folder and its file
			t.Errorf("%v", files)
		}
	}
	server.gotNothing(t, "init or setup")
}
