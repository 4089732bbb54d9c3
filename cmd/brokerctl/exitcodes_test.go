package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// exitRows are command lines with the exit code and a part of what they write to standard error, in
// a session with the agents lead and builder-1.
var exitRows = []struct {
	args []string
	exit int
	text string
}{
	{[]string{"send", "role:bilder", "x"}, 0, "warning: no agent has the role bilder (did you mean builder"},
	{[]string{"--agent", "builder-1", "lock", "release", "--all"}, 0, ""},

	{[]string{"send", "several", "words", "here"}, 2, "argument"},
	{[]string{"sned"}, 2, "did you mean send?"},
	{[]string{"--addr", "foo", "inbox"}, 2, `--addr: address "foo" is none of`},
	{[]string{"--addr", "unix:", "inbox"}, 2, "names no socket"},
	{[]string{"claim"}, 2, "this call needs a registered agent as its caller; name it with --agent or BROKERD_AGENT"},
	{[]string{"agent", "register"}, 2, "give the agent a name: brokerctl agent register NAME"},
	{[]string{"send", "builder-1", strings.Repeat("x", 600), "--body", "b"}, 2, "subject"},
	{[]string{"send", "builder-1", "--max-attempts", "101"}, 2, "--max-attempts: is 101"},

	{[]string{"send", "bilder-1", "x"}, 3, "did you mean builder-1"},
	{[]string{"send", "role:bilder", "x", "--all"}, 3, "no agent has the role bilder (did you mean builder"},
	{[]string{"--agent", "lead", "ask", "role:bilder", "x"}, 3, "no agent has the role bilder (did you mean builder"},
	{[]string{"--agent", "builder-1", "ask", "role:builder", "x"}, 3, "no other agent is meant by role:builder"},
	{[]string{"--agent", "lead", "ask", "channel:void", "x"}, 3, "no agent subscribes to channel void"},
	{[]string{"message", "get", "999999"}, 3, "999999"},
	{[]string{"agent", "get", "bilder-1"}, 3, "builder-1"},
	{[]string{"--session", "defalt", "status"}, 3, `no session "defalt"; did you mean default? see session list`},
	{[]string{"--agent", "stranger", "inbox"},
		3, `"stranger", which makes this call, is not registered in session "default"`},
	{[]string{"--agent", "stranger", "lock", "acquire", "a"}, 3, "; brokerctl agent register stranger"},
	{[]string{"dlq", "redrive", "999999"}, 3, "999999"},
	{[]string{"task", "get", "nowhere"}, 3, "nowhere"},

	{[]string{"--agent", "builder-1", "claim"}, 4, "nothing to claim"},
	{[]string{"--agent", "builder-1", "claim", "--wait", "1ms"}, 4, "nothing to claim within 1ms"},
	{[]string{"--agent", "builder-1", "next"}, 4, ""},
	{[]string{"--agent", "builder-1", "task", "claim"}, 4, "no task to claim"},
	{[]string{"--agent", "builder-1", "task", "claim", "--wait", "1ms"}, 4, "no task to claim within 1ms"},
	{[]string{"--agent", "builder-1", "receive"}, 4, "nothing is there"},
	{[]string{"--agent", "builder-1", "receive", "--wait", "1ms"}, 4, "nothing came within 1ms"},
	{[]string{"--agent", "lead", "ask", "builder-1", "x", "--wait", "1ms"}, 4, "no answer to"},
	{[]string{"--agent", "builder-1", "lock", "acquire", "held/a", "--wait", "1ms"}, 4, "held/ is held by lead"},

	{[]string{"--agent", "builder-1", "lock", "acquire", "held/b"}, 5, "held/ is held by lead"},
	{[]string{"--agent", "builder-1", "token", "acquire", "deploy", "staging"}, 5, "held by lead"},
	{[]string{"session", "create", "default"}, 5, "default"},
	{[]string{"session", "close", "default"}, 5, "default"},
	{[]string{"--session", "closed", "agent", "register", "a"}, 5, `the session "closed" is closed`},

	{[]string{"--agent", "builder-1", "ack"}, 6, "holds no claim"},
	{[]string{"--agent", "builder-1", "nack"}, 6, "holds no claim"},
	{[]string{"--agent", "builder-1", "task", "complete"}, 6, "holds no task"},
	{[]string{"--agent", "builder-1", "extend"}, 6, "holds no claim"},
	{[]string{"--agent", "builder-1", "release"}, 6, "holds no claim"},
	{[]string{"--agent", "builder-1", "lock", "release", "a"}, 6, "builder-1 neither holds such a lock nor waits for it"},
	{[]string{"--agent", "builder-1", "lock", "extend", "999999"}, 6, "stop working on it"},
	{[]string{"--agent", "builder-1", "token", "release", "deploy", "staging"},
		6, "neither holds the token deploy staging"},
	{[]string{"--agent", "builder-1", "token", "extend", "deploy", "staging"}, 6, "does not hold the token"},
	{[]string{"--agent", "builder-1", "token", "pass", "deploy", "staging", "lead"}, 6, "does not hold the token"},

	{[]string{"--agent", "builder-1", "admin", "check"},
		7, "only an operator may do this; the caller is the agent builder-1; the agent comes from --agent"},
	{[]string{"--agent", "builder-1", "agent", "terminate", "lead"}, 7, ""},

	{[]string{"--addr", "127.0.0.1:1", "inbox"}, 69, "no broker is running at 127.0.0.1:1"},

	{[]string{"--agent", "builder-1", "lock", "run", "a", "--timeout", "30ms", "--", "sleep", "60"}, 124, ""},
	{[]string{"--addr", "127.0.0.1:1", "agent", "run", "--agent", "builder-1", "--", "true"},
		125, "run: no broker is running"},
	{[]string{"--addr", "127.0.0.1:1", "--agent", "builder-1", "lock", "run", "a", "--", "true"},
		125, "run: no broker is running"},
	{[]string{"agent", "run", "--agent", "builder-1", "--", "./plain"}, 126, "run: "},
	{[]string{"--agent", "builder-1", "work", "--", "./plain"}, 126, "work: "},
	{[]string{"--agent", "builder-1", "task", "work", "--", "./plain"}, 126, "work: "},
	{[]string{"--agent", "builder-1", "lock", "run", "a", "--", "./plain"}, 126, "run: "},
	{[]string{"--agent", "builder-1", "token", "run", "x", "y", "--", "./plain"}, 126, "run: "},
	{[]string{"agent", "run", "--agent", "builder-1", "--", "no-such-command"}, 127, `run: exec: "no-such-command"`},
	{[]string{"--agent", "builder-1", "work", "--", "no-such-command"}, 127, `work: exec: "no-such-command"`},
	{[]string{"--agent", "builder-1", "lock", "run", "a", "--", "no-such-command"}, 127, `run: exec: "no-such-command"`},
	{[]string{"--agent", "builder-1", "token", "run", "x", "y", "--", "no-such-command"},
		127, `run: exec: "no-such-command"`},
	{[]string{"agent", "run", "--agent", "builder-1", "--", "sh", "-c", "kill -TERM $$"}, 143, ""},
}

