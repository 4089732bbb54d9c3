package agents_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/identity"
)

func TestLastSeen_SurvivesARestart(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.pass(20 * time.Second)
	w.beats("a")
	called := w.Clock.Now()
	w.pass(5 * time.Second)
	w.Restart()
	if got := w.look("a").GetLastSeen().AsTime(); !got.Equal(called) {
		t.Errorf("last seen at %v, want the time of the heartbeat, %v", got, called)
	}
	w.Restart() // no call since: the time stays
	if got := w.look("a").GetLastSeen().AsTime(); !got.Equal(called) {
		t.Errorf("after another restart: last seen at %v, want %v", got, called)
	}
}

func TestActivity_OneWriteAMinuteForAllAgents(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	apptest.NoError(t, k.registry.Presence.Start(t.Context()))
	t.Cleanup(func() { k.registry.Presence.Stop() })
	for _, name := range []string{"a", "b", "c"} {
		k.register(name, &pb.RegisterAgentRequest{})
	}
	commits := k.store.Stats().Commits
	k.clock.Advance(time.Second)
	for _, name := range []string{"a", "b", "b"} {
		k.registry.Presence.Ended(identity.Caller{Access: identity.Agent, Session: "default", Agent: name}, "", 0)
	}
	called := k.clock.Now()
	k.registry.Presence.Worked("default", "a", 2, 0, 1)
	k.registry.Presence.Worked("default", "a", 0, 1, 0)
	k.registry.Presence.Worked("default", "nameless", 1, 0, 0)
	counts := &pb.MessageCounts{Sent: 2, Received: 1, Processed: 1}
	same(t, counts, k.get("a").GetMessages())
	for range 60 {
		if now := k.store.Stats().Commits; now != commits {
			t.Fatalf("%d commits within the minute, were %d", now, commits)
		}
		k.clock.Advance(time.Second)
	}
	for begin := time.Now(); k.store.Stats().Commits == commits; {
		if time.Since(begin) > apptest.Patience {
			t.Fatal("the activity was not written")
		}
	}
	if now := k.store.Stats().Commits; now != commits+1 {
		t.Errorf("%d commits for two agents", now-commits)
	}
	if err := k.store.Close(); err != nil { // without Stop, as in a crash
		t.Fatal(err)
	}
	k.registry.Presence.Stop()
	k.open()
	same(t, counts, k.get("a").GetMessages())
	for _, name := range []string{"a", "b"} {
		if got := k.get(name).GetLastSeen().AsTime(); !got.Equal(called) {
			t.Errorf("%s: last seen at %v, want %v", name, got, called)
		}
	}
	if a := k.get("c"); !a.GetLastSeen().AsTime().Equal(a.GetRegisteredAt().AsTime()) {
		t.Errorf("c: last seen at %v", a.GetLastSeen())
	}
}

// writes sends a message of an agent.
func (w *team) writes(from string, to *pb.Target, requestID string) {
	w.Helper()
	apptest.Must(w, w.Actor("default", from).SendMessages,
		&pb.SendMessagesRequest{RequestId: requestID, Messages: []*pb.Message{{Target: to, Type: "task"}}})
}

func toAgent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// settles acknowledges a claim, or fails it.
func (w *team) settles(name string, claim *pb.ClaimedMessage, ack bool) {
	w.Helper()
	var err error
	if ack {
		_, err = w.Actor("default", name).AckMessages(w.ctx(), &pb.AckMessagesRequest{Ids: []string{claim.GetClaimId()}})
	} else {
		_, err = w.Actor("default", name).NackMessages(w.ctx(), &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: claim.GetClaimId(), Delay: durationpb.New(0)}}})
	}
	apptest.NoError(w, err)
}

