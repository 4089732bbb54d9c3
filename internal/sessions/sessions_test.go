package sessions_test

import (
	"context"
	"fmt"
	"math"
	"slices"
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
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type kit struct {
	t        *testing.T
	dir      string
	clock    *clockwork.FakeClock
	store    *store.Store
	registry *sessions.Registry
	api      pb.SessionServiceClient
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
		events.Migrations(), schema.Migrations(), idempotency.Migrations(), sessions.Migrations())
	log := events.New(k.store, k.clock, zap.NewNop())
	people := directory.New()
	k.registry = sessions.New(k.store, log, people)
	conn, _ := testkit.Serve(k.t, func(r grpc.ServiceRegistrar) {
		pb.RegisterSessionServiceServer(r, sessions.NewService(k.registry))
		pb.RegisterEventServiceServer(r, events.NewService(log, people, nil, nil))
	})
	k.api, k.events = pb.NewSessionServiceClient(conn), pb.NewEventServiceClient(conn)
}

func (k *kit) ctx() context.Context { return testkit.Operator(k.t.Context()) }

func in(t *testing.T, access identity.Access, session string) context.Context {
	c := identity.Caller{Access: access, Session: session}
	if access == identity.Agent {
		c.Agent = "builder-1"
	}
	return testkit.As(t.Context(), c)
}

func (k *kit) create(in *pb.CreateSessionRequest) *pb.Session {
	k.t.Helper()
	out, err := k.api.CreateSession(k.ctx(), in)
	testkit.NoError(k.t, err)
	return out.GetSession()
}

func (k *kit) get(name string) *pb.Session {
	k.t.Helper()
	out, err := k.api.GetSession(k.ctx(), &pb.GetSessionRequest{Name: name})
	testkit.NoError(k.t, err)
	if out.GetRevision() != k.store.Revision() {
		k.t.Errorf("true at %d, want %d", out.GetRevision(), k.store.Revision())
	}
	return out.GetSession()
}

func settings(ageing time.Duration, limit int64, attempts int32) *pb.SessionSettings {
	return &pb.SessionSettings{Ageing: durationpb.New(ageing), MailboxLimit: &limit, MaxAttempts: &attempts}
}

// defaults are the settings that the API promises a new session, but for what the given ones say.
func defaults(given *pb.SessionSettings) *pb.SessionSettings {
	const day = 24 * time.Hour
	all := &pb.SessionSettings{
		Ageing: durationpb.New(5 * time.Minute), MailboxLimit: proto.Int64(10_000), MaxAttempts: proto.Int32(3),
		SendRate: proto.Float64(10), SendBurst: proto.Int32(100), MessageLimit: proto.Int32(1 << 20), PayloadLimit: proto.Int32(256 << 10),
		BreakerFailures: proto.Int32(5), BreakerTime: durationpb.New(time.Minute), ResponseTime: durationpb.New(10 * time.Minute),
		EscalateTo:       &pb.Names{Names: []string{"overseer", "lead", "orchestrator", "project_manager"}},
		Directors:        &pb.Names{Names: []string{"lead", "overseer", "orchestrator", "project_manager"}},
		MessageRetention: durationpb.New(3 * day), EventRetention: durationpb.New(7 * day), DeadLetterRetention: durationpb.New(30 * day),
		FoldCase: proto.Bool(false), StaleAfter: durationpb.New(2 * time.Hour), BlockerEscalation: durationpb.New(15 * time.Minute),
		UnknownTypes: pb.TypePolicy_TYPE_POLICY_WARN, InvalidPayloads: pb.TypePolicy_TYPE_POLICY_WARN,
		ArtifactLimit: proto.Int64(4 << 30), ArtifactTotalLimit: proto.Int64(64 << 30),
	}
	// Not proto.Merge, which would join lists and the fields of durations.
	given.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		all.ProtoReflect().Set(f, v)
		return true
	})
	return all
}

