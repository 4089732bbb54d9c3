package crashtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

const (
	day   = 24 * time.Hour
	brief = time.Second   // the shortest lease
	long  = 6 * time.Hour // longer than any run of the test, shorter than a jump
)

// A jumper is a daemon whose wall clock jumps, with what an agent holds there.
type jumper struct {
	*testing.T
	*faulty
	ctx      context.Context
	offset   time.Duration // of the daemon's wall clock
	revision int64         // the newest that is known
	claim    string
	fence    int64
	repeated *pb.SendMessagesRequest // sent before every jump
	sent     *pb.SendResult
}

// Holders keep what they hold over a jump of a day, calendar times follow it, a request is recognised, and revisions
// grow. The daemon then loses its offset at a restart, which is a jump as well.
//
// The broker notices a jump forwards within a minute. With CLOCK_PATIENCE=1 the test waits for that.
func TestClock_JumpsOfADayChangeCalendarTimesAlone(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, buildFaultd(t), "full")
	testkit.NoError(t, f.start(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	j := &jumper{T: t, faulty: f, ctx: ctx}
	j.hold()
	later := j.send("in half a day", func(m *pb.Message) { m.NotBefore = timestamppb.New(time.Now().Add(day / 2)) })
	short := j.send("for half a day", func(m *pb.Message) { m.Ttl = durationpb.New(day / 2) })

	j.jump(day)
	j.keeps("after")
	patient := fromEnvironment(t, "CLOCK_PATIENCE", 0) > 0
	if patient {
		j.becomes(later, pb.DeliveryState_DELIVERY_STATE_PENDING)
		j.becomes(short, pb.DeliveryState_DELIVERY_STATE_EXPIRED)
	}

	j.jump(-2 * day)
	j.becomes(j.keeps("before"), pb.DeliveryState_DELIVERY_STATE_PENDING)
	if patient { // what has become due stays so
		j.becomes(later, pb.DeliveryState_DELIVERY_STATE_PENDING)
		j.becomes(short, pb.DeliveryState_DELIVERY_STATE_EXPIRED)
	}

	j.faulty.kill()
	j.offset = 0
	testkit.NoError(t, j.start(ctx))
	j.becomes(j.keeps("restarted"), pb.DeliveryState_DELIVERY_STATE_PENDING)
	found, err := j.admin.CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	if err != nil || len(found.GetProblems()) > 0 {
		t.Errorf("the database is not sound: %q, %v", found.GetProblems(), err)
	}
	if _, err := j.messages.AckMessages(as(ctx, "steady"), &pb.AckMessagesRequest{Ids: []string{j.claim}}); err != nil {
		t.Errorf("the ack of a claim from before the jumps: %v", err)
	}
	if err := j.terminate(); err != nil {
		t.Error(err)
	}
	if err := j.Check(ctx); err != nil {
		t.Error(err)
	}
}

// jump moves the wall clock of the daemon.
func (j *jumper) jump(by time.Duration) {
	j.Helper()
	j.command(order{Jump: by})
	j.offset += by
	status, err := j.admin.GetStatus(j.ctx, &pb.GetStatusRequest{})
	testkit.NoError(j, err)
	j.revision = max(j.revision, status.GetRevision())
}

// hold registers an agent that holds a claim, a lock and a token.
func (j *jumper) hold() {
	j.Helper()
	ctx := as(j.ctx, "steady")
	j.must(j.agents.RegisterAgent(ctx, &pb.RegisterAgentRequest{Lease: durationpb.New(long)}))
	j.must(j.agents.RegisterAgent(as(j.ctx, "reader"), &pb.RegisterAgentRequest{Lease: durationpb.New(7 * day)}))
	j.must(j.messages.SendMessages(j.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{Target: toAgent("steady"), Subject: "work", Type: "work"}}}))
	claimed, err := j.messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1, ClaimFor: durationpb.New(long)})
	if err != nil || len(claimed.GetClaims()) != 1 {
		j.Fatal(claimed, err)
	}
	j.claim = claimed.GetClaims()[0].GetClaimId()
	locked, err := j.locks.AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"src/**"}, Mode: pb.LockMode_LOCK_MODE_EXCLUSIVE})
	if err != nil || locked.GetFence() == 0 {
		j.Fatal(locked, err)
	}
	j.fence = locked.GetFence()
	j.must(j.tokens.AcquireToken(ctx, &pb.AcquireTokenRequest{Type: "turn", Scope: "build"}))
	j.repeated = &pb.SendMessagesRequest{RequestId: requestID(), Messages: []*pb.Message{{Target: toAgent("reader"), Subject: "once", Type: "work"}}}
	answer, err := j.messages.SendMessages(j.ctx, j.repeated)
	testkit.NoError(j, err)
	j.sent = answer.GetResults()[0]
}