func TestMessageCounts_CountSentReceivedAndProcessedOverARestart(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	for _, name := range []string{"a", "b", "c"} {
		w.register(name)
	}
	counts := func(name string, want *pb.MessageCounts) {
		t.Helper()
		same(t, want, w.look(name).GetMessages())
	}
	for range 2 { // a duplicate does not count
		w.writes("a", toAgent("b"), "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f")
	}
	w.writes("a", &pb.Target{To: &pb.Target_Pattern{Pattern: "?"}}, "") // to b and c
	counts("a", &pb.MessageCounts{Sent: 2})
	claims := w.claim("b", 2, time.Minute)
	counts("b", &pb.MessageCounts{Received: 2})
	w.settles("b", claims[0], true)
	w.settles("b", claims[1], false)
	w.settles("b", w.claim("b", 1, time.Minute)[0], true) // a redelivery
	counts("b", &pb.MessageCounts{Received: 2, Processed: 2})

	for _, autoAck := range []bool{false, true, true} { // two reads of the message, of which the second acknowledges it
		stream, err := w.Actor("default", "c").Receive(w.ctx(), &pb.ReceiveRequest{AutoAck: autoAck})
		apptest.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
	}
	counts("c", &pb.MessageCounts{Received: 1, Processed: 1})
	same(t, &pb.MessageCounts{Sent: 2}, w.register("a").GetAgent().GetMessages())
	w.Restart()
	w.writes("a", toAgent("b"), "")
	counts("a", &pb.MessageCounts{Sent: 3})
	counts("b", &pb.MessageCounts{Received: 2, Processed: 2})
	counts("c", &pb.MessageCounts{Received: 1, Processed: 1})
}

func TestMessageCounts_AReplyToAskCountsForTheAsker(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.register("b")
	done := make(chan error, 1)
	go func() {
		_, err := w.Actor("default", "a").Ask(w.ctx(), &pb.AskRequest{Message: &pb.Message{Target: toAgent("b"), Type: "question"}, Wait: durationpb.New(time.Minute)})
		done <- err
	}()
	out := apptest.Must(t, w.Actor("default", "b").ClaimMessages,
		&pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(time.Minute)})
	apptest.Must(t, w.Actor("default", "b").Reply,
		&pb.ReplyRequest{Id: out.GetClaims()[0].GetClaimId(), Ack: true, Message: &pb.Message{Type: "answer"}})
	apptest.NoError(t, <-done)
	same(t, &pb.MessageCounts{Sent: 1, Received: 1, Processed: 1}, w.look("a").GetMessages())
	same(t, &pb.MessageCounts{Sent: 1, Received: 1, Processed: 1}, w.look("b").GetMessages())
}

func TestStatus_IsDerivedFromWorkUntilTheAgentReportsOne(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	for _, name := range []string{"a", "b"} {
		apptest.Must(t, w.Actor("default", name).RegisterAgent,
			&pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Hour)})
	}
	status := func(want pb.AgentStatus) {
		t.Helper()
		if got := w.look("a").GetStatus(); got != want {
			t.Errorf("status %v, want %v", got, want)
		}
		out, err := w.Root().ListAgents(w.ctx(), &pb.ListAgentsRequest{Status: want, Pattern: "a"})
		if err != nil || len(out.GetAgents()) != 1 || out.GetAgents()[0].GetStatus() != want {
			t.Errorf("listed with status %v: %v, %v", want, out.GetAgents(), err)
		}
		active := int32(0)
		if want == pb.AgentStatus_AGENT_STATUS_ACTIVE {
			active = 1
		}
		if got := out.GetRoles(); len(got) != 1 || got[0].GetActive() != active {
			t.Errorf("roles %v", got)
		}
	}
	status(pb.AgentStatus_AGENT_STATUS_INITIALIZING)
	w.pass(5 * time.Minute)
	w.beats("a") // not work
	status(pb.AgentStatus_AGENT_STATUS_IDLE)
	w.writes("b", toAgent("a"), "")
	claim := w.claim("a", 1, time.Hour)[0]
	status(pb.AgentStatus_AGENT_STATUS_ACTIVE)
	w.pass(10 * time.Minute) // it still holds the claim
	status(pb.AgentStatus_AGENT_STATUS_ACTIVE)
	w.settles("a", claim, true)
	w.pass(5*time.Minute - time.Second)
	status(pb.AgentStatus_AGENT_STATUS_ACTIVE)
	w.pass(time.Second)
	status(pb.AgentStatus_AGENT_STATUS_IDLE)
	apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_INITIALIZING})
	w.pass(6 * time.Minute)
	status(pb.AgentStatus_AGENT_STATUS_INITIALIZING) // as it says
}

