package overview_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A daemon is a broker, and what the tests call.
type daemon struct {
	*apptest.Broker
	t     *testing.T
	ctx   context.Context
	clock *restClock // nil with the real clock
}

func newDaemon(t *testing.T, clock *restClock) *daemon {
	t.Helper()
	d := &daemon{t: t, clock: clock}
	d.Broker = apptest.Start(t, apptest.With(func(c *app.Config) {
		if clock != nil {
			c.Clock = clock
		}
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	t.Cleanup(cancel)
	d.ctx = ctx
	return d
}

// rests returns the rests of readers; nil with the real clock.
func (d *daemon) rests() <-chan time.Duration {
	if d.clock == nil {
		return nil
	}
	return d.clock.rests
}

// later advances the clock by a long time, in a rest that no commit ends.
func (d *daemon) later(by time.Duration) {
	d.t.Helper()
	for {
		select {
		case rest := <-d.rests():
			if rest == 100*time.Millisecond {
				d.clock.Advance(by)
				return
			}
			d.clock.Advance(rest)
		case <-d.ctx.Done():
			d.t.Fatal("the reader does not rest")
		}
	}
}

// watch returns the frames of a new stream.
func (d *daemon) watch(conn *grpc.ClientConn, in *pb.WatchOverviewRequest) *frames {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.ctx)
	stream, err := pb.NewAdminServiceClient(conn).WatchOverview(ctx, in)
	apptest.NoError(d.t, err)
	f := &frames{daemon: d, got: make(chan *pb.WatchOverviewResponse), end: make(chan error, 1)}
	done := make(chan struct{})
	d.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for {
			frame, err := stream.Recv()
			if err != nil {
				f.end <- err
				return
			}
			select {
			case f.got <- frame:
			case <-ctx.Done():
			}
		}
	}()
	return f
}

// frames are those of a stream.
type frames struct {
	*daemon
	got chan *pb.WatchOverviewResponse
	end chan error
}

// until takes frames until one is as wanted. The clock advances while the reader rests.
func (f *frames) until(what string, wanted func(*pb.WatchOverviewResponse) bool) *pb.WatchOverviewResponse {
	f.t.Helper()
	var last *pb.WatchOverviewResponse
	for {
		select {
		case frame := <-f.got:
			if last = frame; wanted(frame) {
				return frame
			}
		case err := <-f.end:
			f.t.Fatalf("%s: the stream has ended: %v", what, err)
		case <-f.ctx.Done():
			f.t.Fatalf("%s: waited in vain; the last frame is %v", what, last)
		case rest := <-f.rests():
			f.clock.Advance(rest)
		}
	}
}

func anyFrame(*pb.WatchOverviewResponse) bool { return true }

// refused wants a stream to end with an error.
func (f *frames) refused(code codes.Code, reason string) {
	f.t.Helper()
	select {
	case frame := <-f.got:
		f.t.Errorf("a frame: %v", frame)
	case err := <-f.end:
		if status.Code(err) != code || testkit.Reason(err) != reason {
			f.t.Errorf("%v (%s), want %v (%s)", err, testkit.Reason(err), code, reason)
		}
	case <-f.ctx.Done():
		f.t.Error("neither a frame nor an error")
	}
}

func (d *daemon) send(conn *grpc.ClientConn, to *pb.Target, n int) {
	d.t.Helper()
	var list []*pb.Message
	for range n {
		list = append(list, &pb.Message{Target: to, Type: "note", Subject: "hello"})
	}
	out, err := pb.NewMessageServiceClient(conn).SendMessages(d.ctx, &pb.SendMessagesRequest{Messages: list})
	if err != nil || out.GetResults()[0].GetError() != nil {
		d.t.Fatal(out, err)
	}
}

func (d *daemon) must(_ any, err error) {
	d.t.Helper()
	apptest.NoError(d.t, err)
}

func toAgent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

func toRole(name string) *pb.Target { return &pb.Target{To: &pb.Target_Role{Role: name}} }

func TestWatchOverview_FrameDescribesTheSession(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, newRestClock())
	unlimited := &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0)}}
	d.must(d.Root().ConfigureSession(d.ctx, unlimited))
	lead, builder := d.Registered("lead", "lead"), d.Registered("builder-1", "builder")
	d.must(d.Actor("default", "idler").RegisterAgent(d.ctx,
		&pb.RegisterAgentRequest{Lease: durationpb.New(time.Hour)}))
	activity := "building " + strings.Repeat("é", 200)
	d.must(pb.NewAgentServiceClient(builder).Heartbeat(d.ctx, &pb.HeartbeatRequest{Activity: &activity}))
	mail := pb.NewMessageServiceClient(builder)
	d.send(lead, toAgent("builder-1"), 4)
	d.send(lead, toRole("critic"), 1)
	claim := func() string {
		claimed := apptest.Must(t, mail.ClaimMessages, &pb.ClaimMessagesRequest{Max: 1})
		return claimed.GetClaims()[0].GetClaimId()
	}
	d.must(mail.NackMessages(d.ctx, &pb.NackMessagesRequest{
		Nacks: []*pb.Nack{{ClaimId: claim(), Fatal: true, Error: "no compiler"}},
	}))
	claim()
	d.must(pb.NewLockServiceClient(builder).AcquireLocks(d.ctx, &pb.AcquireLocksRequest{Paths: []string{"src/"}}))
	f := d.watch(d.Operator(), &pb.WatchOverviewRequest{})
	got := f.until("first frame", anyFrame)
	if got.GetSession() != "default" || got.GetClosed() || got.GetRevision() == 0 || got.GetTime() == nil {
		t.Errorf("frame: %v", got)
	}
	want := &pb.OverviewTotals{Waiting: 3, Claimed: 1, Dead: 1, Agents: 3, Locks: 1}
	if totals := got.GetTotals(); !proto.Equal(totals, want) {
		t.Errorf("totals: %v, want %v", totals, want)
	}
	boxes := got.GetMailboxes()
	if len(boxes) != 2 || boxes[0].GetMailbox() != "builder-1" || boxes[0].GetWaiting() != 2 ||
		boxes[0].GetClaimed() != 1 || boxes[0].GetDead() != 1 || boxes[0].GetOldest() == nil ||
		boxes[1].GetMailbox() != "role:critic" || boxes[1].GetWaiting() != 1 {
		t.Errorf("mailboxes: %v", boxes)
	}
	agents := got.GetAgents()
	if len(agents) != 3 || agents[0].GetName() != "builder-1" || agents[1].GetName() != "idler" ||
		agents[2].GetName() != "lead" {
		t.Fatalf("agents: %v", agents)
	}
	if a := agents[0]; a.GetRole() != "builder" || a.GetStatus() != pb.AgentStatus_AGENT_STATUS_ACTIVE ||
		a.GetHealth() != pb.Health_HEALTH_OK ||
		a.GetClaims() != 1 || a.GetLocks() != 1 || a.GetWaiting() != 2 || a.GetSilentSince() != nil ||
		!strings.HasPrefix(a.GetActivity(), "building é") || !strings.HasSuffix(a.GetActivity(), "é…") ||
		len(a.GetActivity()) > 120 {
		t.Errorf("builder-1: %v", a)
	}
	events := got.GetEvents()
	if e := events[0]; e.GetType() != "lock.granted" || e.GetSource() != "builder-1" || e.GetSummary() == "" ||
		e.GetTime() == nil ||
		e.GetSeverity() != pb.Severity_SEVERITY_INFO || e.GetRevision() <= events[1].GetRevision() {
		t.Errorf("events: %v", events)
	}
	found := map[string]*pb.Finding{}
	for _, x := range got.GetFindings() {
		found[x.GetSubject()] = x
	}
	if x := found["mailbox builder-1"]; x.GetSummary() != "1 dead letter" ||
		testkit.Call(x.GetCalls()[0]) != `RedriveDeadLetters {"mailbox":"builder-1"}` {
		t.Errorf("findings: %v", got.GetFindings())
	}
	if found["mailbox role:critic"] == nil {
		t.Errorf("findings: %v", got.GetFindings())
	}

	for totals := got.GetTotals(); totals.GetSentRate() == 0 || totals.GetRevisionRate() == 0; {
		d.send(lead, toAgent("builder-1"), 1) // again, because this client may miss the frames of 5 s
		totals = f.until("rates", anyFrame).GetTotals()
	}
	f.until("rates of a quiet session", func(m *pb.WatchOverviewResponse) bool { return m.GetTotals().GetSentRate() == 0 })
	d.later(30 * time.Minute)
	f.until("a late agent", func(m *pb.WatchOverviewResponse) bool {
		a := m.GetAgents()[1]
		return a.GetHealth() == pb.Health_HEALTH_LATE && a.GetSilentSince() != nil && m.GetTotals().GetLateAgents() == 1
	})
	d.must(pb.NewMessageServiceClient(lead).SendMessages(d.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: toAgent("builder-1"), Type: "halt"},
	}}))
	f.until("a halted agent", func(m *pb.WatchOverviewResponse) bool { return m.GetAgents()[0].GetHalted() })
	d.later(time.Hour)
	f.until("a failed agent, which comes first", func(m *pb.WatchOverviewResponse) bool {
		a := m.GetAgents()[0]
		return a.GetName() == "idler" && a.GetHealth() == pb.Health_HEALTH_FAILED && m.GetTotals().GetFailedAgents() == 1
	})
}

