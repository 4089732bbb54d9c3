package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/calls"
)

// furtherSituations have the commands of situations in which explain says more than one thing, or is
// asked about one thing.
var furtherSituations = []situation{
	{
		name:     "a drain",
		arrange:  func(t *shell, _ *stage) { must0(t, "admin", "drain") },
		severity: "ERROR", subject: "broker", commands: []string{"admin drain --resume"},
	},
	{
		name: "a failed task",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "--agent", "lead", "task", "create", "build", "--id", "build")
			must0(t, "--agent", "builder-1", "task", "claim", "build")
			must0(t, "--agent", "builder-1", "task", "fail", "build", "--fatal", "--error", "no compiler")
		},
		severity: "ERROR", subject: "task build", commands: []string{"task retry build", "task get build"},
	},
	{
		name: "a task that waits for a cancelled one",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead")
			must0(t, "--agent", "lead", "task", "create", "build", "--id", "build")
			must0(t, "--agent", "lead", "task", "create", "test", "--id", "test", "--depends-on", "build")
			must0(t, "--agent", "lead", "task", "cancel", "build")
		},
		severity: "ERROR", subject: "task test", commands: []string{"task cancel test"},
	},
	{
		name: "a task without news",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "--agent", "lead", "task", "create", "build", "--id", "build", "--stale-after", "10m")
			must0(t, "--agent", "builder-1", "task", "claim", "build")
			s.Advance(9 * time.Minute)
		},
		severity: "WARNING", subject: "task build", commands: []string{"task get build", "task release build"},
	},
	{
		name: "a blocker that no agent acknowledges",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder", "dba-1/dba")
			must0(t, "--agent", "builder-1", "blocker", "raise", "no access", "--severity", "critical", "--to", "dba-1")
		},
		severity: "WARNING", subject: "blocker b-",
		commands: []string{"blocker ack b-", "blocker resolve b-", "blocker get b-"},
	},
	{
		name: "a handoff without an answer",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "--agent", "lead", "handoff", "create", "builder-1", "Login page")
			s.Advance(61 * time.Minute)
		},
		severity: "WARNING", subject: "handoff h-", commands: []string{"handoff get h-", "handoff cancel h-"},
	},
	{
		name: "a vote of a failed agent",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead")
			must0(t, "agent", "register", "builder-1", "--lease", "5s")
			must0(t, "--agent", "lead", "vote", "open", "Deploy?", "yes", "no", "--to", "builder-1")
			s.fails("builder-1")
		},
		severity: "WARNING", subject: "vote v-", commands: []string{"vote get v-", "vote close v-"},
	},
	{
		name: "a review that a halted agent owes",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder", "critic-1/critic")
			must0(t, "--agent", "builder-1", "review", "submit", "login", "critic-1", "--wait", "0")
			must0(t, "agent", "halt", "critic-1")
		},
		severity: "WARNING", subject: "decision d-",
		commands: []string{"explain agent critic-1", "decision get d-", "decision cancel d-"},
	},
	{
		name: "a review for another round",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder", "critic-1/critic")
			must0(t, "--agent", "builder-1", "review", "submit", "login", "critic-1", "--wait", "0")
			must0(t, "--agent", "critic-1", "review", "revise", "login")
			must0(t, "agent", "halt", "builder-1")
		},
		severity: "WARNING", subject: "decision d-",
		commands: []string{"explain agent builder-1", "decision get d-", "decision cancel d-"},
	},
	{
		name: "a review that has escalated",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "critic-1/critic")
			must0(t, "--agent", "builder-1", "review", "submit", "login", "critic-1", "--wait", "0",
				"--deadline", "2026-01-02T03:14:05Z")
			s.escalates()
		},
		severity: "ERROR", subject: "decision d-",
		commands: []string{"decision decide d-", "decision decide d-", "decision reject d-", "decision get d-"},
	},
	{
		name: "a plan that has escalated",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "critic-1/critic")
			must0(t, "--agent", "builder-1", "plan", "submit", "login", "critic-1", "--wait", "0",
				"--deadline", "2026-01-02T03:14:05Z")
			s.escalates()
		},
		severity: "ERROR", subject: "decision d-",
		commands: []string{"decision decide d-", "decision decide d-", "decision reject d-", "decision get d-"},
	},
	{
		name: "a shutdown that has escalated",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder")
			must0(t, "agent", "shutdown", "builder-1", "We are done", "--deadline", "2026-01-02T03:14:05Z")
			s.escalates()
		},
		severity: "ERROR", subject: "decision d-",
		commands: []string{"decision accept d-", "decision defer d-", "decision reject d-", "decision get d-"},
	},
	{
		name: "another decision that has escalated",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "critic-1/critic")
			must0(t, "--agent", "builder-1", "decision", "open", "critic-1", "Which database?", "--verdict", "sqlite",
				"--verdict", "defer", "--deadline", "2026-01-02T03:14:05Z")
			s.escalates()
		},
		severity: "ERROR", subject: "decision d-",
		commands: []string{"decision decide d-", "decision defer d-", "decision get d-"},
	},
	{
		name: "a ticket of a lock",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "builder-2/builder")
			must0(t, "--agent", "builder-1", "lock", "acquire", "src/")
			ctl(t, "--agent", "builder-2", "lock", "acquire", "src/a.go", "--keep")
			s.asked = []string{"agent", "builder-2"}
		},
		severity: "INFO", subject: "lock src/a.go", commands: []string{"lock revoke ", "--agent builder-2 lock release "},
		then: func(t *shell) { ctl(t, "--agent", "builder-2", "lock", "release", "src/a.go") },
	},
	{
		name: "a token that another agent waits for",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "builder-2/builder")
			must0(t, "--agent", "builder-1", "token", "acquire", "review", "it's login", "--for", "2h")
			ctl(t, "--agent", "builder-2", "token", "acquire", "review", "it's login", "--keep")
			s.Advance(6 * time.Minute)
		},
		severity: "WARNING", subject: "token review/it's login",
		commands: []string{"token revoke review ", "explain agent builder-1"},
	},
	{
		name: "a ticket of a token",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "builder-2/builder")
			must0(t, "--agent", "builder-1", "token", "acquire", "review", "login")
			ctl(t, "--agent", "builder-2", "token", "acquire", "review", "login", "--keep", "--holder", "w1")
			s.asked = []string{"agent", "builder-2"}
		},
		severity: "INFO", subject: "token review/login",
		commands: []string{"token revoke review login ", "--agent builder-2 token release review login --holder w1"},
		then: func(t *shell) {
			ctl(t, "--agent", "builder-2", "token", "release", "review", "login", "--holder", "w1")
		},
	},
	{
		name: "a question that waits for a role",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
			sent(t, "--agent", "lead", "role:builder", "which branch?", "--requires-response")
			s.Advance(11 * time.Minute)
			s.await("message.overdue")
		},
		severity: "WARNING", subject: "message ",
		commands: []string{"message resend ", "explain message ", "thread resolve "},
		then: func(t *shell) {
			if got := ctl(t, "--agent", "builder-1", "claim"); got.code == 0 {
				must0(t, "--agent", "builder-1", "reply", "--ack", "main")
			}
		},
	},
	{
		name: "one message for a misspelled role",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "builder-2/builder")
			s.asked = []string{"message", sent(t, "role:bulider", "work")}
		},
		severity: "ERROR", subject: "message ",
		commands: []string{"admin move role:bulider role:builder --id ", "message cancel "},
	},
	{
		name: "one dead letter",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			s.asked = []string{"message", sent(t, "--agent", "lead", "builder-1", "work")}
			must0(t, "--agent", "builder-1", "claim")
			must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
		},
		severity: "ERROR", subject: "message ", commands: []string{"dlq redrive ", "dlq delete "},
	},
	{
		name: "a claim of a halted agent",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			s.asked = []string{"message", sent(t, "--agent", "lead", "builder-1", "work")}
			must0(t, "--agent", "builder-1", "claim", "--for", "2h")
			must0(t, "--agent", "lead", "agent", "halt", "builder-1")
			s.Advance(31 * time.Minute)
		},
		severity: "WARNING", subject: "message ",
		commands: []string{"agent resume builder-1", "--agent builder-1 release ", "explain agent builder-1"},
		then: func(t *shell) {
			ctl(t, "--agent", "builder-1", "release")
			for range 3 { // the directives come first
				ctl(t, "--agent", "builder-1", "claim")
				ctl(t, "--agent", "builder-1", "ack")
			}
		},
	},
}