func same(t *testing.T, want, got proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDefault_AlwaysExistsWithTheDefaultSettings(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "the tables are older than the test's clock")
	k := newKit(t)
	got := k.get("")
	if got.GetName() != "default" || !got.GetCreatedAt().AsTime().Equal(k.clock.Now()) {
		t.Errorf("got %v", got)
	}
	same(t, defaults(nil), got.GetSettings())
	same(t, got.GetSettings(), k.create(&pb.CreateSessionRequest{Name: "new"}).GetSettings())
}

func TestCreate_KeepsWhatIsGivenAndAppendsAnEvent(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	want := settings(0, 0, 7)
	made := k.create(&pb.CreateSessionRequest{Name: "team-1", Description: "a team", Settings: want})
	same(t, defaults(want), made.GetSettings())
	if made.GetDescription() != "a team" || made.GetRevision() != k.store.Revision() {
		t.Errorf("made %v at %d", made, k.store.Revision())
	}
	same(t, made, k.get("team-1"))
	list, err := k.events.ListEvents(in(t, identity.Operator, "team-1"), &pb.ListEventsRequest{})
	testkit.NoError(t, err)
	if e := list.GetEvents(); len(e) != 1 || e[0].GetType() != "session.created" || e[0].GetRevision() != made.GetRevision() || e[0].GetSource() != "system" {
		t.Errorf("events %v", e)
	}
}

func TestCreate_NameThatIsTakenIsRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	before := k.store.Revision()
	_, err := k.api.CreateSession(k.ctx(), &pb.CreateSessionRequest{Name: "default"})
	if status.Code(err) != codes.AlreadyExists || testkit.Reason(err) != "ALREADY_EXISTS" {
		t.Errorf("got %v", err)
	}
	if k.store.Revision() != before {
		t.Error("a refused session has taken a revision")
	}
}

func TestRequestID_SameBodySameAnswerAnotherBodyRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	create := &pb.CreateSessionRequest{RequestId: uuid.NewString(), Name: "team-1", Description: "a"}
	made := k.create(create)
	same(t, made, k.create(create))
	create.Description = "b"
	if _, err := k.api.CreateSession(k.ctx(), create); testkit.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another body: %v", err)
	}

	ctx := in(t, identity.Operator, "team-1")
	configure := &pb.ConfigureSessionRequest{RequestId: uuid.NewString(), Settings: settings(time.Hour, 1, 1)}
	first, err := k.api.ConfigureSession(ctx, configure)
	testkit.NoError(t, err)
	if _, err := k.api.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: settings(time.Minute, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	again, err := k.api.ConfigureSession(ctx, configure)
	testkit.NoError(t, err)
	same(t, first, again)
	if now := k.get("team-1").GetSettings().GetAgeing().AsDuration(); now != time.Minute {
		t.Errorf("the repeated request has changed ageing to %v", now)
	}
	configure.Settings.Ageing = durationpb.New(2 * time.Hour)
	if _, err := k.api.ConfigureSession(ctx, configure); testkit.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another body: %v", err)
	}
}

func TestConfigure_ChangesWhatIsGivenAndNothingElse(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	var hooked []directory.Session
	k.registry.OnConfigured(func(tx *store.Tx, before, now directory.Session) error {
		if before.Settings.GetMaxAttempts() != 2 {
			t.Errorf("before it was %v", before)
		}
		hooked = append(hooked, now)
		return nil
	})
	k.create(&pb.CreateSessionRequest{Name: "team-1", Description: "a team", Settings: settings(time.Hour, 5, 2)})
	ctx := in(t, identity.Operator, "team-1")
	attempts := int32(9)
	out, err := k.api.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MaxAttempts: &attempts}})
	testkit.NoError(t, err)
	same(t, defaults(settings(time.Hour, 5, 9)), out.GetSession().GetSettings())
	if out.GetSession().GetDescription() != "a team" || out.GetSession().GetRevision() != k.store.Revision() {
		t.Errorf("got %v", out)
	}
	same(t, out.GetSession(), k.get("team-1"))
	if len(hooked) != 1 || hooked[0].Name != "team-1" || hooked[0].Settings.GetMaxAttempts() != 9 {
		t.Errorf("hooks saw %v", hooked)
	}

	description := ""
	if _, err = k.api.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Description: &description}); err != nil {
		t.Fatal(err)
	}
	if got := k.get("team-1"); got.GetDescription() != "" || len(hooked) != 1 {
		t.Errorf("got %v, %d hooks", got, len(hooked))
	}

	before := k.store.Revision()
	if _, err = k.api.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MaxAttempts: &attempts}}); err != nil {
		t.Fatal(err)
	}
	if k.store.Revision() != before {
		t.Error("a change that changes nothing has taken a revision")
	}
}