func TestExitCodes_AreAsDocumented(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "lead", "lock", "acquire", "held/")
	must0(t, "--agent", "lead", "token", "acquire", "deploy", "staging")
	must0(t, "session", "create", "closed")
	must0(t, "session", "close", "closed")
	apptest.NoError(t, os.WriteFile(t.path("plain"), nil, 0o600))
	for _, row := range exitRows {
		got := ctl(t, row.args...)
		if got.code != row.exit || !strings.Contains(got.err, row.text) {
			t.Errorf("%q: %+v, want code %d and %q", row.args, got, row.exit, row.text)
		}
		if row.text != "" && strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: not one line: %q", row.args, got.err)
		}
	}
}

func TestErrors_WithJSONAreOneObjectWithTheSameCode(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "lead", "lock", "acquire", "held/")
	must0(t, "--agent", "lead", "token", "acquire", "deploy", "staging")
	must0(t, "session", "create", "closed")
	must0(t, "session", "close", "closed")
	apptest.NoError(t, os.WriteFile(t.path("plain"), nil, 0o600))
	t.Setenv("BROKERD_OUTPUT", "json")
	for _, row := range exitRows {
		if row.exit == 0 {
			continue
		}
		got := ctl(t, row.args...)
		code := problem.CodeOf(row.exit)
		if got.code != row.exit {
			t.Errorf("%q: %+v, want code %d", row.args, got, row.exit)
		}
		if code == "" || row.exit == 143 { // the exit code is that of the command that was run
			if got.err != "" {
				t.Errorf("%q: %+v", row.args, got)
			}
			continue
		}
		e, _ := at(t, decode(t, got.err), "error").(map[string]any)
		if e["code"] != code || e["message"] == "" || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: %+v, want the code %s", row.args, got, code)
		}
	}
}

