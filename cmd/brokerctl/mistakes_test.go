package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// mistakes are typical wrong command lines with the exit code and the texts of the answer, on
// standard output and standard error together. In arguments, $TASK is a message in builder-1's
// mailbox, $WORK a message in lead's mailbox and $CLAIM lead's claim of it, $NOTICE a notice to
// builder-1, $ORDER an operator's message to builder-1, and $TCP the broker's TCP address.
var mistakes = []struct {
	name string
	env  string // variables, with ; between them
	args string
	exit int
	want []string
}{
	{"no daemon", "", "--addr unix:///nowhere/brokerd.sock inbox", 69,
		[]string{"no broker is running at unix:///nowhere/brokerd.sock", "start one with `brokerctl up`", "BROKERD_ADDR"}},
	{"an unknown agent", "", "send bulider-1 x", 3,
		[]string{`no agent "bulider-1" is registered`, "did you mean builder-1"}},
	{"a typing error in a role", "", "send role:bulider x", 0,
		[]string{"sent ", "warning: no agent has the role bulider (did you mean builder",
			"the message waits until one does"}},
	{"a channel without subscribers", "", "send channel:void x", 0,
		[]string{"warning: no agent subscribes to channel void", "no agent gets the message"}},
	{"a message without text", "", "send builder-1", 0,
		[]string{"warning: the message has no text: it has neither a subject nor a body nor a payload"}},
	{"no --older-than", "", "admin prune", 2,
		[]string{"--older-than is missing: only data that finished longer ago, 1s to 3650d"}},
	{"no --dir", "", "session export", 2, []string{"--dir is missing: the folder to write to"}},
	{"no --reason", "", "token revoke review login", 2, []string{"--reason is missing: the owner is told why"}},
	{"no --agent", "", "claim", 2,
		[]string{"this call needs a registered agent as its caller; name it with --agent or BROKERD_AGENT"}},
	{"an agent and an operator's command", "BROKERD_AGENT=builder-1", "session close default", 7,
		[]string{"only an operator may do this; the caller is the agent builder-1; the agent comes from BROKERD_AGENT"}},
	{"a payload that is no JSON", "", "send builder-1 x --payload {bad", 2,
		[]string{"--payload is not JSON: invalid character 'b'", `'"in quotes"'`, "--body"}},
	{"a shortened flag", "", "send builder-1 x --prio high", 2,
		[]string{"unknown flag: --prio; did you mean --priority?"}},
	{"an unknown priority", "", "send builder-1 x --priority urgent", 2,
		[]string{`--priority "urgent" is neither 1 to 10 nor low, normal, high or critical`}},
	{"a typing error in a command", "", "sned", 2, []string{`unknown command "sned"`, "did you mean send?"}},
	{"another program's command", "", "logs", 2,
		[]string{`unknown command "logs"`, "did you mean event list or event follow?"}},
	{"a verb without its noun", "", "get", 2, []string{`unknown command "get"`, "agent get", "message get", "state get"}},
	{"a plural", "", "agents list", 0, []string{"builder-1"}},
	{"text without quotes", "", "send builder-1 a b", 2,
		[]string{`argument "b" is one too many; a text of several words needs quotes`}},
	{"an ack without a claim", "", "--agent builder-1 ack", 6,
		[]string{`agent "builder-1" holds no claim`, "stop the work on it"}},
	{"an ack of another's claim", "", "--agent builder-1 ack $CLAIM", 6,
		[]string{"lead holds the claim on $CLAIM ($CLAIM)", "stop working on it"}},
	{"a closed session", "", "--session closed --agent lead send lead x", 5,
		[]string{`the session "closed" is closed`, "read, exported and deleted"}},
	{"a typing error in a session", "", "--session defalt status", 3,
		[]string{`there is no session "defalt"; did you mean default`, "see session list"}},
	{"another's lock", "", "--agent builder-1 lock acquire in.txt", 5, []string{"in.txt is held by lead, ends "}},
	{"a wait that has ended", "", "--agent builder-1 lock acquire in.txt --wait 1ms", 4,
		[]string{"in.txt is held by lead", "place 1 in the queue, ticket ", "stays in the queue for 10s",
			"or release the ticket"}},
	{"a wait that has ended, with --keep", "", "--agent builder-1 lock acquire in.txt --wait 1ms --keep", 4,
		[]string{"place 1 in the queue", "until it releases the ticket; a notice reports the grant"}},
	{"a release of a part of a lock", "", "--agent lead lock release src/login.go", 6,
		[]string{"src/login.go is not locked under this name; lead holds it with src/ (fence ",
			"): brokerctl --agent lead lock release "}},
	{"a release of another's lock", "", "--agent builder-1 lock release src/", 6, []string{"src/ is held by lead\n"}},
	{"a release of no lock", "", "--agent builder-1 lock release other/", 6, []string{"stop the work that needs it"}},
	{"a path outside of the root", "", "--agent builder-1 lock acquire ../../x", 2,
		[]string{"../../x is outside of the session's root", "BROKERD_ROOT"}},
	{"a lost fence", "BROKERD_AGENT=builder-1;BROKERD_FENCE=999999", "send lead x", 6,
		[]string{"no longer holds the lock, token or task with fence 999999", "nothing was done"}},
	{"no credential", "", "--addr $TCP inbox", 7,
		[]string{"a call over TCP needs a credential", "operator.credential", "BROKERD_CREDENTIAL_FILE"}},
	{"a wrong credential", "BROKERD_CREDENTIAL_FILE=wrong.credential", "--addr $TCP inbox", 7,
		[]string{"the credential is not valid for this broker", "BROKERD_CREDENTIAL_FILE"}},
	{"a registration without a name", "", "agent register", 2,
		[]string{"give the agent a name: brokerctl agent register NAME"}},
	{"a question to a role that no agent has", "", "--agent lead ask role:bulider x", 3,
		[]string{"no agent can reply: no agent has the role bulider (did you mean builder"}},
	{"a cancellation of a claimed message", "", "message cancel $WORK", 5,
		[]string{"cancelled no copy: 1 copy is claimed or finished"}},
	{"a redrive of a message that is not dead", "", "dlq redrive $TASK", 5,
		[]string{"message $TASK has no dead letter here; brokerctl message get $TASK shows its state"}},
	{"a reply to a notice", "", "--agent builder-1 reply $NOTICE x", 5,
		[]string{"message $NOTICE takes no reply: the broker has sent it to inform its recipients; acknowledge it", "brokerctl ack finishes it"}},
	{"an unknown task", "", "--agent builder-1 task claim nowhere", 3, []string{`there is no task "nowhere"`}},
	{"a claim of another's task", "", "--agent builder-1 task claim api-task", 5, []string{"lead", "api-task"}},
	{"two names of an agent", "", "--agent lead agent deregister builder-1", 2, []string{`NAME is "builder-1" and --agent is "lead"`, "only one"}},
	{"the end of another's task", "", "--agent builder-1 task complete api-task", 6, []string{"lead", "stop working on it"}},
	{"a blocked task without a reason", "", "--agent lead task block", 2, []string{"--reason is missing"}},
	{"a task without a title", "", "--agent lead task create --role builder", 2, []string{"the title is missing"}},
	{"days", "", "send builder-1 x --ttl 1d", 0, []string{"sent "}},
	{"a duration without a unit", "", "send builder-1 x --delay 5", 2,
		[]string{`--delay: "5" has no unit; write 5s, 5m, 5h or 5d`}},
	{"a duration that is too short", "", "agent register x --lease 0", 2, []string{"--lease: is 0s; 1s to 7d is allowed"}},
	{"a negative limit", "", "session configure default --send-rate -1", 2,
		[]string{"--send-rate: is -1; 0 (no limit), or 0.001 to 1000000 is allowed"}},
	{"a name with a space", "BROKERD_AGENT=a b", "inbox", 2, []string{`BROKERD_AGENT: "a b" is not a name`}},
	{"an agent that is not registered", "BROKERD_AGENT=stranger", "inbox", 3,
		[]string{`the agent "stranger", which makes this call, is not registered`, "brokerctl agent register stranger"}},
	{"a receiver that is no name", "", "send rôle:x hi", 2, []string{`RECEIVER: "rôle:x" is not a name`}},
	{"the end of an agent that does not exist", "", "agent deregister ghost", 3,
		[]string{`there is no agent "ghost" in this session; see brokerctl agent list`}},
	{"an artifact without a name of its own", "", "artifact upload /etc/passwd", 2,
		[]string{"the artifact's name is missing: /etc/passwd is not below this folder"}},
	{"an ack of what is no id", "", "--agent builder-1 ack abc", 2, []string{`ID: "abc" is neither a claim id`}},
	{"a task after one that does not exist", "", "task create x --depends-on t-900", 3, []string{`--depends-on: there is no task "t-900"`}},
	{"an empty flag", "", "task create x --depends-on=", 2, []string{"--depends-on is empty; is a variable of the shell not set?"}},
	{"an empty flag that takes several", "", "event list --type=", 2, []string{"--type is empty"}},
	{"an empty flag of every command", "", "--session= status", 2, []string{"--session is empty"}},
	{"set", "", "state set x 1", 2, []string{"did you mean state put?"}},
	{"a command of another group", "", "message send x y", 2, []string{"did you mean send?"}},
	{"create of what is opened", "", "vote create", 2, []string{"did you mean vote open?"}},
	{"create of what is registered", "", "agent create x", 2, []string{"did you mean agent register?"}},
	{"put of what is uploaded", "", "artifact put x", 2, []string{"did you mean artifact upload?"}},
	{"topic", "", "topic list", 2, []string{"did you mean channel list?"}},
	{"queue", "", "queue", 2, []string{"did you mean mailbox list?"}},
	{"config", "", "config", 2, []string{"did you mean init?"}},
	{"doctor", "", "doctor", 2, []string{"did you mean explain?"}},
	{"msg", "", "msg", 2, []string{"did you mean message list?"}},
	{"login", "", "login", 2, []string{"did you mean dashboard?"}},
	{"start", "", "start", 2, []string{"did you mean up?"}},
	{"up with an address", "", "--addr $TCP up", 2, []string{"--addr names the broker at $TCP", "leave the address out"}},
	{"-m", "", "send builder-1 -m hi", 2, []string{"unknown flag: -m; did you mean --body?"}},
	{"--json", "", "agent list --json", 2, []string{"unknown flag: --json; write -o json"}},
	{"--option", "", "vote open x --option y", 2, []string{"unknown flag: --option; write each OPTION as an argument"}},
	{"a role of the bridge without its agent", "", "bridge maildir . --role critic", 2, []string{"--role critic: use NAME=ROLE"}},
	{"blockers of a format without events", "", "bridge jsonl . --blockers", 2, []string{"--blockers is for the format agent-messages"}},
	{"a folder of the bridge that does not exist", "", "bridge maildir /nowhere", 2, []string{"/nowhere is not a folder that can be read"}},
	{"an artifact that no agent has uploaded", "", "send builder-1 x --artifact nope", 0,
		[]string{"warning: there is no artifact nope so far"}},
	{"a type that ends in a dot", "", "event list --type task.", 2, []string{`"task." ends in a dot`, `"task.*" stands for all`}},
	{"a version without a broker", "", "--addr unix:///nowhere/brokerd.sock version", 0, []string{"brokerd does not answer"}},
}

