package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/testkit"
)

func TestAgent_RegisterActsAsTheNamedAgent(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.Setenv("BROKERD_AGENT", "lead")
	t.Setenv("BROKERD_INCARNATION", "")
	must0(t, "agent", "register", "lead")
	a := fields(t, "agent", "register", "builder-1", "--role", "builder", "--capability", "sql", "--capability", "go",
		"--instance", "i", "--worktree", "/w", "--label", "k=v")
	if at(t, a, "name") != "builder-1" || at(t, a, "lease") != "24h" || at(t, a, "incarnation") != json.Number("1") ||
		at(t, a, "capabilities", 0) != "go" || at(t, a, "labels", "k") != "v" {
		t.Errorf("%v", a)
	}
	if out := must0(t, "agent", "register", "builder-1", "--lease", "90s", "--replace"); out != "registered builder-1, incarnation 2, lease 1m30s\n" {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "heartbeat", "builder-1", "--status", "active", "--progress", "0.5"); out != "0 unread, 0 to claim; lease 1m30s\n" {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "list", "--status", "active", "-o", "json"); strings.Count(out, "\n") != 1 || at(t, decode(t, out), "progress") != json.Number("0.5") {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "list", "--roles"); out != "ROLE    AGENTS  ACTIVE  FAILED\n(none)  2       1       0\n" {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "deregister", "builder-1", "--reason", "done"); out != "deregistered builder-1\n" {
		t.Errorf("%q", out)
	}
	if got := ctl(t, "agent", "get", "builder-1"); got.code != 3 {
		t.Errorf("%+v", got)
	}
}

func TestAgent_AStaleIncarnationIsLost(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1", "builder-2")
	register(t, "builder-1")
	t.Setenv("BROKERD_AGENT", "builder-1")
	t.Setenv("BROKERD_INCARNATION", "1")
	if got := ctl(t, "inbox"); got.code != 6 || !strings.Contains(got.err, "registered again") {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "builder-2", "inbox") // the incarnation in the environment is not this agent's
	must0(t, "--agent", "", "status")         // nor the operator's
}

func TestAgent_ShowsDirectivesAndHalt(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "lead", "agent", "halt", "builder-1")
	if out := must0(t, "--agent", "builder-1", "agent", "heartbeat"); !strings.HasSuffix(out, "directives: halt; see brokerctl --agent builder-1 next\n") {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "list", "-o", "prompt"); !strings.Contains(out, "agent builder-1, role builder, state starting, halted, ") {
		t.Errorf("%q", out)
	}
	if out := must0(t, "agent", "get", "builder-1"); !strings.Contains(out, "starting, halted\n") {
		t.Errorf("%q", out)
	}
}

func TestAgent_ShowsItsDescriptionHealthAndMessages(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "agent", "register", "a", "--display-name", "Ada", "--description", "builds things")
	register(t, "b")
	if out := must0(t, "agent", "heartbeat", "a", "--status", "degraded", "--reason", "no model answers"); !strings.Contains(out, "to claim") {
		t.Errorf("%q", out)
	}
	must0(t, "--agent", "a", "send", "b", "hello")
	if out := recently(must0(t, "agent", "list", "--health", "degraded", "-o", "prompt")); !strings.Contains(out, "agent a, state degraded, seen now, description Ada: builds things\n") {
		t.Errorf("%q", out)
	}
	out := must0(t, "agent", "get", "a", "-o", "prompt")
	for _, want := range []string{"display name: Ada\n", "description: builds things\n", "reason: no model answers\n", "messages: 1 sent, 0 received, 0 processed\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	must0(t, "agent", "heartbeat", "a", "--status", "completed")
	if out := must0(t, "agent", "get", "a", "-o", "prompt"); !strings.Contains(out, "\ncompleted: ") || strings.Contains(out, "reason: ") {
		t.Errorf("%q", out)
	}
}

func TestChannel_SubscribeListConfigure(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a", "b")
	for _, c := range []struct {
		args string
		want string
	}{
		{"--agent a channel subscribe builds", "subscribed to builds\n"},
		{"--agent a channel subscribe builds", "had already subscribed to builds\n"},
		{"--agent b channel subscribe builds", "subscribed to builds\n"},
		{"channel configure builds --default-ttl 30m", "builds: messages expire after 30m; finished messages are kept as long as the session says\n"},
		{"channel configure builds --message-retention 24h", "builds: messages expire after 30m; finished messages are kept for 24h\n"},
		{"channel list --subscriber a", "CHANNEL  TTL  WAITING  SUBSCRIBERS\nbuilds   30m  0        a, b\n"},
		{"channel configure builds --default-ttl 0s", "builds: messages do not expire by themselves; finished messages are kept for 24h\n"},
		{"channel configure builds --message-retention 0s", "builds: messages do not expire by themselves; finished messages are kept without limit\n"},
		{"--agent b channel unsubscribe builds", "unsubscribed from builds\n"},
		{"--agent b channel unsubscribe builds", "was not subscribed to builds\n"},
	} {
		if out := must0(t, strings.Fields(c.args)...); out != c.want {
			t.Errorf("%s: %q, want %q", c.args, out, c.want)
		}
	}
}

