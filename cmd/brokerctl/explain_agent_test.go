package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// fails lets the clock run until the lease of an agent ends, and waits until the broker says that it has failed. In
// small steps: a leap would look like a process that stood still. And no further: the agent fails at the time of
// the transaction that finds its lease expired.
func (s *stage) fails(agent string) {
	s.t.Helper()
	parse := func(a any, field string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, at(s.t, a, field).(string))
		apptest.NoError(s.t, err)
		return at
	}
	for {
		a := at(s.t, fields(s.t, "agent", "get", agent), "agent")
		lease, err := time.ParseDuration(at(s.t, a, "lease").(string))
		switch {
		case err != nil:
			s.t.Fatal(err)
		case at(s.t, a, "health") == "failed":
			return
		case s.t.Context().Err() != nil:
			s.t.Fatal(agent, "lives on")
		case s.Now().Before(parse(a, "last_seen").Add(lease)):
			s.Advance(time.Second)
		}
	}
}

// since wants a finding about the agent to be of that time.
func (s *stage) since(agent, severity, want string) {
	s.t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(must0(s.t, "-o", "json", "explain", "agent", agent)), "\n") {
		m := decode(s.t, line)
		if at(s.t, m, "severity") == strings.ToLower(severity) && at(s.t, m, "subject") == "agent "+agent {
			if got := at(s.t, m, "since"); got != want {
				s.t.Errorf("%s is so since %v, not %s", agent, got, want)
			}
			return
		}
	}
	s.t.Errorf("no %s about %s", severity, agent)
}

func TestExplain_AgentThatHasFailedAndHasNoMail(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	must0(t, "agent", "register", "builder-1", "--role", "builder", "--lease", "5s")
	s.fails("builder-1")
	s.Advance(10 * time.Minute)
	f := s.finds([]string{"agent", "builder-1"}, "ERROR", "agent builder-1", "it has failed: its lease ended at 03:04:10 UTC (10m ago)",
		"its last call was at 03:04:05 UTC (10m ago); its next call revives it", "the broker does not know how its program was started")
	s.since("builder-1", "ERROR", "2026-01-02T03:04:10Z")
	s.shows(f)
	s.begins(f, "brokerctl agent deregister builder-1")
	must0(t, "--agent", "builder-1", "agent", "heartbeat")
	s.fine("agent", "builder-1")
	if got := at(t, fields(t, "agent", "get", "builder-1"), "agent", "health"); got != "ok" {
		t.Errorf("its health is %v", got)
	}
}

func TestExplain_AgentThatHasReturned(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	must0(t, "agent", "register", "builder-1", "--role", "builder", "--lease", "5s")
	s.fails("builder-1")
	must0(t, "--agent", "builder-1", "agent", "heartbeat")
	sent(t, "builder-1", "work")
	sent(t, "builder-1", "more work")
	sent(t, "role:builder", "work")
	about := []string{"agent", "builder-1"}
	s.finds(about, "INFO", "agent builder-1", "its lease lasts 5s; it registered at 03:04:05 UTC",
		"its incarnation is 2: the number of its registrations and of its failures", "it reports no status")
	s.finds(about, "INFO", "mailbox builder-1", "2 messages wait in it, 2 unread; 3 messages are claimable: 2 here and 1 in role:builder")
}

func TestExplain_AgentThatIsDegraded(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	for _, agent := range []string{"lead", "builder-1"} {
		must0(t, "agent", "register", agent, "--role", agent, "--lease", "10h")
	}
	fail := func() {
		t.Helper()
		sent(t, "--agent", "lead", "builder-1", "work")
		must0(t, "--agent", "builder-1", "claim")
		must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
		must0(t, "dlq", "delete", "--mailbox", "builder-1")
	}
	fail()
	s.Advance(10 * time.Minute)
	s.fine("agent", "builder-1")
	fail()
	s.Advance(2 * time.Hour)
	fail() // on trial
	s.finds([]string{"agent", "builder-1"}, "WARNING", "agent builder-1", "it is degraded since 03:14:05 UTC (2h ago): the circuit breaker",
		"open after 3 failures in a row; at 06:14:05 UTC (in 1h)")
	s.since("builder-1", "WARNING", "2026-01-02T03:14:05Z")
	f := s.finds(nil, "WARNING", "agent builder-1", "it is degraded since 03:14:05 UTC (2h ago)")
	s.frees(f, "brokerctl agent register builder-1 --role builder-1 --lease 10h")
	s.fine("agent", "builder-1")
	s.Advance(time.Hour)
	fail()
	fail()
	s.since("builder-1", "WARNING", "2026-01-02T06:14:05Z") // not since the last time
}

func TestExplain_LastCallSurvivesARestart(tt *testing.T) {
	t := newShell(tt)
	s := &stage{FakeClock: clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), t: t}
	config := app.Config{Dir: isolate(t), Sync: "normal", Clock: s.FakeClock}
	start := func() *app.App {
		a, err := app.Start(t.Context(), config)
		apptest.NoError(t, err)
		return a
	}
	stop := func(a *app.App) {
		apptest.NoError(t, a.Stop(t.Context()))
	}
	a := start()
	register(t, "lead/lead", "builder-1/builder")
	sent(t, "--agent", "lead", "role:builder", "work")
	s.Advance(17 * time.Minute)
	must0(t, "--agent", "builder-1", "inbox") // an ordinary call, not a heartbeat
	s.Advance(time.Minute)
	stop(a)
	s.Advance(9 * time.Minute)
	a = start()
	defer stop(a)
	s.finds(nil, "WARNING", "mailbox role:builder", "builder-1 does not ask for work; its last call was at 03:21:05 UTC (10m ago)")
	s.finds([]string{"agent", "builder-1"}, "INFO", "agent builder-1", "its last call was at 03:21:05 UTC (10m ago)")
}