func TestWatchOverview_ObserversWatchAndAgentsDoNot(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	agent := d.Registered("builder-1", "builder")
	_, secret := d.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	observer := d.OverTCP(secret)
	got := d.watch(observer, &pb.WatchOverviewRequest{}).until("a frame for an observer", anyFrame)
	if got.GetSession() != "default" {
		t.Errorf("frame: %v", got)
	}
	d.watch(agent, &pb.WatchOverviewRequest{}).refused(codes.PermissionDenied, "NOT_FOR_AGENTS")
	d.watch(observer, &pb.WatchOverviewRequest{AllSessions: true}).refused(codes.PermissionDenied, "OPERATOR_ONLY")
	d.watch(d.In("nowhere", ""), &pb.WatchOverviewRequest{}).refused(codes.NotFound, "SESSION_NOT_FOUND")
}

func TestWatchOverview_OnceEndsAfterOneFrameOfEachSession(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	d.must(d.Root().CreateSession(d.ctx, &pb.CreateSessionRequest{Name: "web"}))
	for _, in := range []*pb.WatchOverviewRequest{{Once: true}, {Once: true, AllSessions: true}} {
		f := d.watch(d.Operator(), in)
		first := f.until("a frame", anyFrame)
		if in.GetAllSessions() {
			if second := f.until("a frame of the other session", anyFrame); first.GetSession() == second.GetSession() {
				t.Errorf("two frames of a session: %v and %v", first, second)
			}
		}
		select {
		case err := <-f.end:
			if !errors.Is(err, io.EOF) {
				t.Errorf("the stream ends with %v", err)
			}
		case frame := <-f.got:
			t.Errorf("another frame: %v", frame)
		case <-d.ctx.Done():
			t.Error("the stream does not end")
		}
	}
}

