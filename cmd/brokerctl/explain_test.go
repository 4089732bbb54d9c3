package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/calls"
)

// A stage is a daemon whose clock the test moves, with what the shell needs to run suggested commands.
type stage struct {
	*clockwork.FakeClock
	t     *shell
	env   []string
	disk  float64  // the share that is used
	asked []string // the arguments of explain; none = the worst problems
}

func newStage(t *shell) *stage {
	t.Helper()
	s := &stage{FakeClock: clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), t: t}
	startBrokerWith(t, func(c *app.Config) {
		c.Clock = s.FakeClock
		c.DiskUsed = func(string) (float64, error) { return s.disk, nil }
	})
	must0(t, "session", "configure", "--send-rate", "0", "--breaker-failures", "2", "--breaker-time", "1h", "--response-time", "10m")
	s.env = program(t)
	return s
}

// A told is a finding as brokerctl prints it.
type told struct {
	severity, subject, summary string
	reasons, commands          []string
	calls                      []proposal // in the order of the commands
}

// A proposal is a call of a finding.
type proposal struct {
	method, request, agent string
	missing, program       []string
}

// changes reports whether the call changes something, and can be made as it is.
func (p proposal) changes() bool {
	call := &pb.Call{Method: p.method, Request: p.request}
	read, err := calls.Read(call)
	return err == nil && !read.Shows() && len(p.missing) == 0 && len(p.program) == 0
}

func (f told) String() string {
	return fmt.Sprintf("%s %s: %s\n  %s\n  $ %s", f.severity, f.subject, f.summary, strings.Join(f.reasons, "\n  "), strings.Join(f.commands, "\n  $ "))
}

// has reports whether the text stands in the summary or in a reason.
func (f told) has(text string) bool {
	return slices.ContainsFunc(append(f.reasons, f.summary), func(s string) bool { return strings.Contains(s, text) })
}

// explain returns what brokerctl explain tells.
func (s *stage) explain(args ...string) []told {
	s.t.Helper()
	var all []told
	for _, l := range strings.Split(strings.TrimSpace(must0(s.t, append([]string{"-o", "json", "explain"}, args...)...)), "\n") {
		if l == "" {
			continue
		}
		m := decode(s.t, l)
		texts := func(of any, field string) (list []string) {
			for _, v := range at(s.t, of, field).([]any) {
				list = append(list, v.(string))
			}
			return list
		}
		f := told{
			severity: strings.ToUpper(at(s.t, m, "severity").(string)), subject: at(s.t, m, "subject").(string),
			summary: at(s.t, m, "summary").(string), reasons: texts(m, "reasons"),
		}
		for _, call := range at(s.t, m, "calls").([]any) {
			request, err := json.Marshal(at(s.t, call, "request"))
			apptest.NoError(s.t, err)
			f.calls = append(f.calls, proposal{
				at(s.t, call, "method").(string), string(request), at(s.t, call, "agent").(string), texts(call, "missing"), texts(call, "program"),
			})
		}
		all = append(all, f)
	}
	// People see a command for each call, in the same order.
	for i, text := range strings.Split(must0(s.t, append([]string{"explain"}, args...)...), "\n\n") {
		for line := range strings.SplitSeq(text, "\n") {
			if command, ok := strings.CutPrefix(line, "  $ "); ok {
				all[i].commands = append(all[i].commands, command)
			}
		}
	}
	return all
}

// finds wants a finding of that severity about the subject that says all of the texts, and returns it.
func (s *stage) finds(about []string, severity, subject string, texts ...string) told {
	s.t.Helper()
	all := s.explain(about...)
	for _, f := range all {
		if f.severity == severity && f.subject == subject && !slices.ContainsFunc(texts, func(text string) bool { return !f.has(text) }) {
			return f
		}
	}
	s.t.Fatalf("explain %q: no %s about %s that says %q, but\n%v", about, severity, subject, texts, all)
	return told{}
}