// internals are names of the API that mean nothing on a command line, and ways around a refusal.
var internals = regexp.MustCompile(`\b(Get|List|Send|Register|Acquire|Release|Claim|Ack)[A-Z][a-z]+` +
	`|metadata|brokerd-[a-z]+:|authorization|Bearer|--agent ''`)

func TestMistakes_AreAnsweredInTermsOfTheCommandLine(tt *testing.T) {
	t := newShell(tt)
	startBrokerWith(t, func(c *app.Config) { c.Listen = []string{"127.0.0.1:0"} })
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "session", "create", "closed")
	must0(t, "session", "close", "closed")
	must0(t, "--agent", "lead", "lock", "acquire", "in.txt")
	must0(t, "--agent", "lead", "lock", "acquire", "src/")
	must0(t, "--agent", "lead", "token", "acquire", "deploy", "staging")
	must0(t, "--agent", "lead", "token", "pass", "deploy", "staging", "builder-1")
	must0(t, "--agent", "lead", "task", "create", "The API", "--id", "api-task")
	must0(t, "--agent", "lead", "task", "claim", "api-task")
	apptest.NoError(t, os.WriteFile(t.path("wrong.credential"), []byte(strings.Repeat("A", 43)), 0o600))
	words := strings.NewReplacer(
		"$WORK", sent(t, "lead", "for lead"),
		"$CLAIM", fmt.Sprint(at(t, fields(t, "--agent", "lead", "claim"), "claim_id")),
		"$TASK", sent(t, "--agent", "lead", "builder-1", "for builder-1"),
		"$ORDER", sent(t, "builder-1", "from an operator"),
		"$NOTICE", fmt.Sprint(at(t, fields(t, "message", "list", "--type", "token_passed"), "message", "revision")),
		"$TCP", tcpAddress(t))
	for _, m := range mistakes {
		t.Run(m.name, func(t *shell) {
			for _, variable := range strings.Split(m.env, ";") {
				if name, value, given := strings.Cut(variable, "="); given {
					t.Setenv(name, value)
				}
			}
			args := strings.Fields(words.Replace(m.args))
			got := ctl(t, args...)
			if got.code != m.exit {
				t.Errorf("exit code %d, want %d", got.code, m.exit)
			}
			for _, want := range m.want {
				if want = words.Replace(want); !strings.Contains(got.out+got.err, want) {
					t.Errorf("%q is missing", want)
				}
			}
			if internal := internals.FindString(got.err); internal != "" {
				t.Errorf("%q belongs to the API", internal)
			}
			if m.exit != 0 && strings.Count(got.err, "\n") != 1 {
				t.Error("it is not one line")
			}
			if t.Failed() {
				t.Logf("%q: %+v", args, got)
			}
		})
	}
}

