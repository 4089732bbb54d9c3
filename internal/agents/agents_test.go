package agents_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/validate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaultSession is the row id of the session "default".
const defaultSession = 1

type kit struct {
	t        *testing.T
	dir      string
	clock    *clockwork.FakeClock
	store    *store.Store
	people   *directory.Directory
	sessions *sessions.Registry
	registry *agents.Registry
	api      pb.AgentServiceClient
	events   pb.EventServiceClient
}

func newKit(t *testing.T) *kit {
	t.Helper()
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	k.open()
	return k
}

func (k *kit) open() {
	k.t.Helper()
	k.store = testkit.Store(k.t, k.dir, k.clock,
		events.Migrations(), schema.Migrations(), idempotency.Migrations(), sessions.Migrations(), agents.Migrations())
	log := events.New(k.store, k.clock, zap.NewNop())
	k.people = directory.New()
	k.sessions = sessions.New(k.store, log, k.people)
	k.registry = agents.New(k.store, log, k.people, k.clock, zap.NewNop())
	k.registry.UseMail(noMail{})
	conn, _ := testkit.Serve(k.t, func(r grpc.ServiceRegistrar) {
		pb.RegisterAgentServiceServer(r, agents.NewService(k.registry))
		pb.RegisterEventServiceServer(r, events.NewService(log, k.people, nil, nil))
	})
	k.api, k.events = pb.NewAgentServiceClient(conn), pb.NewEventServiceClient(conn)
}

func (k *kit) as(name string) context.Context { return testkit.Agent(k.t.Context(), name) }

// with is as with an incarnation that the caller believes in.
func (k *kit) with(name string, incarnation int64) context.Context {
	return testkit.As(k.t.Context(), identity.Caller{Access: identity.Agent, Session: "default", Agent: name, Incarnation: incarnation})
}

func (k *kit) register(name string, in *pb.RegisterAgentRequest) *pb.Agent {
	k.t.Helper()
	out, err := k.api.RegisterAgent(k.as(name), in)
	apptest.NoError(k.t, err)
	if out.GetRevision() != out.GetAgent().GetRevision() {
		k.t.Errorf("revision %d of an agent at %d", out.GetRevision(), out.GetAgent().GetRevision())
	}
	return out.GetAgent()
}

func (k *kit) beat(name string, in *pb.HeartbeatRequest) *pb.HeartbeatResponse {
	k.t.Helper()
	out, err := k.api.Heartbeat(k.as(name), in)
	apptest.NoError(k.t, err)
	return out
}

func (k *kit) get(name string) *pb.Agent {
	k.t.Helper()
	out, err := k.api.GetAgent(testkit.Operator(k.t.Context()), &pb.GetAgentRequest{Name: name})
	apptest.NoError(k.t, err)
	if out.GetRevision() != k.store.Revision() {
		k.t.Errorf("true at %d, want %d", out.GetRevision(), k.store.Revision())
	}
	return out.GetAgent()
}

func (k *kit) deregister(name string) {
	k.t.Helper()
	apptest.NoError(k.t, apptest.Err(k.api.DeregisterAgent(k.as(name), &pb.DeregisterAgentRequest{})))
}

// trail returns the types and revisions of all events.
func (k *kit) trail() (types []string, last int64) {
	k.t.Helper()
	out, err := k.events.ListEvents(testkit.Operator(k.t.Context()), &pb.ListEventsRequest{})
	apptest.NoError(k.t, err)
	for _, e := range out.GetEvents() {
		types, last = append(types, e.GetType()+" "+e.GetSource()), e.GetRevision()
	}
	return types, last
}

