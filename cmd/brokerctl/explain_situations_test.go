package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A situation is something that is stuck, with the finding about it.
type situation struct {
	name     string
	arrange  func(t *shell, s *stage)
	severity string
	subject  string
	says     []string
	commands []string       // their beginnings, in order; those that change something must remove the finding
	then     func(t *shell) // what an agent does after the command, if the command asks an agent to act
}

var situations = []situation{
	{
		name: "a misspelled role",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
			sent(t, "--agent", "lead", "role:bulider", "work")
		},
		severity: "ERROR", subject: "mailbox role:bulider",
		says: []string{"1 message waits in it, and no agent has the role bulider",
			"the nearest role names are builder (2 agents) and lead (1 agent)"},
		commands: []string{"admin move role:bulider role:builder", "message cancel ", "explain message "},
	},
	{
		name: "a role like no other",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder")
			sent(t, "role:painter", "work")
		},
		severity: "ERROR", subject: "mailbox role:painter",
		says: []string{"no agent has the role painter",
			"the nearest role name is builder (1 agent)"},
		commands: []string{"message cancel ", "explain message "},
	},
	{
		name: "a role that only the sender has",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder")
			sent(t, "--agent", "builder-1", "role:builder", "work")
		},
		severity: "ERROR", subject: "mailbox role:builder",
		says: []string{"no other agent has the role builder",
			"builder-1 sent it; the broker does not deliver a message to its sender"},
		commands: []string{"message cancel ", "explain message "},
	},
	{
		name: "a misspelled channel",
		arrange: func(t *shell, _ *stage) {
			register(t, "builder-1/builder")
			must0(t, "--agent", "builder-1", "channel", "subscribe", "builds")
			sent(t, "channel:build", "--one", "work")
		},
		severity: "ERROR", subject: "mailbox channel:build",
		says: []string{"no other agent subscribes to build",
			"the nearest channel name is builds"},
		commands: []string{"admin move channel:build channel:builds", "message cancel ", "explain message "},
	},
	{
		name: "a failed agent whose program is known, with its mail, its question and a colleague",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-2/builder")
			must0(t, "--agent", "builder-1", "agent", "run", "--role", "builder", "--lease", "5s", "--", "true", "it's",
				"--fast")
			must0(t, "--agent", "builder-1", "agent", "heartbeat") // it runs again, and is killed
			sent(t, "--agent", "lead", "builder-1", "work")
			sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
			s.fails("builder-1")
			s.Advance(11 * time.Minute)
			s.await("message.overdue")
		},
		severity: "ERROR", subject: "agent builder-1",
		says: []string{"it has failed: its lease ended at", "2 messages wait in its mailbox",
			"1 overdue question waits for an answer: message "},
		commands: []string{"--agent builder-1 agent run --role builder --lease 5s -- true 'it'\\''s' --fast",
			"admin move builder-1 role:builder", "agent deregister builder-1"},
	},
	{
		name: "a failed agent that alone serves a role",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead")
			must0(t, "agent", "register", "builder-1", "--role", "builder", "--lease", "5s")
			sent(t, "--agent", "lead", "role:builder", "work")
			sent(t, "--agent", "lead", "builder-1", "work")
			s.fails("builder-1")
		},
		severity: "ERROR", subject: "agent builder-1",
		says: []string{"1 message waits in its mailbox", "1 message waits for the role builder, which no other agent has",
			"the broker does not know how its program was started"},
		commands: []string{"agent deregister builder-1"},
	},
	{
		name: "a team that has failed",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead")
			for _, name := range []string{"builder-1", "builder-2"} {
				must0(t, "agent", "register", name, "--role", "builder", "--lease", "5s")
				sent(t, "--agent", "lead", name, "work")
			}
			sent(t, "--agent", "lead", "role:builder", "work")
			s.fails("builder-2")
		},
		severity: "ERROR", subject: "mailbox role:builder",
		says: []string{"1 message waits in it, and all 2 agents that may take it have failed",
			"1 message waits in the mailbox of builder-1",
			"1 message waits in the mailbox of builder-2", "builder-1 has failed: its lease ended at"},
		commands: nil, // two deregistrations, of which each removes a part
	},
	{
		name: "a halted agent",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "--agent", "lead", "agent", "halt", "builder-1")
			sent(t, "--agent", "lead", "role:builder", "work")
		},
		severity: "ERROR", subject: "agent builder-1",
		says: []string{"it is halted by lead",
			"1 message waits for the role builder, which no other agent has"},
		commands: []string{"agent resume builder-1"},
	},
	{
		name: "an open circuit breaker",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder")
			for range 3 {
				sent(t, "--agent", "lead", "builder-1", "work")
			}
			for range 2 {
				must0(t, "--agent", "builder-1", "claim")
				must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
			}
		},
		severity: "WARNING", subject: "agent builder-1",
		says: []string{"it is degraded since",
			"after 2 failures in a row", "1 message waits in its mailbox"},
		commands: []string{"agent register builder-1 --role builder"},
	},
	{
		name: "mail that no agent asks for",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			sent(t, "--agent", "lead", "role:builder", "work")
			s.Advance(16 * time.Minute)
		},
		severity: "WARNING", subject: "mailbox role:builder",
		says: []string{"the first for 16m (a warning after 15m), although builder-1 could take it",
			"builder-1 does not ask for work; its last call was at"},
		commands: []string{"agent nudge role:builder", "explain message "},
		then: func(t *shell) {
			for range 2 {
				must0(t, "--agent", "builder-1", "claim")
				must0(t, "--agent", "builder-1", "ack")
			}
		},
	},
	{
		name: "a question that its agent has not seen",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
			s.Advance(16 * time.Minute)
			s.await("message.overdue")
		},
		severity: "WARNING", subject: "mailbox builder-1",
		says: []string{"the first for 16m (a warning after 15m), although builder-1 could take it",
			"1 overdue question waits for an answer: message "},
		commands: []string{"agent nudge builder-1", "explain message "},
		then: func(t *shell) {
			must0(t, "--agent", "builder-1", "claim") // the nudge
			must0(t, "--agent", "builder-1", "ack")
			must0(t, "--agent", "builder-1", "claim")
			must0(t, "--agent", "builder-1", "reply", "--ack", "main")
		},
	},
	{
		name: "a claim that is held for too long",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			sent(t, "--agent", "lead", "builder-1", "work")
			must0(t, "--agent", "builder-1", "claim", "--for", "2h")
			s.Advance(31 * time.Minute)
		},
		severity: "WARNING", subject: "agent builder-1",
		says:     []string{"it works on 1 message, on one of them for 31m (a warning after 30m)"},
		commands: []string{"--agent builder-1 release ", "explain message "},
	},
	{
		name: "dead letters",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder")
			sent(t, "--agent", "lead", "builder-1", "work")
			must0(t, "--agent", "builder-1", "claim")
			must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
		},
		severity: "ERROR", subject: "mailbox builder-1",
		says: []string{"1 dead letter",
			"the last attempt, by builder-1, ended at", "no compiler"},
		commands: []string{"dlq redrive --mailbox builder-1", "dlq delete --mailbox builder-1",
			"dlq list --mailbox builder-1"},
	},
	{
		name: "a question without an answer",
		arrange: func(t *shell, s *stage) {
			register(t, "lead/lead", "builder-1/builder")
			sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
			must0(t, "--agent", "builder-1", "claim")
			must0(t, "--agent", "builder-1", "ack")
			s.Advance(11 * time.Minute)
			s.await("message.overdue")
		},
		severity: "WARNING", subject: "message ",
		says: []string{"lead waits for its answer, which was due at",
			"builder-1 acknowledged it at"},
		commands: []string{"agent nudge builder-1 'answer message ", "explain message ", "thread resolve "},
		then: func(t *shell) {
			question := strings.Fields(must0(t, "message", "list", "--box", "all", "--type", "message"))
			for _, id := range question {
				if got := ctl(t, "--agent", "builder-1", "reply", id, "main"); got.code == 0 {
					return
				}
			}
		},
	},
	{
		name: "a lock that another agent waits for",
		arrange: func(t *shell, s *stage) {
			register(t, "builder-1/builder", "builder-2/builder")
			must0(t, "--agent", "builder-1", "lock", "acquire", "src/")
			ctl(t, "--agent", "builder-2", "lock", "acquire", "src/a.go", "--keep")
			s.Advance(6 * time.Minute)
		},
		severity: "WARNING", subject: "lock src/",
		says:     []string{"1 request waits for it, the first for 6m (a warning after 5m)"},
		commands: []string{"lock revoke ", "explain agent builder-1"},
	},
	{
		name: "a full mailbox",
		arrange: func(t *shell, _ *stage) {
			register(t, "lead/lead", "builder-1/builder")
			must0(t, "session", "configure", "--mailbox-limit", "2")
			sent(t, "--agent", "lead", "builder-1", "work")
			sent(t, "--agent", "lead", "builder-1", "work")
		},
		severity: "ERROR", subject: "mailbox builder-1",
		says:     []string{"2 of at most 2 messages wait in it (a warning from 90 % on)"},
		commands: []string{"session configure --mailbox-limit 4", "explain message "},
	},
}