func TestMistakes_AnEmptyIDOrNameIsRefusedByEveryCommand(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	checked := 0
	for _, cmd := range allCommands(newRoot(command.New(setting.Environment{}))) {
		if !cmd.Runnable() {
			continue
		}
		words := command.ArgumentWords(cmd)
		for i, word := range words {
			if command.MayBeEmpty(cmd, word) {
				continue
			}
			args := slices.Concat(strings.Fields(cmd.CommandPath())[1:], slices.Repeat([]string{"1"}, len(words)))
			args[len(args)-len(words)+i] = ""
			want := fmt.Sprintf("argument %d, %s, is empty", i+1, word)
			if got := ctl(t, args...); got.code != problem.ExitUsage || !strings.Contains(got.err, want) {
				t.Errorf("%q: %+v, want exit code 2 and %q", args, got, want)
			}
			checked++
		}
	}
	if checked < 80 {
		t.Errorf("only %d arguments of commands were checked", checked)
	}
	for _, args := range [][]string{{"lock", "run", "a", "--", ""}, {"send", "builder-1", ""}, {"state", "put", "k", ""}} {
		if got := ctl(t, args...); strings.Contains(got.err, "is empty") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestMistakes_AnEmptyIDDoesNotStandForTheOnlyOpenOne(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "builder-1", "task", "create", "The API", "--id", "api-task")
	must0(t, "--agent", "builder-1", "task", "claim", "api-task")
	must0(t, "--agent", "lead", "decision", "open", "builder-1", "Which database?", "--verdict", "postgres")
	must0(t, "send", "builder-1", "x")
	must0(t, "--agent", "builder-1", "claim")
	for _, args := range [][]string{
		{"task", "complete", ""}, {"decision", "decide", "", "postgres"}, {"decision", "defer", "", "10m"}, {"ack", ""}, {"nack", ""}, {"reply", "", "done"},
	} {
		if got := ctl(t, append([]string{"--agent", "builder-1"}, args...)...); got.code != problem.ExitUsage {
			t.Errorf("%q: %+v, want exit code 2", args, got)
		}
	}
	for _, args := range [][]string{{"task", "complete"}, {"ack"}} { // both are still open
		must0(t, append([]string{"--agent", "builder-1"}, args...)...)
	}
}

// tcpAddress returns where the broker listens on TCP.
func tcpAddress(t *shell) string {
	t.Helper()
	for _, where := range at(t, fields(t, "status"), "listen").([]any) {
		if where := where.(string); !strings.HasPrefix(where, "unix:") {
			return where
		}
	}
	t.Fatal("the broker does not listen on TCP")
	return ""
}

func TestMistakes_AnExpiredClaimIsReportedAsLost(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	must0(t, "agent", "register", "builder-1", "--lease", "10s")
	id := sent(t, "builder-1", "task")
	must0(t, "--agent", "builder-1", "claim")
	s.fails("builder-1")
	for _, args := range [][]string{{"ack"}, {"extend", id + ".1"}} {
		got := ctl(t, append([]string{"--agent", "builder-1"}, args...)...)
		if got.code != 6 || !strings.Contains(got.err, "lost") || !strings.Contains(got.err, "stop") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestExamples_NameNoTypeThatMessagesDoNotHave(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "brokerctl.md"))
	apptest.NoError(t, err)
	if strings.Contains(string(page), "--type directive") {
		t.Error("an example reads messages of the type directive: the types of directives are nudge, halt and so on")
	}
}