func same(t *testing.T, want, got proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRegister_DescriptionComesBackAndStaysOverAReopen(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	got := k.register("builder-1", &pb.RegisterAgentRequest{
		Role: "builder", Capabilities: []string{"sql", "go", "sql"}, Instance: "i-1", Worktree: "/src/a",
		Labels: map[string]string{"team": "x"}, Lease: durationpb.New(time.Hour), DisplayName: "Ada", Description: "builds\nthings",
	})
	want := &pb.Agent{
		Name: "builder-1", Role: "builder", Capabilities: []string{"go", "sql"}, Instance: "i-1", Worktree: "/src/a",
		Labels: map[string]string{"team": "x"}, Lease: durationpb.New(time.Hour), Incarnation: 1,
		Status: pb.AgentStatus_AGENT_STATUS_INITIALIZING, RegisteredAt: got.GetRegisteredAt(), LastSeen: got.GetRegisteredAt(),
		Revision: k.store.Revision(), Health: pb.Health_HEALTH_OK, State: "starting", DisplayName: "Ada", Description: "builds\nthings",
		Messages: &pb.MessageCounts{}, Attention: pb.Attention_ATTENTION_OPEN,
	}
	same(t, want, got)
	if !got.GetRegisteredAt().AsTime().Equal(k.clock.Now()) {
		t.Errorf("registered at %v", got.GetRegisteredAt().AsTime())
	}
	same(t, want, k.get("builder-1"))
	apptest.NoError(t, k.store.Close())
	k.open()
	same(t, want, k.get("builder-1"))
}

func TestRegister_LeaseIs90SecondsUnlessAskedOtherwise(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	if got := k.register("a", &pb.RegisterAgentRequest{}).GetLease().AsDuration(); got != 90*time.Second {
		t.Errorf("lease %v", got)
	}
}

func TestRegister_AgainKeepsWhatTheRequestLeavesEmpty(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	all := &pb.RegisterAgentRequest{
		Role: "builder", Capabilities: []string{"go"}, Instance: "1", Worktree: "/src", DisplayName: "Ada", Description: "builds",
		Labels: map[string]string{"x": "y", "z": "1"}, Lease: durationpb.New(time.Hour),
	}
	k.register("a", all)
	got := k.register("a", &pb.RegisterAgentRequest{Labels: map[string]string{"z": "2"}})
	if got.GetRole() != "builder" || got.GetCapabilities()[0] != "go" || got.GetInstance() != "1" || got.GetWorktree() != "/src" ||
		got.GetDisplayName() != "Ada" || got.GetDescription() != "builds" || got.GetLease().AsDuration() != 90*time.Second {
		t.Errorf("got %v", got)
	}
	if diff := cmp.Diff(map[string]string{"x": "y", "z": "2"}, got.GetLabels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	same(t, got, k.get("a"))
	got = k.register("a", &pb.RegisterAgentRequest{Replace: true, DisplayName: "Bea"})
	if got.GetRole()+got.GetInstance()+got.GetWorktree()+got.GetDescription() != "" || got.GetDisplayName() != "Bea" ||
		len(got.GetCapabilities())+len(got.GetLabels()) != 0 {
		t.Errorf("replaced: %v", got)
	}
	k.register("a", all)
	k.deregister("a")
	if got := k.register("a", &pb.RegisterAgentRequest{}); got.GetRole() != "" || len(got.GetLabels()) != 0 {
		t.Errorf("an ended registration comes back: %v", got)
	}
}

func TestRegister_RefusesMoreLabelsThanAnAgentHas(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	labels := func(first int) map[string]string {
		set := map[string]string{}
		for i := range validate.MaxLabels {
			set[strconv.Itoa(first+i)] = ""
		}
		return set
	}
	k.register("a", &pb.RegisterAgentRequest{Labels: labels(0)})
	_, err := k.api.RegisterAgent(k.as("a"), &pb.RegisterAgentRequest{Labels: labels(1)})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "65 together with those that the registration has") {
		t.Errorf("%v", err)
	}
	if got := k.get("a"); got.GetIncarnation() != 1 {
		t.Errorf("registered all the same: %v", got)
	}
	if got := k.register("a", &pb.RegisterAgentRequest{Labels: labels(1), Replace: true}); len(got.GetLabels()) != validate.MaxLabels {
		t.Errorf("%v", got)
	}
}

func TestRegister_AgainGrowsTheIncarnationAndEndsTheReport(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	var hooked []string
	k.registry.Hooks.OnRegister(func(_ *store.Tx, a directory.Agent) error {
		hooked = append(hooked, fmt.Sprint(a.Name, a.Incarnation, a.ID != 0))
		return nil
	})
	k.register("a", &pb.RegisterAgentRequest{Role: "builder"})
	k.beat("a", &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: proto.String("typing")})
	got := k.register("a", &pb.RegisterAgentRequest{Role: "tester"})
	if got.GetIncarnation() != 2 || got.GetRole() != "tester" ||
		got.GetStatus() != pb.AgentStatus_AGENT_STATUS_INITIALIZING || got.GetActivity() != "" {
		t.Errorf("got %v", got)
	}
	same(t, got, k.get("a"))
	k.deregister("a")
	if got := k.register("a", &pb.RegisterAgentRequest{}); got.GetIncarnation() != 3 {
		t.Errorf("incarnation %d after deregistration, want 3", got.GetIncarnation())
	}
	if diff := cmp.Diff([]string{"a1 true", "a2 true", "a3 true"}, hooked); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	types, last := k.trail()
	if diff := cmp.Diff([]string{"agent.registered a", "agent.status a", "agent.registered a", "agent.deregistered a", "agent.registered a"}, types); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if last != k.get("a").GetRevision() {
		t.Errorf("the event has %d, the agent %d", last, k.get("a").GetRevision())
	}
}