func TestSession_CreateAndConfigure(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.Setenv("BROKERD_SESSION", "website") // does not exist yet
	s := fields(t, "session", "create", "website", "--description", "Relaunch", "--max-attempts", "5", "--mailbox-limit", "0")
	if at(t, s, "settings", "max_attempts") != json.Number("5") || at(t, s, "settings", "mailbox_limit") != json.Number("0") || at(t, s, "settings", "ageing") != "5m" {
		t.Errorf("%v", s)
	}
	s = fields(t, "session", "configure", "--ageing", "0s")
	if at(t, s, "settings", "ageing") != "0s" || at(t, s, "settings", "max_attempts") != json.Number("5") || at(t, s, "description") != "Relaunch" {
		t.Errorf("%v", s)
	}
	if out := must0(t, "session", "get"); !strings.Contains(out, "none, strict order") {
		t.Errorf("%q", out)
	}
	if out := must0(t, "session", "list", "-o", "json"); strings.Count(out, "\n") != 2 {
		t.Errorf("%q", out)
	}
}

func TestSession_EverySettingHasAnOption(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	given := strings.Fields(`--ageing 1m --mailbox-limit 7 --max-attempts 4 --send-rate 2.5 --send-burst 9 --message-limit 4096 --payload-limit 2048
		--breaker-failures 0 --breaker-time 2m --response-time 1h --escalate-to human --escalate-to lead --message-retention 0s --event-retention 48h
		--dead-letter-retention 90s --stale-after 0s --blocker-escalation 5m --unknown-types refuse --invalid-payloads allow
		--artifact-limit 1024 --artifact-total-limit 0 --fold-case --director`)
	want := map[string]any{
		"ageing": "1m", "mailbox_limit": json.Number("7"), "max_attempts": json.Number("4"), "send_rate": json.Number("2.5"),
		"send_burst": json.Number("9"), "message_limit": json.Number("4096"), "payload_limit": json.Number("2048"),
		"breaker_failures": json.Number("0"), "breaker_time": "2m", "response_time": "1h", "escalate_to": []any{"human", "lead"},
		"directors": []any{}, "message_retention": "0s", "event_retention": "48h", "dead_letter_retention": "1m30s", "fold_case": true,
		"stale_after": "0s", "blocker_escalation": "5m", "unknown_types": "refuse", "invalid_payloads": "allow",
		"artifact_limit": json.Number("1024"), "artifact_total_limit": json.Number("0"),
	}
	made := fields(t, append(append([]string{"session", "create", "website"}, given...), "")...)
	if diff := cmp.Diff(want, at(t, made, "settings")); diff != "" {
		t.Errorf("created (-want +got)\n%s", diff)
	}
	changed := fields(t, append(append([]string{"session", "configure"}, given...), "")...)
	if diff := cmp.Diff(want, at(t, changed, "settings")); diff != "" {
		t.Errorf("configured (-want +got)\n%s", diff)
	}
	shown := must0(t, "session", "get", "website")
	for _, line := range []string{
		"state               open", "send rate           2.5 a second, at once 9", "message limit       4096 bytes", "breaker             never",
		"escalates to        human, lead", "directors           operators only", "keeps messages      without limit", "keeps events        2d", "case in lock paths  folded",
	} {
		if !strings.Contains(shown, line+"\n") {
			t.Errorf("no line %q in\n%s", line, shown)
		}
	}
	if out := must0(t, "session", "list"); !strings.Contains(out, "7              4             2.5\n") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "session", "configure"); got.code != 2 {
		t.Errorf("nothing to configure: %+v", got)
	}
}

func TestWhoami_SaysAsWhomAndWhere(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	if got := fields(t, "whoami"); at(t, got, "agent") != nil || at(t, got, "session") != "default" {
		t.Errorf("%v", got)
	}
	if got := fields(t, "--agent", "lead", "whoami"); at(t, got, "agent") != "lead" || at(t, got, "role") != "lead" || at(t, got, "incarnation") != json.Number("1") {
		t.Errorf("%v", got)
	}
	if got := ctl(t, "--agent", "stranger", "whoami"); got.code == 0 {
		t.Errorf("%+v", got)
	}
}

func TestStatus_ShowsWhatWaitsWhere(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a")
	sent(t, "a", "one")
	out := must0(t, "status")
	if !strings.Contains(out, "messages   1 waiting, 0 claimed, 0 dead\n") || !strings.Contains(out, "MAILBOX  WAITING  CLAIMED  DEAD\na        1        0        0\n") {
		t.Errorf("%s", out)
	}
}