func TestErrors_WithJSONHaveReasonFieldsAndTimeToWait(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "json", "agent", "get", "bilder-1"},
			`{"error":{"code":"not_found","reason":"AGENT_NOT_FOUND",` +
				`"message":"no agent \"bilder-1\" is registered; did you mean builder-1?"}}`},
		{[]string{"-o", "json", "--agent", "a b", "inbox"},
			`{"error":{"code":"usage","reason":"INVALID_ARGUMENT","message":"--agent: M",` +
				`"fields":[{"field":"--agent","message":"M"}]}}`},
		{[]string{"inbox", "--foo", "-o", "json"},
			`{"error":{"code":"usage","message":"unknown flag: --foo (see brokerctl inbox --help)"}}`},
		{[]string{"--output=json", "sned"},
			`{"error":{"code":"usage",` +
				`"message":"unknown command \"sned\" for brokerctl; did you mean send? (see brokerctl --help)"}}`},
		{[]string{"sned", "--help", "-o", "json"},
			`{"error":{"code":"usage",` +
				`"message":"unknown command \"sned\" for brokerctl; did you mean send? (see brokerctl --help)"}}`},
	} {
		got := ctl(t, c.args...)
		var e struct {
			Error struct{ Fields []jsonform.ProblemField }
		}
		if err := json.Unmarshal([]byte(got.err), &e); err != nil {
			t.Errorf("%q: %+v: %v", c.args, got, err)
			continue
		}
		for _, f := range e.Error.Fields {
			got.err = strings.ReplaceAll(got.err, strings.Trim(quoted(t, f.Message), `"`), "M")
		}
		if got.err != c.want+"\n" || got.out != "" {
			t.Errorf("%q: %+v, want %s", c.args, got, c.want)
		}
	}
	must0(t, "session", "configure", "default", "--send-rate", "0.001", "--send-burst", "1")
	must0(t, "--agent", "builder-1", "send", "builder-1", "one")
	got := ctl(t, "-o", "json", "--agent", "builder-1", "send", "builder-1", "two")
	e := at(t, decode(t, got.err), "error").(map[string]any)
	wait, err := time.ParseDuration(fmt.Sprint(e["retry_after"]))
	if e["reason"] != "SEND_RATE" || err != nil || wait < time.Second {
		t.Errorf("%+v", got)
	}
}

func quoted(t testing.TB, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	apptest.NoError(t, err)
	return string(b)
}

// waitingRows are command lines that wait until a signal ends them.
var waitingRows = [][]string{
	{"claim", "--wait", "1m"},
	{"next", "--wait", "1m"},
	{"task", "claim", "--wait", "1m"},
	{"receive", "--wait", "1m"},
	{"receive", "--follow"},
	{"inbox", "--follow"},
	{"ask", "lead", "What?", "--wait", "1m"},
	{"lock", "acquire", "held/a", "--wait", "1m"},
	{"token", "acquire", "deploy", "staging", "--wait", "1m"},
	{"lock", "run", "held/a", "--wait", "1m", "--", "true"},
	{"review", "submit", "login", "lead", "The login page"},
	{"review", "submit", "logout", "lead", "The logout page", "--wait", "1m"},
	{"event", "follow"},
	{"state", "follow"},
}

func TestExitCodes_SIGTERMEndsEveryWaitingCommandWith143(tt *testing.T) {
	t := newShell(tt)
	for _, row := range waitingRows {
		t.Run(strings.Join(row, " "), func(t *shell) {
			t.Parallel()
			startBroker(t)
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "--agent", "lead", "lock", "acquire", "held/")
			must0(t, "--agent", "lead", "token", "acquire", "deploy", "staging")
			signals := make(chan os.Signal, 1)
			ended := make(chan result, 1)
			go func() {
				ended <- t.invoke(t.Context(), "", signals, append([]string{"--agent", "builder-1"}, row...)...)
			}()
			awaitCall(t, "builder-1")
			signals <- syscall.SIGTERM
			if got := <-ended; got.code != 143 || strings.Contains(got.err, "terminated") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// awaitCall returns when the broker has received a call of an agent, beside its registration.
func awaitCall(t *shell, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		a := at(t, fields(t, "agent", "get", name), "agent")
		if at(t, a, "last_seen") != at(t, a, "registered_at") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no call: %v", a)
		}
	}
}

func TestExitCodes_OfTheManualAreThoseOfTheHelp(tt *testing.T) {
	t := newShell(tt)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "json.md"))
	apptest.NoError(t, err)
	help := "\n" + must0(t, "help", "exit-codes")
	for _, row := range problem.ExitCodes {
		exit := strconv.Itoa(row.Exit) + prompt.Either(row.Exit == problem.ExitSignal, "+N", "")
		code := prompt.Either(row.Code == "", "–", "`"+row.Code+"`")
		if line := fmt.Sprintf("\n| %s | %s | %s |\n", exit, code, row.Meaning); !strings.Contains(string(page), line) {
			t.Errorf("docs/json.md has no line %q", line)
		}
		if line := fmt.Sprintf("\n  %-6s %s\n", exit, row.Meaning); !strings.Contains(help, line) {
			t.Errorf("the help has no line %q", line)
		}
	}
}