func TestRegister_HookThatFailsUndoesIt(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.registry.Hooks.OnRegister(func(*store.Tx, directory.Agent) error {
		return fault.New(fault.Exhausted, "TOO_MANY", "too many")
	})
	_, err := k.api.RegisterAgent(k.as("a"), &pb.RegisterAgentRequest{})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY")
	_, err = k.api.Heartbeat(k.as("a"), &pb.HeartbeatRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestRequestID_SameBodySameAnswerAnotherBodyRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	in := &pb.RegisterAgentRequest{RequestId: uuid.NewString(), Role: "builder"}
	first := k.register("a", in)
	same(t, first, k.register("a", in))
	if got := k.get("a"); got.GetIncarnation() != 1 {
		t.Errorf("incarnation %d", got.GetIncarnation())
	}
	in.Role = "tester"
	apptest.Refused(t, apptest.Err(k.api.RegisterAgent(k.as("a"), in)), codes.AlreadyExists, "REQUEST_ID_REUSED")

	out := &pb.DeregisterAgentRequest{RequestId: uuid.NewString(), Reason: "done"}
	gone, err := k.api.DeregisterAgent(k.as("a"), out)
	apptest.NoError(t, err)
	again, err := k.api.DeregisterAgent(k.as("a"), out)
	apptest.NoError(t, err)
	same(t, gone, again)
	out.Reason = "other"
	apptest.Refused(t, apptest.Err(k.api.DeregisterAgent(k.as("a"), out)), codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestIncarnation_CallerWithAnOldOneIsRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{})
	k.register("a", &pb.RegisterAgentRequest{})
	for _, stale := range []int64{1, 3} {
		_, err := k.api.Heartbeat(k.with("a", stale), &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_IDLE})
		apptest.Refused(t, err, codes.FailedPrecondition, "STALE_INCARNATION")
		_, err = k.api.DeregisterAgent(k.with("a", stale), &pb.DeregisterAgentRequest{})
		apptest.Refused(t, err, codes.FailedPrecondition, "STALE_INCARNATION")
	}
	for _, current := range []int64{0, 2} {
		if out, err := k.api.Heartbeat(k.with("a", current), &pb.HeartbeatRequest{}); err != nil || out.GetIncarnation() != 2 {
			t.Errorf("incarnation %d: %v, %v", current, out, err)
		}
	}
}