func TestConfigure_HookThatFailsUndoesTheChange(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.registry.OnConfigured(func(*store.Tx, directory.Session, directory.Session) error {
		return fault.New(fault.Precondition, "NOT_NOW", "not now")
	})
	_, err := k.api.ConfigureSession(k.ctx(), &pb.ConfigureSessionRequest{Settings: settings(time.Hour, 1, 1)})
	if testkit.Reason(err) != "NOT_NOW" {
		t.Errorf("got %v", err)
	}
	same(t, defaults(nil), k.get("default").GetSettings())
}

func TestConfigure_LastsOverAReopen(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	out, err := k.api.ConfigureSession(k.ctx(), &pb.ConfigureSessionRequest{Settings: settings(time.Second, 10_000_000, 100)})
	testkit.NoError(t, err)
	testkit.NoError(t, k.store.Close())
	k.open()
	same(t, out.GetSession(), k.get("default"))
}

func TestGetAndList_OnlyOperatorsSeeOtherSessions(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.create(&pb.CreateSessionRequest{Name: "other"})
	for _, access := range []identity.Access{identity.Agent, identity.Observer} {
		ctx := in(t, access, "default")
		_, err := k.api.GetSession(ctx, &pb.GetSessionRequest{Name: "other"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("access %d: another session: %v", access, err)
		}
		_, missing := k.api.GetSession(ctx, &pb.GetSessionRequest{Name: "nowhere"})
		if strings.ReplaceAll(status.Convert(missing).Message(), "nowhere", "other") != status.Convert(err).Message() {
			t.Errorf("access %d: %q and %q tell one that exists from one that does not", access, err, missing)
		}
		if out, err := k.api.GetSession(ctx, &pb.GetSessionRequest{}); err != nil || out.GetSession().GetName() != "default" {
			t.Errorf("access %d: own session: %v, %v", access, out, err)
		}
		out, err := k.api.ListSessions(ctx, &pb.ListSessionsRequest{})
		if err != nil || len(out.GetSessions()) != 1 || out.GetSessions()[0].GetName() != "default" {
			t.Errorf("access %d: list: %v, %v", access, out, err)
		}
	}
	if _, err := k.api.GetSession(k.ctx(), &pb.GetSessionRequest{Name: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Errorf("operator: %v", err)
	}
}

func TestList_PagesAreInOrderOfName(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	want := []string{"default"}
	for i := range 7 {
		name := fmt.Sprintf("s%d", 7-i)
		k.create(&pb.CreateSessionRequest{Name: name})
		want = append(want, name)
	}
	slices.Sort(want)
	var got []string
	req := &pb.ListSessionsRequest{PageSize: 3}
	for {
		out, err := k.api.ListSessions(k.ctx(), req)
		testkit.NoError(t, err)
		for _, s := range out.GetSessions() {
			got = append(got, s.GetName())
		}
		if len(out.GetSessions()) > 3 || out.GetRevision() != k.store.Revision() {
			t.Errorf("page %v", out)
		}
		if req.PageToken = out.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBadInput_NamesTheField(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	create := func(r *pb.CreateSessionRequest) func() error {
		return func() error { _, err := k.api.CreateSession(k.ctx(), r); return err }
	}
	configure := func(r *pb.ConfigureSessionRequest) func() error {
		return func() error { _, err := k.api.ConfigureSession(k.ctx(), r); return err }
	}
	list := func(r *pb.ListSessionsRequest) func() error {
		return func() error { _, err := k.api.ListSessions(k.ctx(), r); return err }
	}
	long := strings.Repeat("x", 513)
	for _, c := range []struct {
		field string
		call  func() error
	}{
		{"request_id", create(&pb.CreateSessionRequest{Name: "x", RequestId: "1"})},
		{"settings.ageing", create(&pb.CreateSessionRequest{Name: "x", Settings: settings(-time.Second, 0, 1)})},
		{"request_id", configure(&pb.ConfigureSessionRequest{RequestId: "x"})},
		{"settings.ageing", configure(&pb.ConfigureSessionRequest{Settings: settings(time.Millisecond, 0, 1)})},
		{"settings.ageing", configure(&pb.ConfigureSessionRequest{Settings: settings(25*time.Hour, 0, 1)})},
		{"settings.ageing", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{Ageing: &durationpb.Duration{Seconds: 1, Nanos: -1}}})},
		{"settings.mailbox_limit", configure(&pb.ConfigureSessionRequest{Settings: settings(0, -1, 1)})},
		{"settings.mailbox_limit", configure(&pb.ConfigureSessionRequest{Settings: settings(0, 10_000_001, 1)})},
		{"settings.max_attempts", configure(&pb.ConfigureSessionRequest{Settings: settings(0, 0, 0)})},
		{"settings.max_attempts", configure(&pb.ConfigureSessionRequest{Settings: settings(0, 0, 101)})},
		{"settings.send_rate", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(-1)}})},
		{"settings.send_rate", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(math.NaN())}})},
		{"settings.send_rate", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(1_000_001)}})},
		{"settings.send_rate", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0.0009)}})},
		{"settings.send_burst", configure(&pb.ConfigureSessionRequest{
			Settings: &pb.SessionSettings{SendBurst: proto.Int32(1_000_001)}})},
		{"settings.send_burst", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendBurst: proto.Int32(0)}})},
		{"settings.message_limit", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MessageLimit: proto.Int32(1023)}})},
		{"settings.message_limit", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MessageLimit: proto.Int32(1<<20 + 1)}})},
		{"settings.payload_limit", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{PayloadLimit: proto.Int32(256<<10 + 1)}})},
		{"settings.breaker_failures", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{BreakerFailures: proto.Int32(1001)}})},
		{"settings.breaker_time", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{BreakerTime: durationpb.New(0)}})},
		{"settings.response_time", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{ResponseTime: durationpb.New(time.Millisecond)}})},
		{"settings.escalate_to.names[1]", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"a", ""}}}})},
		{"settings.directors.names", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{Directors: &pb.Names{Names: slices.Repeat([]string{"a"}, 101)}}})},
		{"settings.stale_after", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{StaleAfter: durationpb.New(31 * 24 * time.Hour)}})},
		{"settings.blocker_escalation", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{BlockerEscalation: durationpb.New(time.Millisecond)}})},
		{"settings.unknown_types", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{UnknownTypes: 4}})},
		{"settings.invalid_payloads", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{InvalidPayloads: -1}})},
		{"settings.artifact_limit", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{ArtifactLimit: proto.Int64(0)}})},
		{"settings.artifact_total_limit", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{ArtifactTotalLimit: proto.Int64(-1)}})},
		{"settings.message_retention", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MessageRetention: durationpb.New(time.Millisecond)}})},
		{"settings.event_retention", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{EventRetention: durationpb.New(3651 * 24 * time.Hour)}})},
		{"settings.dead_letter_retention", configure(&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{DeadLetterRetention: durationpb.New(-1)}})},
		{"page_token", list(&pb.ListSessionsRequest{PageToken: "x"})},
	} {
		if err := c.call(); status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), c.field) {
			t.Errorf("got %v, naming %v; want INVALID_ARGUMENT naming %s", err, testkit.Fields(err), c.field)
		}
	}
	err := create(&pb.CreateSessionRequest{Description: long, Settings: settings(-1, -1, -1)})()
	want := []string{"name", "description"}
	if diff := cmp.Diff(want, testkit.Fields(err)); diff != "" {
		t.Errorf("all at once (-want +got):\n%s", diff)
	}
}