// about returns the finding about the situation, if there is one.
func (s *stage) about(c *situation) (told, bool) {
	s.t.Helper()
	for _, f := range s.explain(s.asked...) {
		if f.severity == c.severity && strings.HasPrefix(f.subject, c.subject) {
			return f, true
		}
	}
	return told{}, false
}

func TestExplain_CommandsRemoveTheFinding(tt *testing.T) {
	t := newShell(tt)
	for i := range situations {
		c := &situations[i]
		for n := range max(len(c.commands), 1) {
			t.Run(c.name, func(t *shell) {
				t.Parallel()
				s := newStage(t)
				c.arrange(t, s)
				f, found := s.about(c)
				if !found {
					t.Fatalf("nothing is found but %v", s.explain())
				}
				if n == 0 {
					c.check(t, s, f)
				}
				if len(c.commands) == 0 {
					return
				}
				s.run(f.commands[n])
				if strings.HasPrefix(c.commands[n], "explain") || strings.Contains(c.commands[n], " list ") {
					return
				}
				if c.then != nil {
					c.then(t)
				}
				if f, found := s.about(c); found {
					t.Errorf("after %s there is still %v", f.commands[n], f)
				}
			})
		}
	}
}

// check compares a finding with the situation; it must be the only one.
func (c *situation) check(t *shell, s *stage, f told) {
	t.Helper()
	for _, text := range c.says {
		if !f.has(text) {
			t.Errorf("it does not say %q: %v", text, f)
		}
	}
	for i, command := range f.commands {
		if len(c.commands) > 0 && (i >= len(c.commands) || !strings.HasPrefix(command, "brokerctl "+c.commands[i])) {
			t.Errorf("command %d is %s", i, command)
		}
	}
	if c.commands != nil && len(f.commands) != len(c.commands) {
		t.Errorf("%d commands, want %d: %v", len(f.commands), len(c.commands), f)
	}
	all := s.explain()
	all = slices.DeleteFunc(all, func(other told) bool { return other.subject == f.subject && other.summary == f.summary })
	if len(all) > 0 && c.name != "an open circuit breaker" { // whose cause are dead letters
		t.Errorf("one cause has several findings: %v and %v", f, all)
	}
}