func TestHeartbeat_WritesNothingIfNothingChanged(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{})
	report := &pb.HeartbeatRequest{
		Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: proto.String("typing"), TaskId: proto.String("t1"), Progress: proto.Float64(0.25),
	}
	k.beat("a", report)
	revision, commits := k.store.Revision(), k.store.Stats().Commits
	for range 3 {
		k.clock.Advance(10 * time.Second)
		k.beat("a", report)
		k.beat("a", &pb.HeartbeatRequest{})
		k.beat("a", &pb.HeartbeatRequest{Progress: proto.Float64(0.25)})
	}
	if now := k.store.Revision(); now != revision {
		t.Errorf("revision %d, was %d", now, revision)
	}
	if now := k.store.Stats().Commits; now != commits {
		t.Errorf("%d commits, were %d", now, commits)
	}
}

func TestHeartbeat_ChangesWhatIsGivenAndAppendsAnEvent(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{Role: "builder"})
	k.beat("a", &pb.HeartbeatRequest{
		Status: pb.AgentStatus_AGENT_STATUS_BLOCKED, Activity: proto.String("waiting for b"), TaskId: proto.String("t1"), Progress: proto.Float64(1),
	})
	k.clock.Advance(time.Second)
	k.beat("a", &pb.HeartbeatRequest{Activity: proto.String(""), Progress: proto.Float64(0)})
	got := k.get("a")
	if got.GetStatus() != pb.AgentStatus_AGENT_STATUS_BLOCKED || got.GetActivity() != "" || got.GetTaskId() != "t1" || got.GetProgress() != 0 ||
		got.GetRevision() != k.store.Revision() || !got.GetLastSeen().AsTime().Equal(k.clock.Now()) {
		t.Errorf("got %v", got)
	}
	out, err := k.events.ListEvents(k.as("a"), &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"agent.status"}, SourceRoles: []string{"builder"}, TaskId: "t1"}})
	if err != nil || len(out.GetEvents()) != 2 || out.GetEvents()[0].GetSummary() != "a is blocked: waiting for b" {
		t.Errorf("events %v, %v", out, err)
	}
}

// noMail has no mail for any agent.
type noMail struct{}

func (noMail) Counts(store.Querier, int64, directory.Agent) (unread, claimable int64, err error) {
	return 0, 0, nil
}
func (noMail) Directives(store.Querier, int64, string) ([]string, error)       { return nil, nil }
func (noMail) Claimants(store.Querier, int64, string) (map[string]bool, error) { return nil, nil }
func (noMail) Gated(store.Querier, int64) (map[string]directory.Gate, error)   { return nil, nil }

// mail is a mail room with fixed counts.
type mail struct{}

func (mail) Counts(_ store.Querier, _ int64, a directory.Agent) (unread, claimable int64, err error) {
	if a.Name != "a" || a.Role != "builder" || a.ID == 0 {
		return 0, 0, fmt.Errorf("asked for %v", a)
	}
	return 3, 4, nil
}

func (mail) Directives(store.Querier, int64, string) ([]string, error) {
	return []string{"halt", "nudge"}, nil
}

func (mail) Claimants(store.Querier, int64, string) (map[string]bool, error) {
	return map[string]bool{"b": true}, nil
}

func (mail) Gated(store.Querier, int64) (map[string]directory.Gate, error) {
	return map[string]directory.Gate{"a": {Halted: true}, "b": {Degraded: true}}, nil
}

func TestHeartbeatAndGet_TellWhatMailWaits(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.registry.UseMail(mail{})
	k.register("a", &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})
	same(t, &pb.HeartbeatResponse{
		Incarnation: 1, Lease: durationpb.New(time.Minute), Unread: 3, Claimable: 4, Directives: []string{"halt", "nudge"},
	}, k.beat("a", &pb.HeartbeatRequest{}))
	out, err := k.api.GetAgent(k.as("a"), &pb.GetAgentRequest{})
	if err != nil || out.GetUnread() != 3 || out.GetClaimable() != 4 || out.GetAgent().GetName() != "a" {
		t.Errorf("got %v, %v", out, err)
	}
}

