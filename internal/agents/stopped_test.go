package agents_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// stops reports that the program of an agent has ended well.
func (w *team) stops(name string) {
	w.Helper()
	apptest.Must(w, w.Actor("default", name).Heartbeat, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_STOPPED})
}

// stuck returns what Explain finds in the whole session.
func (w *team) stuck() (found []string) {
	w.Helper()
	out := apptest.Must(w, w.Root().Explain, &pb.ExplainRequest{})
	for _, f := range out.GetFindings() {
		if f.GetSeverity() != pb.FindingSeverity_FINDING_SEVERITY_INFO {
			found = append(found, f.GetSubject()+": "+f.GetSummary())
		}
	}
	return found
}

func TestStopped_WhatItHoldsIsReleasedUncountedAndItsMailStays(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Registered("next", "builder")
	w.send(1)
	if len(w.claim("a", 1, time.Hour)) != 1 {
		t.Fatal("a has claimed nothing")
	}
	mail := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}}
	apptest.Must(t, w.Actor("default", "next").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{mail}})
	tasks := w.Actor("default", "a")
	apptest.Must(t, tasks.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t", Title: "Build"}}})
	apptest.Must(t, tasks.ClaimTask, &pb.ClaimTaskRequest{Id: "t"})
	lock := func(agent string) pb.AcquireOutcome {
		t.Helper()
		out := apptest.Must(t, w.Actor("default", agent).AcquireLocks,
			&pb.AcquireLocksRequest{Paths: []string{"src/a.go"}})
		return out.GetOutcome()
	}
	token := func(agent string) pb.AcquireOutcome {
		t.Helper()
		out := apptest.Must(t, w.Actor("default", agent).AcquireToken,
			&pb.AcquireTokenRequest{Type: "merge", Scope: "main"})
		return out.GetOutcome()
	}
	lock("a")
	token("a")

	w.stops("a")
	if claims := w.claim("next", 1, time.Hour); len(claims) != 1 || claims[0].GetAttempt() != 1 {
		t.Errorf("the message is %v", claims)
	}
	if lock("next") != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED || token("next") != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		t.Error("lock or token is not free")
	}
	task, err := tasks.GetTask(w.ctx(), &pb.GetTaskRequest{Id: "t"})
	if err != nil || task.GetTask().GetState() != pb.TaskState_TASK_STATE_READY || task.GetTask().GetAttempts() != 0 {
		t.Errorf("the task is %v, %v", task.GetTask(), err)
	}
	standing := w.beats("a")
	if standing.GetUnread() != 1 || len(standing.GetLosses()) > 0 || standing.GetIncarnation() != 1 {
		t.Errorf("back again: %v", standing)
	}
}

func TestStopped_IsAStateOfItsOwnUntilTheNextCall(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{
		Status: pb.AgentStatus_AGENT_STATUS_STOPPED, StatusReason: proto.String("nothing left to do"),
	})
	since := w.Clock.Now()
	w.pass(10 * lease)
	w.Restart()
	w.pass(10 * lease)
	a := w.look("a")
	if a.GetStatus() != pb.AgentStatus_AGENT_STATUS_STOPPED || a.GetHealth() != pb.Health_HEALTH_OK || a.GetState() != "stopped" ||
		a.GetFailedAt() != nil || !a.GetStoppedAt().AsTime().Equal(since) || a.GetStatusReason() != "nothing left to do" || a.GetAsleepSince() == nil {
		t.Errorf("it is %v", a)
	}
	if found := w.stuck(); len(found) > 0 {
		t.Errorf("findings %q", found)
	}
	w.stops("a")
	apptest.Must(t, w.Actor("default", "a").GetAgent, &pb.GetAgentRequest{})
	if a := w.look("a"); a.GetState() != "stopped" {
		t.Errorf("a call that only reads brings it back: %v", a)
	}
	w.beats("a")
	a = w.look("a")
	if a.GetStatus() == pb.AgentStatus_AGENT_STATUS_STOPPED || a.GetStoppedAt() != nil || a.GetStatusReason() != "" || a.GetState() != "idle" {
		t.Errorf("after its next call it is %v", a)
	}
	if got := w.trail(); !slices.Equal(got, []string{"agent.registered a", "agent.stopped a", "agent.revived a"}) {
		t.Errorf("events %q", got)
	}
	w.pass(lease)
	w.fails("a")
}

