package main

import (
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

// stateOf returns the state of an agent.
func stateOf(t *shell, agent string) string {
	t.Helper()
	state, _ := at(t, fields(t, "--agent", "", "agent", "get", agent), "agent", "state").(string)
	return state
}

func TestAgentRun_SaysHowItsProgramHasEnded(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "agent", "run", "--agent", "builder-1", "--", "true")
	if got := stateOf(t, "builder-1"); got != "stopped" {
		t.Errorf("with code 0: %s", got)
	}
	if got := ctl(t, "explain"); !strings.Contains(got.err, "nothing is stuck") {
		t.Errorf("explain: %+v", got)
	}
	if got := must0(t, "agent", "list"); !strings.Contains(got, "stopped") || strings.Contains(got, "HEALTH") {
		t.Errorf("agent list: %s", got)
	}
	if got := must0(t, "status"); !strings.Contains(got, "1 agent (1 stopped)") {
		t.Errorf("status: %s", got)
	}
	if got := ctl(t, "agent", "run", "--agent", "builder-1", "--", "sh", "-c", "exit 3"); got.code != 3 {
		t.Errorf("%+v", got)
	}
	a := fields(t, "agent", "get", "builder-1")
	if at(t, a, "agent", "state") != "failed" || at(t, a, "agent", "status_reason") != "its program has ended with code 3" {
		t.Errorf("with code 3: %v", a)
	}
	if got := must0(t, "explain"); !strings.Contains(got, "it reports that it has failed (its program has ended with code 3)") {
		t.Errorf("explain: %s", got)
	}
}

func TestMCP_AnAgentWhoseServerEndsHasStopped(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`, "nothing to claim")
	must0(t, "--agent", "builder-1", "lock", "acquire", "src/a.go")
	m.end()
	if got := stateOf(t, "builder-1"); got != "stopped" {
		t.Errorf("it is %s", got)
	}
	if got := must0(t, "lock", "list"); strings.Contains(got, "builder-1") {
		t.Errorf("it still holds %s", got)
	}
}

func TestHook_TheEndOfASessionStopsTheAgentUnlessAnotherHoldsLocks(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "agents: {builder-1: {}}\n")
	other := strings.NewReplacer("5b1c", "77aa", "a.go", "b.go")
	hook := func(input string) {
		t.Helper()
		if got := hooked(t, input); got.code != 0 || got.err != "" {
			t.Fatalf("%+v", got)
		}
	}
	hook(editInput)
	hook(other.Replace(editInput))
	hook(endInput)
	if got := stateOf(t, "builder-1"); got == "stopped" {
		t.Error("the other session has lost its agent")
	}
	if got := must0(t, "lock", "list"); strings.Contains(got, "a.go") || !strings.Contains(got, "b.go") {
		t.Errorf("after the first session: %s", got)
	}
	hook(strings.ReplaceAll(other.Replace(endInput), "logout", "clear"))
	if got := stateOf(t, "builder-1"); got == "stopped" {
		t.Error("a session that goes on has stopped its agent")
	}
	hook(other.Replace(endInput))
	if got := stateOf(t, "builder-1"); got != "stopped" {
		t.Errorf("after both sessions it is %s", got)
	}
}

func TestInbox_OfOperators(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "agents: {builder-1: {}, lead: {}}\n")
	register(t, "builder-1/builder")
	must0(t, "--agent", "", "send", "builder-1", "Which branch?", "--requires-response")
	id, _ := at(t, fields(t, "--agent", "builder-1", "inbox"), "message", "id").(string)
	must0(t, "--agent", "builder-1", "reply", id, "main")
	must0(t, "--agent", "builder-1", "send", "operator", "May I deploy?", "--requires-response")
	got := must0(t, "inbox", "--operator")
	if !strings.Contains(got, "main") || !strings.Contains(got, "May I deploy?") || !strings.Contains(got, ": brokerctl --agent '' reply ") {
		t.Errorf("%s", got)
	}
	if got := must0(t, "overview"); !strings.Contains(got, "2 messages: brokerctl inbox --operator") {
		t.Errorf("%s", got)
	}
	question, _ := at(t, decode(t, strings.Split(must0(t, "inbox", "--operator", "-o", "json"), "\n")[1]), "message", "id").(string)
	must0(t, "--agent", "", "reply", question, "yes")
	if got := must0(t, "--agent", "builder-1", "inbox"); !strings.Contains(got, "yes") {
		t.Errorf("the agent's: %s", got)
	}
	if got := must0(t, "inbox", "--operator"); strings.Contains(got, "deploy") {
		t.Errorf("afterwards: %s", got)
	}
	if got := ctl(t, "--agent", "builder-1", "inbox", "--operator"); got.code != problem.ExitUsage {
		t.Errorf("with an agent: %+v", got)
	}
	if got := ctl(t, "--no-config", "inbox"); got.code != problem.ExitUsage || !strings.Contains(got.err, "--operator lists the operators' mailbox") {
		t.Errorf("without an agent: %+v", got)
	}
}

func TestInbox_OfOperatorsIsForOperatorsAndObservers(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	register(t, "builder-1/builder")
	must0(t, "--agent", "builder-1", "send", "operator", "May I deploy?", "--requires-response")
	for _, c := range []struct {
		credential []string
		code       int
		says       string
	}{
		{[]string{"operator"}, 0, "owed: an answer to "},
		{[]string{"observer"}, 0, "May I deploy?"},
		{[]string{"agent", "builder-1", "--role", "builder"}, problem.ExitUsage, "this one is that of the agent builder-1"},
	} {
		file := filepath.Join(t.TempDir(), "secret")
		t.Setenv("BROKERD_CREDENTIAL_FILE", "")
		must0(t, append([]string{"credential", "issue", "--out", file}, c.credential...)...)
		t.Setenv("BROKERD_CREDENTIAL_FILE", file)
		got := ctl(t, "--no-config", "--addr", address, "inbox", "--operator")
		if got.code != c.code || !strings.Contains(got.out+got.err, c.says) {
			t.Errorf("%v: %+v", c.credential, got)
		}
	}
}