// fine wants nothing worse than INFO.
func (s *stage) fine(about ...string) {
	s.t.Helper()
	for _, f := range s.explain(about...) {
		if f.severity != "INFO" {
			s.t.Errorf("explain %q: still %v", about, f)
		}
	}
}

// run runs a suggested command as it stands, in a shell.
func (s *stage) run(command string) string {
	s.t.Helper()
	cmd := s.t.command("sh", "-c", command)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v, %s", command, err, out)
	}
	return string(out)
}

// begins wants the first command of a finding to begin so.
func (s *stage) begins(f told, begins string) {
	s.t.Helper()
	if len(f.commands) == 0 || !strings.HasPrefix(f.commands[0], begins) {
		s.t.Fatalf("the first command is not %s…: %v", begins, f)
	}
}

// frees runs the first command of a finding, which must begin so.
func (s *stage) frees(f told, begins string) {
	s.t.Helper()
	s.begins(f, begins)
	s.run(f.commands[0])
}

// all runs every command of a finding that only shows something.
func (s *stage) shows(f told) {
	s.t.Helper()
	for _, c := range f.commands {
		for _, harmless := range []string{"explain", "get", "list", "report", "inbox"} {
			if slices.Contains(strings.Fields(c), harmless) {
				s.run(c)
			}
		}
	}
}

func TestExplain_MessageInItsTurn(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	first, second := sent(t, "--agent", "lead", "role:builder", "one"), sent(t, "--agent", "lead", "role:builder", "two")
	third := sent(t, "--agent", "lead", "role:builder", "three")
	must0(t, "--agent", "builder-1", "claim")
	s.finds([]string{"message", third}, "INFO", "message "+third, "behind 1 message", "builder-1 works on 1 message and does not ask for more")
	f := s.finds([]string{"message", first}, "INFO", "message "+first, "builder-1 works on it, from role:builder", "the claim, attempt 1 of 3, ends at 03:34:05 UTC (in 30m)",
		"the last call of builder-1 was at")
	s.shows(f)
	s.Advance(16 * time.Minute)
	f = s.finds(nil, "WARNING", "mailbox role:builder", "the first for 16m (a warning after 15m), although builder-1 could take it")
	s.shows(f)
	f = s.finds([]string{"message", second}, "WARNING", "message "+second)
	s.frees(f, "brokerctl agent nudge role:builder")
	must0(t, "--agent", "builder-1", "ack")
	s.finds([]string{"message", first}, "INFO", "message "+first, "builder-1 has finished it, from role:builder")
}

func TestExplain_ClaimHeldForLong(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "one")
	must0(t, "--agent", "builder-1", "claim", "--for", "2h")
	s.fine()
	s.fine("agent", "builder-1")
	s.Advance(31 * time.Minute)
	s.finds(nil, "WARNING", "agent builder-1", "it works on 1 message", "on one of them for 31m (a warning after 30m)", "message "+id+" since 03:04:05 UTC")
	s.finds([]string{"agent", "builder-1"}, "WARNING", "agent builder-1", "it works on 1 message")
	f := s.finds([]string{"message", id}, "WARNING", "message "+id, "builder-1 has held the claim for 31m (a warning after 30m)")
	s.frees(f, "brokerctl --agent builder-1 release "+id+".1")
	s.run("brokerctl --agent builder-1 claim")
	s.fine("agent", "builder-1")
}

