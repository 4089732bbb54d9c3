package main

import (
	"testing"
	"time"
)

func TestExplain_AgentThatHasFailed(t *testing.T) {
	s := newStage(t)
	register(t, "lead/lead")
	must0(t, "agent", "register", "builder-1", "--role", "builder", "--lease", "1m")
	id := sent(t, "--agent", "lead", "builder-1", "work")
	s.Advance(30 * time.Second)
	if got := fields(t, "status"); number(at(t, got, "late_agents")) != "1" || number(at(t, got, "failed_agents")) != "0" {
		t.Errorf("%v", got)
	}
	s.Advance(31 * time.Second)
	s.await("agent.failed")
	if got := fields(t, "status"); number(at(t, got, "late_agents")) != "0" || number(at(t, got, "failed_agents")) != "1" {
		t.Errorf("%v", got)
	}
	s.finds(nil, "ERROR", "mailbox builder-1", "builder-1 has failed")
	s.finds([]string{"agent", "builder-1"}, "ERROR", "agent builder-1", "it has failed: its lease was over")
	f := s.finds([]string{"message", id}, "ERROR", "message "+id, "builder-1 has failed")
	s.frees(f, "brokerctl agent register builder-1 --role builder --lease 1m0s")
	s.fine("message", id)
	s.fine("agent", "builder-1")
	s.fine()
}