func TestHealth_IsAsReportedUntilTheAgentReportsOtherwise(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	report := func(status pb.AgentStatus, reason *string) *pb.Agent {
		t.Helper()
		w.pass(time.Second)
		apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{Status: status, StatusReason: reason})
		return w.look("a")
	}
	for _, c := range []struct {
		status pb.AgentStatus
		health pb.Health
	}{
		{pb.AgentStatus_AGENT_STATUS_DEGRADED, pb.Health_HEALTH_DEGRADED},
		{pb.AgentStatus_AGENT_STATUS_FAILED, pb.Health_HEALTH_FAILED},
	} {
		a := report(c.status, proto.String("no model answers"))
		if a.GetHealth() != c.health || a.GetStatusReason() != "no model answers" || a.GetFailedAt() != nil || a.GetIncarnation() != 1 {
			t.Errorf("%v: %v", c.status, a)
		}
		w.beats("a")
		if a := report(c.status, nil); a.GetHealth() != c.health || a.GetStatusReason() != "no model answers" {
			t.Errorf("after a heartbeat without a reason: %v", a)
		}
		out, err := w.Actor("default", "a").ListAgents(w.ctx(), &pb.ListAgentsRequest{Health: c.health})
		if err != nil || len(out.GetAgents()) != 1 || (out.GetRoles()[0].GetFailed() == 1) != (c.health == pb.Health_HEALTH_FAILED) {
			t.Errorf("listed: %v, %v", out, err)
		}
		if a := report(pb.AgentStatus_AGENT_STATUS_ACTIVE, nil); a.GetHealth() != pb.Health_HEALTH_OK || a.GetStatusReason() != "" {
			t.Errorf("afterwards: %v", a)
		}
	}
	out, err := w.Root().ListEvents(w.ctx(), &pb.ListEventsRequest{Filter: &pb.EventFilter{
		LowestSeverity: pb.Severity_SEVERITY_WARNING, Types: []string{"agent.status"},
	}})
	if err != nil || len(out.GetEvents()) != 2 || out.GetEvents()[1].GetSummary() != "a is failed: no model answers" {
		t.Errorf("events %v, %v", out, err)
	}
}

func TestCompletedAt_IsTheTimeOfTheFirstReportWhileItIsCompleted(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	report := func(status pb.AgentStatus) *pb.Agent {
		t.Helper()
		w.pass(time.Second)
		apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{Status: status})
		return w.look("a")
	}
	if a := report(pb.AgentStatus_AGENT_STATUS_ACTIVE); a.GetCompletedAt() != nil {
		t.Errorf("completed: %v", a)
	}
	at := report(pb.AgentStatus_AGENT_STATUS_COMPLETED).GetCompletedAt().AsTime()
	if !at.Equal(w.Clock.Now()) {
		t.Errorf("completed at %v", at)
	}
	if got := report(pb.AgentStatus_AGENT_STATUS_COMPLETED).GetCompletedAt().AsTime(); !got.Equal(at) {
		t.Errorf("after a second report: completed at %v, want %v", got, at)
	}
	if a := report(pb.AgentStatus_AGENT_STATUS_ACTIVE); a.GetCompletedAt() != nil {
		t.Errorf("active again: %v", a)
	}
	report(pb.AgentStatus_AGENT_STATUS_COMPLETED)
	w.register("a")
	if a := w.look("a"); a.GetCompletedAt() != nil {
		t.Errorf("registered again: %v", a)
	}
}