func TestExplain_OrderingKeyHeldUp(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	head := sent(t, "--agent", "lead", "role:builder", "one", "--ordering-key", "it's K")
	second := sent(t, "--agent", "lead", "role:builder", "two", "--ordering-key", "it's K")
	third := sent(t, "--agent", "lead", "role:builder", "three", "--ordering-key", "it's K")
	must0(t, "--agent", "builder-1", "claim", "--for", "2h")
	s.finds([]string{"message", third}, "INFO", "message "+third, "behind message "+head+", which has the same ordering key", "2 messages with this key come before it",
		"message "+head+": builder-1 works on it")
	s.fine()
	s.Advance(11 * time.Minute)
	f := s.finds(nil, "WARNING", "mailbox role:builder", `the ordering key "it's K" wait behind message `+head+" (a warning after 10m)", "builder-1 works on it")
	s.shows(f)
	must0(t, "--agent", "builder-1", "nack", "--delay", "1h", "--error", "no compiler")
	s.finds([]string{"message", second}, "INFO", "message "+second, "it has failed 1 of 3 times in role:builder", "no compiler", "by builder-1")
	f = s.finds(nil, "WARNING", "mailbox role:builder", "wait behind message "+head, "the next attempt is at 04:15:05 UTC (in 1h)")
	s.run(f.commands[len(f.commands)-1]) // withdraws the first
	s.finds([]string{"message", second}, "INFO", "message "+second, "waits in role:builder as the first")
	s.fine("agent", "builder-1")
}

func TestExplain_HaltedAgent(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "lead", "agent", "halt", "builder-1")
	s.finds(nil, "ERROR", "agent builder-1", "it is halted by lead", "1 message waits in its mailbox")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "ack")
	s.finds(nil, "WARNING", "agent builder-1", "it is halted by lead")
	id := sent(t, "--agent", "lead", "builder-1", "work")
	f := s.finds([]string{"message", id}, "ERROR", "message "+id, "builder-1 is halted", "by directive")
	role := sent(t, "--agent", "lead", "role:builder", "work")
	s.finds([]string{"message", role}, "ERROR", "message "+role, "builder-1 is halted")
	s.finds([]string{"agent", "builder-1"}, "ERROR", "agent builder-1", "it is halted")
	nudge := sent(t, "builder-1", "hello", "--type", "nudge")
	s.fine("message", nudge) // directives pass
	s.frees(f, "brokerctl agent resume builder-1")
	s.fine("message", id)
	s.fine("agent", "builder-1")
	s.fine()
}

func TestExplain_OpenBreakerAndDeadLetter(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead")
	must0(t, "agent", "register", "builder-1", "--role", "builder", "--capability", "go", "--label", "desk=it's mine", "--worktree", "/src/my tree", "--lease", "2h")
	var ids []string
	for range 3 {
		ids = append(ids, sent(t, "--agent", "lead", "builder-1", "work"))
	}
	for range 2 {
		must0(t, "--agent", "builder-1", "claim")
		must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
	}
	dead := s.finds([]string{"message", ids[1]}, "ERROR", "message "+ids[1], "it is a dead letter in builder-1 after 1 attempt", "by builder-1", "no compiler")
	all := s.finds(nil, "ERROR", "mailbox builder-1", "2 dead letters", "the newest is message "+ids[1], "no compiler")
	s.shows(all)
	f := s.finds([]string{"message", ids[2]}, "WARNING", "message "+ids[2], "the circuit breaker of builder-1 is open", "after 2 failures in a row", "at 04:04:05 UTC (in 1h) the broker delivers one message to it as a probe")
	s.finds(nil, "WARNING", "agent builder-1", "the circuit breaker of builder-1 is open after 2 failures in a row")
	s.finds([]string{"agent", "builder-1"}, "WARNING", "agent builder-1", "the circuit breaker")
	s.frees(f, `brokerctl message cancel`)
	s.finds(nil, "WARNING", "agent builder-1", "the circuit breaker")
	f = s.finds([]string{"agent", "builder-1"}, "WARNING", "agent builder-1", "registering builder-1 again closes the breaker at once")
	s.frees(f, `brokerctl agent register builder-1 --role builder --capability go --worktree '/src/my tree' --label 'desk=it'\''s mine' --lease 2h`)
	got := fields(t, "agent", "get", "builder-1")
	if at(t, got, "agent", "labels", "desk") != "it's mine" || at(t, got, "agent", "worktree") != "/src/my tree" || at(t, got, "agent", "lease") != "2h" {
		t.Errorf("registered as %v", got)
	}

	s.frees(dead, "brokerctl dlq redrive "+ids[1]+" --mailbox builder-1")
	s.fine("message", ids[1])
	s.frees(all, "brokerctl dlq redrive --mailbox builder-1")
	s.fine()
	s.fine("agent", "builder-1")
}