func TestEvents_ListIsFiltered(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a")
	sent(t, "a", "one")
	for args, want := range map[string]int{
		"event list":                                  3, // with the start of the broker
		"event list --since 1h":                       3,
		"event list --until 1h":                       0,
		"event list --until-revision 2":               2,
		"event follow --since 1h --limit 2":           2,
		"event list --category message":               1,
		"event list --type agent.*":                   1,
		"event list --newest --limit 1":               1,
		"event list --severity error":                 0,
		"event follow --after 0 --limit 2":            2,
		"event follow --cursor c --after 0 --limit 1": 1,
		"event list --source a":                       1,
	} {
		if out := must0(t, append([]string{"-o", "json"}, strings.Fields(args)...)...); strings.Count(out, "\n") != want {
			t.Errorf("%s, want %d:\n%s", args, want, out)
		}
	}
}

func TestCompletion_KnowsReceiversAndTypes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	fence := at(t, fields(t, "--agent", "lead", "lock", "acquire", "src/a.go"), "fence").(json.Number).String()
	must0(t, "--agent", "lead", "token", "acquire", "test_run", "ci")
	must0(t, "--agent", "lead", "channel", "subscribe", "builds")
	message := number(at(t, fields(t, "send", "lead", "one", "--type", "survey"), "revision"))
	claimable := number(at(t, fields(t, "send", "builder-1", "two", "--thread", "design"), "revision"))
	must0(t, "--agent", "lead", "claim", message)
	dead := number(at(t, fields(t, "send", "role:lead", "three"), "revision"))
	must0(t, "--agent", "lead", "claim", dead)
	must0(t, "--agent", "lead", "nack", dead+".1", "--fatal")
	must0(t, "--agent", "lead", "review", "submit", "login", "builder-1", "The page", "--wait", "0")
	must0(t, "--agent", "lead", "state", "put", "plan/step", "3")
	for args, want := range map[string]string{
		"send|":              "everyone builder-1 lead role:builder role:lead channel:builds",
		"send|x|--type|":     "survey",
		"--agent|":           "builder-1 lead",
		"channel|subscribe|": "builds",
		"session|get|":       "default",
		"-o|":                "table json prompt",

		"--agent|lead|lock|release|":       "src/a.go",
		"--agent|lead|lock|extend|":        fence,
		"lock|get|":                        "src/a.go " + fence,
		"lock|list|--owner|":               "builder-1 lead",
		"token|acquire|":                   "test_run",
		"token|get|test_run|":              "ci",
		"token|pass|test_run|ci|":          "builder-1 role:builder",
		"--session|":                       "default",
		"agent|list|--role|":               "builder lead",
		"send|x|--reply-to|":               message,
		"claim|--mailbox|":                 "builder-1 role:builder channel:builds",
		"event|list|--type|":               "message.sent lock.granted",
		"event|list|--source-role|":        "lead",
		"session|configure|--escalate-to|": "lead builder",
		"token|list|--type|":               "test_run",
		"message|get|":                     message,
		"explain|message|":                 message,
		"explain|token|test_run|":          "ci",
		"thread|get|":                      "design " + message,
		"--agent|builder-1|claim|":         claimable,
		"--agent|lead|ack|":                message + ".1",
		"dlq|redrive|":                     dead,
		"review|approve|":                  "login",
		"review|submit|login|":             "builder-1 role:lead",
		"state|get|":                       "plan/step",
		"state|rm|plan/":                   "plan/step",
		"admin|move|":                      "role:builder",
		"agents|get|":                      "builder-1",
		"completion|":                      "bash zsh fish powershell",
		"help|":                            "receivers exit-codes send",
		"agent|list|--health|":             "failed",
		"hook|claude-code|--fail|":         "closed",
	} {
		var lines, missing []string
		// A shell gets no words if the broker takes longer than it waits, as on a busy machine.
		for until := time.Now().Add(testkit.Patience); ; {
			lines = strings.Split(must0(t, append([]string{"__complete"}, strings.Split(args, "|")...)...), "\n")
			missing = slices.DeleteFunc(strings.Fields(want), func(word string) bool {
				return slices.ContainsFunc(lines, func(line string) bool {
					return line == word || strings.HasPrefix(line, word+"\t")
				})
			})
			if len(missing) == 0 || len(lines) > 2 || time.Now().After(until) {
				break
			}
		}
		if len(missing) > 0 {
			t.Errorf("%s: no %q in %q", args, missing, lines)
		}
	}
	if out := must0(t, "__complete", "--agent", "builder-1", "lock", "release", ""); strings.Contains(out, "a.go") {
		t.Errorf("another agent's lock is completed: %q", out)
	}
}
