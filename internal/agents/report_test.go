package agents_test

import (
	"fmt"
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

func TestHeartbeat_CountersStayUntilItRegistersAgain(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	beat := func(in *pb.HeartbeatRequest) {
		t.Helper()
		apptest.Must(t, w.Actor("default", "a").Heartbeat, in)
	}
	beat(&pb.HeartbeatRequest{Counters: &pb.Counters{Turns: proto.Int64(3), ModelTokens: proto.Int64(1000)}, LastTool: proto.String("Edit")})
	first := w.look("a").GetRevision()
	beat(&pb.HeartbeatRequest{Counters: &pb.Counters{Turns: proto.Int64(4), Errors: proto.Int64(0)}, LastFile: proto.String("src/a.go")})
	a := w.look("a")
	if c := a.GetCounters(); c.GetTurns() != 4 || c.GetModelTokens() != 1000 || a.GetLastTool() != "Edit" || a.GetLastFile() != "src/a.go" {
		t.Errorf("%v", a)
	}
	if a.GetRevision() == first {
		t.Error("the change has no revision")
	}
	beat(&pb.HeartbeatRequest{Counters: &pb.Counters{Turns: proto.Int64(4)}, LastTool: proto.String("Edit")})
	if again := w.look("a").GetRevision(); again != a.GetRevision() {
		t.Error("a heartbeat without news was written")
	}
	if got := w.trail(); !slices.Equal(got, []string{"agent.registered a", "agent.counted a", "agent.counted a"}) {
		t.Errorf("events %q", got)
	}
	w.register("a")
	if a := w.look("a"); a.GetCounters() != nil || a.GetLastTool() != "" {
		t.Errorf("registered again: %v", a)
	}
}

func TestCheckpoint_TheLastTwentyAreShownNewestFirst(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	var newest int64
	for i := range 23 {
		out := apptest.Must(t, w.Actor("default", "a").SaveCheckpoint,
			&pb.SaveCheckpointRequest{
				Kind: pb.CheckpointKind_CHECKPOINT_KIND_STATE_COMMITTED, Reference: fmt.Sprint(i), Data: fmt.Sprintf(`{"n":%d}`, i),
			})
		newest = out.GetRevision()
	}
	w.pass(lease)
	w.fails("a")
	w.register("a")
	full, err := w.Actor("default", "a").GetAgent(w.ctx(), &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if err != nil || len(full.GetCheckpoints()) != 20 {
		t.Fatalf("%d checkpoints, %v", len(full.GetCheckpoints()), err)
	}
	for i, c := range full.GetCheckpoints() {
		if c.GetReference() != fmt.Sprint(22-i) || c.GetData() != fmt.Sprintf(`{"n":%d}`, 22-i) || c.GetSavedAt() == nil ||
			c.GetKind() != pb.CheckpointKind_CHECKPOINT_KIND_STATE_COMMITTED {
			t.Errorf("%v", c)
		}
	}
	if got := full.GetCheckpoints()[0].GetRevision(); got != newest {
		t.Errorf("the newest is %d, not %d", got, newest)
	}
	basic, err := w.Actor("default", "a").GetAgent(w.ctx(), &pb.GetAgentRequest{})
	if err != nil || basic.GetHoldings() != nil || len(basic.GetCheckpoints()) > 0 {
		t.Errorf("view BASIC: %v, %v", basic, err)
	}
}

func TestCheckpoint_OfOneRequestIsSavedOnceAndAnswersStayBelowTheLimit(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	large := `"` + strings.Repeat("x", 256<<10-2) + `"`
	for i := range 20 {
		request := &pb.SaveCheckpointRequest{RequestId: fmt.Sprintf("0197f3a0-5c4e-7b1d-8f21-9a0b1c2d%04d", i), Data: large}
		var revisions []int64
		for range 2 {
			out := apptest.Must(t, w.Actor("default", "a").SaveCheckpoint, request)
			revisions = append(revisions, out.GetRevision())
		}
		if revisions[0] != revisions[1] {
			t.Errorf("revisions %v", revisions)
		}
	}
	full := apptest.Must(t, w.Actor("default", "a").GetAgent, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if n := len(full.GetCheckpoints()); n != 11 || full.GetCheckpoints()[0].GetKind() != pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM {
		t.Errorf("%d checkpoints fit", n)
	}
	_, err := w.Root().SaveCheckpoint(w.ctx(), &pb.SaveCheckpointRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_REQUIRED")
}

func TestGet_FullShowsAllThatHangsOnTheAgent(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Registered("b", "")
	locks := func(name string) pb.LockServiceClient { return w.Actor("default", name) }
	w.send(1)
	w.claim("a", 1, time.Hour)
	held := apptest.Must(t, locks("a").AcquireLocks,
		&pb.AcquireLocksRequest{Paths: []string{"src/a.go", "docs/"}, Mode: pb.LockMode_LOCK_MODE_SHARED})
	apptest.Must(t, locks("b").AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"go.mod"}})
	queued := apptest.Must(t, locks("a").AcquireLocks,
		&pb.AcquireLocksRequest{Paths: []string{"go.mod"}, KeepTicket: true})
	for from, to := range map[string]string{"a": "b", "b": "a"} {
		apptest.Must(t, w.Actor("default", from).SendMessages,
			&pb.SendMessagesRequest{Messages: []*pb.Message{{
				Target: &pb.Target{To: &pb.Target_Agent{Agent: to}}, Type: "question", Version: "1.0", Subject: "from " + from, RequiresResponse: true,
			}}})
	}
	full := apptest.Must(t, w.Root().GetAgent,
		&pb.GetAgentRequest{Name: "a", View: pb.AgentView_AGENT_VIEW_FULL})
	h := full.GetHoldings()
	if c := h.GetClaims(); len(c) != 1 || c[0].GetType() != "task_assignment" || c[0].GetSender() != "system" || c[0].GetAttempt() != 1 || c[0].GetMessageId() == "" {
		t.Errorf("claims %v", c)
	}
	if l := h.GetLocks(); len(l) != 1 || l[0].GetFence() != held.GetFence() || !l[0].GetShared() || len(l[0].GetPaths()) != 2 {
		t.Errorf("locks %v", l)
	}
	if k := h.GetTickets(); len(k) != 1 || k[0].GetTicket() != queued.GetTicket() || !slices.Equal(k[0].GetResources(), []string{"go.mod"}) {
		t.Errorf("tickets %v", k)
	}
	if q := h.GetAsked(); len(q) != 1 || q[0].GetSubject() != "from a" {
		t.Errorf("asked %v", q)
	}
	if q := h.GetToAnswer(); len(q) != 1 || q[0].GetSubject() != "from b" {
		t.Errorf("to answer %v", q)
	}
	// And all of it is lost at once.
	w.pass(lease)
	w.fails("a")
	var kinds []pb.LossKind
	for _, l := range w.beats("a").GetLosses() {
		kinds = append(kinds, l.GetKind())
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []pb.LossKind{pb.LossKind_LOSS_KIND_CLAIM, pb.LossKind_LOSS_KIND_LOCK, pb.LossKind_LOSS_KIND_TICKET}) {
		t.Errorf("losses %v", kinds)
	}
}

func TestRegister_AgainGetsTheLossesOfOneRequestTwice(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.send(1)
	w.claim("a", 1, time.Hour)
	w.pass(lease)
	w.fails("a")
	again := &pb.RegisterAgentRequest{RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", Role: "builder", Lease: durationpb.New(lease)}
	for range 2 { // the first answer may never have come
		out, err := w.Actor("default", "a").RegisterAgent(w.ctx(), again)
		if err != nil || len(out.GetLosses()) != 1 || out.GetAgent().GetIncarnation() != 3 {
			t.Errorf("%v, %v", out, err)
		}
	}
}