func TestExplain_CallsRemoveTheFinding(tt *testing.T) {
	t := newShell(tt)
	for _, c := range slices.Concat(situations, furtherSituations) {
		t.Run(c.name, func(t *shell) {
			t.Parallel()
			for n, changes := 0, 1; n < changes; n++ {
				t.Run(fmt.Sprint("call ", n), func(t *shell) { changes = c.call(t, n) })
			}
		})
	}
}

// call makes one of the calls that change something in a new place, and returns how many the finding has. The command of each
// call of the finding makes that call.
func (c *situation) call(t *shell, n int) (changes int) {
	t.Helper()
	s := newStage(t)
	c.arrange(t, s)
	f, found := s.about(c)
	if !found {
		t.Fatalf("nothing is found but %v", s.explain(s.asked...))
	}
	var direct []proposal
	for i, p := range f.calls {
		if p.changes() {
			direct = append(direct, p)
		}
		if n == 0 {
			makes(t, p.read(t), f.commands[i])
		}
	}
	if changes = len(direct); n >= changes {
		return changes
	}
	s.make(direct[n])
	if c.then != nil {
		c.then(t)
	}
	if c.commands == nil { // each call removes a part
		return changes
	}
	if after, found := s.about(c); found {
		t.Errorf("after %v there is still %v", direct[n], after)
	}
	return changes
}