func TestStopped_AnAgentThatHasReportedItsOutcomeKeepsIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	report := func(status pb.AgentStatus) *pb.Agent {
		t.Helper()
		apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{Status: status})
		return w.look("a")
	}
	report(pb.AgentStatus_AGENT_STATUS_COMPLETED)
	a := report(pb.AgentStatus_AGENT_STATUS_STOPPED)
	if a.GetStatus() != pb.AgentStatus_AGENT_STATUS_COMPLETED || a.GetState() != "completed" || a.GetStoppedAt() == nil || a.GetCompletedAt() == nil {
		t.Errorf("stopped: %v", a)
	}
	if a := report(pb.AgentStatus_AGENT_STATUS_ACTIVE); a.GetState() != "busy" || a.GetStoppedAt() != nil || a.GetCompletedAt() != nil {
		t.Errorf("active again: %v", a)
	}
	report(pb.AgentStatus_AGENT_STATUS_FAILED)
	a = report(pb.AgentStatus_AGENT_STATUS_STOPPED)
	if a.GetStatus() != pb.AgentStatus_AGENT_STATUS_FAILED || a.GetState() != "failed" || a.GetStoppedAt() == nil || a.GetFailedAt() != nil {
		t.Errorf("failed and stopped: %v", a)
	}
}

func TestStopped_ItsWaitingCallsEnd(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Registered("b", "")
	locks := w.Actor("default", "b")
	apptest.Must(t, locks.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"x"}})
	ends := make(chan error, 3)
	go func() {
		_, err := w.Actor("default", "a").ClaimMessages(w.ctx(), &pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(time.Hour)})
		ends <- err
	}()
	go func() {
		_, err := w.Actor("default", "a").ClaimTask(w.ctx(), &pb.ClaimTaskRequest{Wait: durationpb.New(time.Hour)})
		ends <- err
	}()
	go func() {
		_, err := w.Actor("default", "a").AcquireLocks(w.ctx(), &pb.AcquireLocksRequest{Paths: []string{"x"}, Wait: durationpb.New(time.Hour)})
		ends <- err
	}()
	// A call that comes after the end brings the agent back, and waits: then it is ended once more.
	for n, ctx := 0, w.ctx(); n < cap(ends); {
		w.stops("a")
		select {
		case err := <-ends:
			apptest.Refused(t, err, codes.Unavailable, "AGENT_STOPPED")
			n++
		case <-ctx.Done():
			t.Fatal("a call still waits")
		default:
		}
	}
}

func TestStopped_ForSevenDaysDeregisters(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.stops("a")
	w.Restart()
	w.Clock.Advance(7*24*time.Hour - 1)
	if a := w.look("a"); a.GetState() != "stopped" {
		t.Fatalf("before: %v", a)
	}
	w.Clock.Advance(1)
	for ctx := w.ctx(); ctx.Err() == nil && !slices.Contains(w.trail(), "agent.deregistered system"); {
	}
	apptest.Refused(t, apptest.Err(w.beat("a", 0)), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestStopped_OnlyWorkThatWaitsInAQueueIsAFinding(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	mail := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}}
	apptest.Must(t, w.Actor("default", "").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{mail}})
	w.stops("a")
	w.Clock.Advance(time.Hour)
	if found := w.stuck(); len(found) > 0 {
		t.Errorf("its own mail is a finding: %q", found)
	}
	w.send(1)
	if found := w.stuck(); len(found) != 1 || !strings.HasPrefix(found[0], "agent a: it has stopped") {
		t.Errorf("work for its role: %q", found)
	}
}

func TestExplain_ListsAgentsThatReportFailure(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	for status, want := range map[pb.AgentStatus][]string{
		pb.AgentStatus_AGENT_STATUS_FAILED:   {"agent a: it reports that it has failed (no disk)"},
		pb.AgentStatus_AGENT_STATUS_DEGRADED: {"agent a: it reports that it is degraded (no disk)"},
		pb.AgentStatus_AGENT_STATUS_IDLE:     nil,
	} {
		apptest.Must(t, w.Actor("default", "a").Heartbeat,
			&pb.HeartbeatRequest{Status: status, StatusReason: proto.String("no disk")})
		if found := w.stuck(); !slices.Equal(found, want) {
			t.Errorf("%v: %q", status, found)
		}
	}
}