func TestAgent_ShowsWhatStandsInItsWay(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.registry.UseMail(mail{})
	for _, name := range []string{"a", "b", "c"} {
		a := k.register(name, &pb.RegisterAgentRequest{Role: "builder"})
		if a.GetHalted() != (name == "a") || a.GetDegraded() != (name == "b") {
			t.Errorf("registered: %v", a)
		}
	}
	out, err := k.api.GetAgent(k.as("a"), &pb.GetAgentRequest{})
	if err != nil || !out.GetAgent().GetHalted() || out.GetAgent().GetDegraded() {
		t.Errorf("got %v, %v", out, err)
	}
	page, err := k.api.ListAgents(k.as("a"), &pb.ListAgentsRequest{})
	apptest.NoError(t, err)
	for _, a := range page.GetAgents() {
		if a.GetHalted() != (a.GetName() == "a") || a.GetDegraded() != (a.GetName() == "b") {
			t.Errorf("listed: %v", a)
		}
	}
}

func TestSeen_WritesNothingPerCall(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	registered := k.register("a", &pb.RegisterAgentRequest{}).GetRegisteredAt().AsTime()
	commits := k.store.Stats().Commits
	k.clock.Advance(time.Minute)
	k.registry.Presence.Ended(identity.Caller{Access: identity.Agent, Session: "default", Agent: "a"}, "", 0)
	k.registry.Presence.Ended(identity.Caller{Access: identity.Agent, Session: "other", Agent: "a"}, "", 0)
	if got := k.get("a").GetLastSeen().AsTime(); !got.Equal(registered.Add(time.Minute)) {
		t.Errorf("last seen %v, want a minute after %v", got, registered)
	}
	if now := k.store.Stats().Commits; now != commits {
		t.Errorf("%d commits, were %d", now, commits)
	}
}

func TestDeregister_RunsTheHooksInTheSameTransaction(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{Role: "builder"})
	var hooked []string
	var fail error
	k.registry.Hooks.OnDeregister(func(_ *store.Tx, a directory.Agent, reason string) error {
		hooked = append(hooked, fmt.Sprintf("%s %s %d %s", a.Name, a.Role, a.Incarnation, reason))
		return fail
	})
	fail = fault.New(fault.Precondition, "NOT_NOW", "not now")
	_, err := k.api.DeregisterAgent(k.as("a"), &pb.DeregisterAgentRequest{Reason: "done"})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_NOW")
	k.beat("a", &pb.HeartbeatRequest{}) // still registered
	fail = nil
	out, err := k.api.DeregisterAgent(k.as("a"), &pb.DeregisterAgentRequest{Reason: "done"})
	apptest.NoError(t, err)
	if types, last := k.trail(); types[len(types)-1] != "agent.deregistered a" || last != out.GetRevision() {
		t.Errorf("events %v up to %d, answered %d", types, last, out.GetRevision())
	}
	if diff := cmp.Diff([]string{"a builder 1 done", "a builder 1 done"}, hooked); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	for name, call := range map[string]func() error{
		"Heartbeat":       func() error { _, err := k.api.Heartbeat(k.as("a"), &pb.HeartbeatRequest{}); return err },
		"DeregisterAgent": func() error { _, err := k.api.DeregisterAgent(k.as("a"), &pb.DeregisterAgentRequest{}); return err },
	} {
		if err := call(); testkit.Reason(err) != "AGENT_NOT_REGISTERED" {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
	apptest.Refused(t, apptest.Err(k.api.GetAgent(k.as("a"), &pb.GetAgentRequest{})), codes.NotFound, "AGENT_NOT_FOUND")
}
