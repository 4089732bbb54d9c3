package sessions_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// What the API promises to accept, written out once more.
var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

func FuzzCreateSession(f *testing.F) {
	fuzz(f, &pb.CreateSessionRequest{}, (*sessions.Service).CreateSession, func(t *testing.T, r *pb.CreateSessionRequest, a *pb.CreateSessionResponse) {
		if !aName.MatchString(r.Name) || r.Name == "all" || r.Name == "everyone" || r.Name == "system" || a.Session.Name != r.Name {
			t.Fatalf("%v was created for %v", a, r)
		}
		wantSettings(t, r.Settings, a.Session)
	})
}

func FuzzConfigureSession(f *testing.F) {
	fuzz(f, &pb.ConfigureSessionRequest{}, (*sessions.Service).ConfigureSession, func(t *testing.T, r *pb.ConfigureSessionRequest, a *pb.ConfigureSessionResponse) {
		wantSettings(t, r.Settings, a.Session)
	})
}

// fuzz hands requests to an RPC of a real registry; accepted looks at those that were done.
func fuzz[Q proto.Message, A any](f *testing.F, empty Q, rpc func(*sessions.Service, context.Context, Q) (A, error), accepted func(*testing.T, Q, A)) {
	clock := clockwork.NewRealClock()
	o := store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock}
	o.Migrations = append(append(append(o.Migrations, events.Migrations()...), idempotency.Migrations()...), sessions.Migrations()...)
	st, err := store.Open(f.Context(), o)
	testkit.NoError(f, err)
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	service := sessions.NewService(sessions.New(st, events.New(st, clock, zap.NewNop()), directory.New()))
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Operator, Session: "default"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := proto.CloneOf(empty)
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		a, err := rpc(service, ctx, r)
		switch {
		case err == nil:
			accepted(t, r, a)
		case fault.KindOf(err) == fault.Internal || fault.KindOf(err) == fault.Unavailable:
			t.Fatalf("%v: %v", r, err)
		}
	})
}

// wantSettings checks that a session has the settings that were asked for, within the limits.
func wantSettings(t *testing.T, asked *pb.SessionSettings, s *pb.Session) {
	t.Helper()
	got := s.Settings
	within := func(name string, n, least, most float64) {
		if !(n >= least && n <= most) {
			t.Fatalf("%s is now %v", name, n)
		}
	}
	orZero := func(name string, n, least, most float64) {
		if n != 0 {
			within(name, n, least, most)
		}
	}
	const day = 24 * 3600
	within("description", float64(len(s.Description)), 0, 512)
	orZero("ageing", got.Ageing.AsDuration().Seconds(), 1, day)
	within("mailbox_limit", float64(got.GetMailboxLimit()), 0, 1e7)
	within("max_attempts", float64(got.GetMaxAttempts()), 1, 100)
	orZero("send_rate", got.GetSendRate(), 0.001, 1e6)
	within("send_burst", float64(got.GetSendBurst()), 1, 1e6)
	within("message_limit", float64(got.GetMessageLimit()), 1<<10, 1<<20)
	within("payload_limit", float64(got.GetPayloadLimit()), 1, 256<<10)
	within("breaker_failures", float64(got.GetBreakerFailures()), 0, 1000)
	within("breaker_time", got.BreakerTime.AsDuration().Seconds(), 1, day)
	within("response_time", got.ResponseTime.AsDuration().Seconds(), 1, 365*day)
	within("escalate_to", float64(len(got.EscalateTo.GetNames())), 0, 100)
	within("directors", float64(len(got.Directors.GetNames())), 0, 100)
	orZero("stale_after", got.StaleAfter.AsDuration().Seconds(), 1, 30*day)
	orZero("blocker_escalation", got.BlockerEscalation.AsDuration().Seconds(), 1, 30*day)
	within("unknown_types", float64(got.UnknownTypes), 1, 3)
	within("invalid_payloads", float64(got.InvalidPayloads), 1, 3)
	within("artifact_limit", float64(got.GetArtifactLimit()), 1, 4<<30)
	within("artifact_total_limit", float64(got.GetArtifactTotalLimit()), 0, 64<<40)
	for name, d := range map[string]*durationpb.Duration{
		"message_retention": got.MessageRetention, "event_retention": got.EventRetention, "dead_letter_retention": got.DeadLetterRetention,
	} {
		orZero(name, d.AsDuration().Seconds(), 1, 3650*day)
	}
	for _, role := range append(got.EscalateTo.GetNames(), got.Directors.GetNames()...) {
		if !aName.MatchString(role) {
			t.Fatalf("%q is a role", role)
		}
	}

	wire, err := proto.Marshal(asked)
	testkit.NoError(t, err)
	want := &pb.SessionSettings{} // without what the API does not know
	testkit.NoError(t, (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wire, want))
	want.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if is := got.ProtoReflect().Get(f); !is.Equal(v) {
			t.Fatalf("asked for %s %v, it is now %v", f.Name(), v, is)
		}
		return true
	})
}
