package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/people"
	"brokerd/cmd/brokerctl/supervise"
	"brokerd/cmd/brokerctl/work"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func TestAgent_ShowsAllThatHangsOnIt(t *testing.T) {
	c, _, out := printer(output.FormatTable)
	people.PrintAgent(c, out, &pb.GetAgentResponse{
		Agent: &pb.Agent{Name: "builder-1", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Health: pb.Health_HEALTH_FAILED, State: "failed", FailedAt: before(time.Hour), LastTool: "Edit",
			Counters: &pb.Counters{Turns: proto.Int64(3), Errors: proto.Int64(1)}},
		Holdings: &pb.Holdings{
			Claims:   []*pb.OpenClaim{{ClaimId: "7.1", Attempt: 1, Type: "task", Sender: "lead", Subject: "Add login"}},
			Locks:    []*pb.HeldLock{{Paths: []string{"a.go", "b.go"}, Shared: true, Fence: 8, HeldUntil: before(-time.Hour), Holder: "run-1"}},
			Tokens:   []*pb.HeldToken{{Type: "review", Scope: "login", Fence: 9, HeldUntil: before(-time.Hour)}},
			Tickets:  []*pb.WaitingTicket{{Ticket: 10, Resources: []string{"src/"}, Position: 1}, {Ticket: 11, Resources: []string{"test_run/ci"}, Token: true, Position: 2}},
			ToAnswer: []*pb.OpenQuestion{{Revision: 12, Sender: "lead", Subject: "Done?"}},
			Work:     openWork()[:2],
		},
		Checkpoints: []*pb.Checkpoint{{Kind: pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM, Reference: "t1", Data: `{"step":2}`, SavedAt: before(time.Minute)}},
	})
	for _, line := range []string{
		"state        failed", "failed       1h ago", "counted      3 turns, 1 error", "last tool    Edit",
		"holds        claim 7.1, attempt 1: task from lead, Add login",
		"holds        lock a.go b.go (shared), ends in 1h, fence 8, holder run-1",
		"holds        token review login, ends in 1h, fence 9",
		"holds        waits for src/ at place 1, ticket 10",
		"holds        waits for token test_run ci at place 2, ticket 11",
		"holds        owes an answer to 12 from lead, Done?: brokerctl --agent builder-1 reply 12 ANSWER",
		"opened       vote v-1 (open), waits for role:builder: Which database?",
		"holds        task schema (blocked): Write the schema → brokerctl --agent builder-1 task unblock schema",
		`checkpoint   1m ago: custom, t1, {"step":2}`,
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, out)
		}
	}
}

func TestAgent_HeartbeatCounts(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	must0(t, "--agent", "builder-1", "agent", "heartbeat", "--count", "turns=3,errors=0", "--last-tool", "Edit", "--last-file", "a.go")
	if got := ctl(t, "--agent", "builder-1", "agent", "heartbeat", "--count", "cups=3"); got.code != 2 || !strings.Contains(got.err, "none of turns") {
		t.Errorf("%+v", got)
	}
}

func TestWhoami_TellsWhatIsHeld(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	fence := at(t, fields(t, "lock", "acquire", "src/a.go"), "fence").(json.Number)
	t.Setenv("BROKERD_FENCE", fence.String())
	out := must0(t, "whoami")
	for _, want := range []string{"state: idle\n", "its calls depend on fence " + fence.String()} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if who := fields(t, "whoami"); at(t, who, "health") != "ok" || at(t, who, "fence") != fence {
		t.Errorf("%v", who)
	}
	must0(t, "agent", "checkpoint", "t1", "--data", `{"step":2}`)
	if full := fields(t, "agent", "get", "--full"); at(t, full, "checkpoints", 0, "data", "step") != json.Number("2") || at(t, full, "checkpoints", 0, "kind") != "custom" {
		t.Errorf("%v", full)
	}
	must0(t, "--agent", "", "lock", "revoke", "src/", "--reason", "x")
	if got := ctl(t, "send", "builder-1", "no more"); got.code != 6 {
		t.Errorf("a lost fence: %+v", got)
	}
	if got := ctl(t, "--agent", "", "send", "builder-1", "from the operator"); got.code != 0 {
		t.Errorf("the fence is not the operator's: %+v", got)
	}
}

func TestNext_TellsLossesOnce(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	must0(t, "agent", "register", "builder-1", "--lease", "10s")
	must0(t, "--agent", "builder-1", "lock", "acquire", "src/a.go", "docs/")
	s.fails("builder-1")
	if out := must0(t, "agent", "list", "--health", "failed"); !strings.Contains(out, "builder-1") {
		t.Errorf("%s", out)
	}
	if got := fields(t, "--agent", "builder-1", "next", "--wait", "1m"); at(t, got, "losses", 0, "kind") != "lock" {
		t.Errorf("%v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "next"); got.code != 4 {
		t.Errorf("told twice: %+v", got)
	}
	must0(t, "--agent", "builder-1", "lock", "acquire", "src/a.go")
	s.fails("builder-1")
	if out := must0(t, "--agent", "builder-1", "-o", "prompt", "next"); out != "Lost while you were away: lock src/a.go. Stop working on it, or ask for it again.\n" {
		t.Errorf("%s", out)
	}
}

func TestLosses_ThoseThatOnlyTheLogTellsOfAreCounted(t *testing.T) {
	c, _, out := printer(output.FormatTable)
	lost := []*pb.Loss{{Kind: pb.LossKind_LOSS_KIND_LOCK, Name: "src/"}}
	prompt.Losses(out, &pb.RegisterAgentResponse{Losses: lost, MoreLosses: 250})
	prompt.Losses(out, &pb.HeartbeatResponse{Losses: lost})
	r := &supervise.Reporter{Stderr: out}
	r.TellLosses(&pb.HeartbeatResponse{Losses: lost, MoreLosses: 250})
	turn := prompt.NewTurn(&pb.GetInboxSummaryResponse{}, nil)
	turn.Losses, turn.MoreLosses = lost, 250
	work.PrintTurn(c, out, &turn)
	wantText(t, out.String(), `
lost: lock src/
lost: 250 more, which only the log tells of: brokerctl event list
lost: lock src/
brokerctl: lost while the agent was away: lock src/
brokerctl: lost while the agent was away: 250 more, which only the log tells of: brokerctl event list
Lost while you were away: lock src/. Stop working on it, or ask for it again.

Lost while you were away: 250 more, which only the log tells of: brokerctl event list
`)
	out.Reset()
	if err := work.WriteTurnJSON(out, &turn); err != nil || at(t, decode(t, out.String()), "more_losses") != json.Number("250") {
		t.Errorf("%v: %s", err, out)
	}
}