func TestExplain_DeadLetterOfAnAgentThatIsGone(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "work")
	must0(t, "agent", "deregister", "builder-1")
	f := s.finds([]string{"message", id}, "ERROR", "message "+id, "it is a dead letter", "no agent builder-1 is registered")
	s.begins(f, "brokerctl dlq delete "+id)
	f = s.finds(nil, "ERROR", "mailbox builder-1", "1 dead letter")
	s.frees(f, "brokerctl dlq delete --mailbox builder-1")
	s.fine("message", id)
	s.fine()
}

func TestExplain_OverdueAnswer(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
	s.finds([]string{"message", id}, "INFO", "message "+id, "its answer is due at 03:14:05 UTC (in 10m)")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "ack")
	s.fine()
	s.Advance(11 * time.Minute)
	s.await("message.overdue")
	f := s.finds([]string{"message", id}, "WARNING", "message "+id, "lead waits for its answer, which was due at 03:14:05 UTC (1m ago)", "builder-1 acknowledged it", "without an answer")
	s.finds([]string{"agent", "lead"}, "WARNING", "message "+id, "lead waits for its answer")
	s.finds([]string{"agent", "builder-1"}, "WARNING", "message "+id, "lead waits for its answer")
	s.finds(nil, "WARNING", "message "+id, "lead waits for its answer")
	s.frees(f, "brokerctl agent nudge builder-1 'answer message "+id+"'")
	s.run(f.commands[len(f.commands)-1])
	s.finds([]string{"message", id}, "INFO", "message "+id, "its sender expects no answer any more")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "ack")
	s.fine()
	s.fine("agent", "lead")
	answered := sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
	reply := at(t, fields(t, "--agent", "builder-1", "reply", answered, "main"), "result", "revision")
	s.finds([]string{"message", answered}, "INFO", "message "+answered, fmt.Sprintf("it was answered by message %v", reply))
}

func TestExplain_DelayedAndExpired(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	late := sent(t, "--agent", "lead", "builder-1", "later", "--not-before", "2026-01-02T03:09:05Z", "--ttl", "10m")
	s.finds([]string{"message", late}, "INFO", "message "+late, "its sender delayed it: the broker delivers it in builder-1 from 03:09:05 UTC (in 5m) on")
	s.finds([]string{"agent", "builder-1"}, "INFO", "mailbox builder-1", "1 message waits in it, 0 unread", "none of them is ready")
	s.Advance(20 * time.Minute)
	s.await("message.expired")
	s.finds([]string{"message", late}, "INFO", "message "+late, "it has expired in builder-1")
}

func TestExplain_FullMailbox(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "session", "configure", "--mailbox-limit", "10")
	for range 8 {
		sent(t, "--agent", "lead", "builder-1", "work")
	}
	s.fine()
	sent(t, "--agent", "lead", "builder-1", "work")
	s.finds(nil, "WARNING", "mailbox builder-1", "9 of at most 10 messages wait in it")
	sent(t, "--agent", "lead", "builder-1", "work")
	f := s.finds(nil, "ERROR", "mailbox builder-1", "10 of at most 10 messages wait in it", "the broker refuses further messages to it")
	s.shows(f)
	s.frees(f, "brokerctl session configure --mailbox-limit 20")
	s.fine()
}

func TestExplain_FullDisk(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	s.disk = 0.84
	s.fine()
	s.disk = 0.9
	s.frees(s.finds(nil, "WARNING", "disk", "90 % of the disk"), "brokerctl status")
	s.disk = 0.97
	s.finds(nil, "ERROR", "disk", "97 % of the disk", "the broker refuses to send")
}