func (j *jumper) must(_ any, err error) {
	j.Helper()
	testkit.NoError(j, err)
}

func (j *jumper) send(subject string, change func(*pb.Message)) *pb.SendResult {
	j.Helper()
	m := &pb.Message{Target: toAgent("reader"), Subject: subject, Type: "work"}
	change(m)
	answer, err := j.messages.SendMessages(j.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	testkit.NoError(j, err)
	return answer.GetResults()[0]
}

// keeps checks, after a jump, that a brief lease ends and the steady agent's does not: the broker has
// then examined the leases. It also checks requests and revisions, and returns a message that is due
// a second later by the new time.
func (j *jumper) keeps(phase string) *pb.SendResult {
	j.Helper()
	ctx := as(j.ctx, "steady")
	j.must(j.agents.RegisterAgent(as(j.ctx, "brief-"+phase), &pb.RegisterAgentRequest{Lease: durationpb.New(brief)}))
	delayed := j.send("soon "+phase, func(m *pb.Message) { m.NotBefore = timestamppb.New(time.Now().Add(j.offset + brief)) })
	if delayed.GetRevision() <= j.revision {
		j.Errorf("%s: revision %d was issued after %d", phase, delayed.GetRevision(), j.revision)
	}
	j.revision = delayed.GetRevision()
	j.awaitFailure("brief-" + phase)
	if got, err := j.agents.GetAgent(j.ctx, &pb.GetAgentRequest{Name: "steady"}); err != nil || got.GetAgent().GetHealth() == pb.Health_HEALTH_FAILED {
		j.Errorf("%s: the agent with a long lease is %v, %v", phase, got, err)
	}
	if got, err := j.messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1, ClaimFor: durationpb.New(long)}); err != nil ||
		len(got.GetClaims()) != 1 || got.GetClaims()[0].GetClaimId() != j.claim {
		j.Errorf("%s: the claims are %v, %v", phase, got, err)
	}
	if got, err := j.locks.ListLocks(ctx, &pb.ListLocksRequest{}); err != nil || len(got.GetLocks()) != 1 || got.GetLocks()[0].GetFence() != j.fence {
		j.Errorf("%s: the locks are %v, %v", phase, got, err)
	}
	if got, err := j.tokens.GetToken(ctx, &pb.GetTokenRequest{Type: "turn", Scope: "build"}); err != nil || got.GetToken().GetAgent() != "steady" {
		j.Errorf("%s: the token is %v, %v", phase, got, err)
	}
	if got, err := j.messages.SendMessages(j.ctx, j.repeated); err != nil || !got.GetResults()[0].GetDuplicate() || got.GetResults()[0].GetId() != j.sent.GetId() {
		j.Errorf("%s: a repeated request sent %v, %v", phase, got, err)
	}
	return delayed
}

// becomes waits until the only delivery of a message is in a state.
func (j *jumper) becomes(sent *pb.SendResult, want pb.DeliveryState) {
	j.Helper()
	// Each change of a delivery's state is an event; the stream is open before the state is read.
	ctx, cancel := context.WithCancel(j.ctx)
	defer cancel()
	stream, err := j.events.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{})
	testkit.NoError(j, err)
	for {
		got, err := j.messages.GetMessage(ctx, &pb.GetMessageRequest{Id: sent.GetId()})
		if err != nil || len(got.GetDeliveries()) != 1 {
			j.Fatal(got, err)
		}
		if got.GetDeliveries()[0].GetState() == want {
			return
		}
		if _, err := stream.Recv(); err != nil {
			j.Fatalf("%v is %v, want %v: %v", sent, got, want, err)
		}
	}
}

// awaitFailure waits until the lease of an agent has ended.
func (j *jumper) awaitFailure(agent string) {
	j.Helper()
	ctx, cancel := context.WithCancel(j.ctx)
	defer cancel()
	stream, err := j.events.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{
		AfterRevision: proto.Int64(0), Filter: &pb.EventFilter{Types: []string{"agent.failed"}}})
	for err == nil {
		var page *pb.SubscribeEventsResponse
		page, err = stream.Recv()
		for _, e := range page.GetEvents() {
			if strings.HasPrefix(e.GetSummary(), agent+" ") {
				return
			}
		}
	}
	j.Fatalf("the lease of %s does not end: %v", agent, err)
}