func TestWatchOverview_StreamEndsWithTheSession(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	d.must(d.Root().CreateSession(d.ctx, &pb.CreateSessionRequest{Name: "web"}))
	one := d.watch(d.In("web", ""), &pb.WatchOverviewRequest{})
	all := d.watch(d.Operator(), &pb.WatchOverviewRequest{AllSessions: true})
	one.until("a frame", anyFrame)
	all.until("a frame of default", func(m *pb.WatchOverviewResponse) bool { return m.GetSession() == "default" })
	d.must(d.Root().CloseSession(d.ctx, &pb.CloseSessionRequest{Name: "web"}))
	closed := func(m *pb.WatchOverviewResponse) bool { return m.GetSession() == "web" && m.GetClosed() }
	one.until("the last frame", closed)
	all.until("the last frame of web", closed)
	select {
	case err := <-one.end:
		if !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
	case <-d.ctx.Done():
		t.Error("the stream does not end")
	}
	d.must(d.Root().CreateSession(d.ctx, &pb.CreateSessionRequest{Name: "api"}))
	all.until("a frame of a new session", func(m *pb.WatchOverviewResponse) bool { return m.GetSession() == "api" })
}

// A frame of more than 32 KiB takes another path through gRPC than a small one.
func TestWatchOverview_AllClientsGetTheSameLargeFrames(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	events := pb.NewEventServiceClient(d.Operator())
	for range 40 {
		d.must(events.PublishEvent(d.ctx, &pb.PublishEventRequest{Type: "test.large", Summary: strings.Repeat("x", 512)}))
	}
	activity := strings.Repeat("y", 120)
	for i := range 150 {
		conn := d.Conn(fmt.Sprintf("%s-%d", strings.Repeat("z", 60), i))
		d.must(pb.NewAgentServiceClient(conn).RegisterAgent(d.ctx,
			&pb.RegisterAgentRequest{Lease: durationpb.New(apptest.LongLease)}))
		d.must(pb.NewAgentServiceClient(conn).Heartbeat(d.ctx, &pb.HeartbeatRequest{Activity: &activity}))
	}
	var all []*frames
	for range 5 {
		all = append(all, d.watch(d.Operator(), &pb.WatchOverviewRequest{}))
	}
	for n := range 3 {
		d.send(d.Operator(), toRole("builder"), 1)
		var first *pb.WatchOverviewResponse
		for _, f := range all {
			got := f.until("a frame", func(m *pb.WatchOverviewResponse) bool { return m.GetTotals().GetWaiting() == int64(n+1) })
			if proto.Size(got) <= 32<<10 || len(got.GetAgents()) != 150 || len(got.GetEvents()) != 40 {
				t.Errorf("%d bytes, %d agents, %d events", proto.Size(got), len(got.GetAgents()), len(got.GetEvents()))
			}
			if first == nil {
				first = got
			}
			if got.GetTotals().GetDead() != first.GetTotals().GetDead() || got.GetAgents()[149].GetActivity() != activity {
				t.Errorf("another client gets %v", got)
			}
		}
	}
}