// read returns the call that a finding has.
func (p proposal) read(t testing.TB) calls.Call {
	t.Helper()
	call, err := calls.Read(&pb.Call{
		Method: p.method, Request: p.request, Agent: p.agent, Missing: p.missing, Program: p.program,
	})
	apptest.NoError(t, err)
	return call
}

func TestExplain_CommandsOfFurtherSituationsRemoveTheFinding(tt *testing.T) {
	t := newShell(tt)
	for _, c := range furtherSituations {
		t.Run(c.name, func(t *shell) {
			t.Parallel()
			s := newStage(t)
			c.arrange(t, s)
			f, _ := s.about(&c)
			if len(f.commands) != len(c.commands) {
				t.Fatalf("%d commands, want %d: %v", len(f.commands), len(c.commands), f)
			}
			for i, begins := range c.commands {
				if !strings.HasPrefix(f.commands[i], "brokerctl "+begins) {
					t.Errorf("command %d is %s", i, f.commands[i])
				}
			}
			s.run(f.commands[slices.IndexFunc(f.calls, proposal.changes)])
			if c.then != nil {
				c.then(t)
			}
			if f, found := s.about(&c); found {
				t.Errorf("there is still %v", f)
			}
		})
	}
}

// escalates lets the deadline of a decision pass.
func (s *stage) escalates() {
	s.t.Helper()
	s.Advance(11 * time.Minute)
	s.await("decision.escalated")
}

// make makes a call as a program does that knows the API by its descriptors alone.
func (s *stage) make(p proposal) {
	s.t.Helper()
	call := p.read(s.t)
	options, err := client.Environment{Getenv: s.t.Getenv}.Options()
	apptest.NoError(s.t, err)
	broker, err := client.Dial(s.t.Context(), options...)
	apptest.NoError(s.t, err)
	defer broker.Close()
	if err := broker.As(call.Agent).Conn().Invoke(s.t.Context(), p.method, call.Request, &emptypb.Empty{}); err != nil {
		s.t.Fatalf("%v: %v", p, err)
	}
}