func TestExplain_ManyRecipients(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "b-1", "b-2", "b-3")
	id := sent(t, "--agent", "lead", "b-*", "work")
	must0(t, "--agent", "b-2", "claim")
	must0(t, "--agent", "b-2", "ack")
	must0(t, "--agent", "b-3", "claim")
	must0(t, "--agent", "b-3", "nack", "--fatal", "--error", "no")
	all := s.explain("message", id)
	if len(all) != 4 || all[0].severity != "ERROR" || !all[0].has("dead letter in b-3") {
		t.Errorf("%v", all)
	}
	s.shows(s.finds([]string{"message", id}, "INFO", "message "+id, "1 of 3 recipients have finished it"))
	s.finds([]string{"message", id}, "INFO", "message "+id, "waits in b-1")
	nobody := sent(t, "--agent", "lead", "channel:empty", "hello")
	s.finds([]string{"message", nobody}, "INFO", "message "+nobody, "it had no recipients")
}

func TestExplain_InAnotherSession(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	must0(t, "session", "create", "web-1")
	must0(t, "--session", "web-1", "send", "role:tester", "work")
	s.fine()
	for _, args := range [][]string{{"--session", "web-1"}, {"--session=web-1"}} {
		out := must0(t, append(args, "explain")...)
		if !strings.Contains(out, "$ brokerctl --session web-1 message cancel ") || !strings.HasPrefix(out, "ERROR    mailbox role:tester, for ") {
			t.Error(out)
		}
	}
	prompt := withoutFrames(must0(t, "--session", "web-1", "-o", "prompt", "explain"))
	if !strings.HasPrefix(prompt, "ERROR mailbox role:tester, for ") || !strings.Contains(prompt, "\nRun: brokerctl --session web-1 message cancel ") {
		t.Error(prompt)
	}
	t.Setenv("BROKERD_AGENT", "somebody")
	if out := must0(t, "--session", "web-1", "--agent", "", "explain"); !strings.Contains(out, "$ brokerctl --session web-1 --agent '' explain") &&
		!strings.Contains(out, "--agent ''") {
		t.Error(out)
	}
}

func TestExplain_RefusesWhatIsNotThere(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"message 999", 3, "999"}, {"message x", 2, "no message's id"}, {"agent bilder-1", 3, "builder-1"}, {"role painter", 3, "painter"},
		{"token review login", 3, "login"}, {"token review", 2, "its scope is missing"}, {"lock", 2, "path"}, {"builder-1", 2, `cannot explain "builder-1"; write: brokerctl explain message ID, lock PATH, token TYPE SCOPE, agent NAME, role ROLE`},
		{"bug x", 2, "explain message ID"}, {"999 x", 2, "explain message ID"}, {"999", 3, "message 999"}, {"999.1", 3, "999"},
		{"019b7ca9-8c88-72c0-80bf-000000000005", 3, "019b7ca9"},
		{"agent builder-1 x", 2, "one too many"}, {"token re/view login", 3, "view/login"}, {"agent /", 2, "not a name"},
	} {
		got := ctl(t, append([]string{"explain"}, strings.Fields(c.args)...)...)
		if got.code != c.code || !strings.Contains(got.err, c.text) || got.out != "" {
			t.Errorf("explain %s: %+v, want %d and %q", c.args, got, c.code, c.text)
		}
	}
	if got := ctl(t, "explain"); got.code != 0 || got.out != "" || got.err != "nothing is stuck\n" {
		t.Errorf("%+v", got)
	}
}

// await returns once the newest events include one of the type.
func (s *stage) await(kind string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if got := s.t.invoke(ctx, "", make(chan os.Signal), "event", "follow", "--after", "0", "--type", kind, "--limit", "1"); got.code != 0 {
		s.t.Fatalf("waiting for %s: %+v", kind, got)
	}
}
