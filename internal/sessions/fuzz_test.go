package sessions_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
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

func FuzzGetSession(f *testing.F) {
	fuzz(f, &pb.GetSessionRequest{}, (*sessions.Service).GetSession, func(t *testing.T, r *pb.GetSessionRequest, a *pb.GetSessionResponse) {
		if r.Name != "" && a.Session.Name != r.Name {
			t.Fatalf("%v is the answer to %v", a, r)
		}
	})
}

func FuzzListSessions(f *testing.F) {
	fuzz(f, &pb.ListSessionsRequest{}, (*sessions.Service).ListSessions, func(t *testing.T, r *pb.ListSessionsRequest, a *pb.ListSessionsResponse) {
		if r.PageSize < 0 || r.PageSize > 1000 || r.PageSize > 0 && len(a.Sessions) > int(r.PageSize) {
			t.Fatalf("%d sessions are the answer to %v", len(a.Sessions), r)
		}
	})
}

// fuzz hands requests to an RPC of a real registry; accepted looks at those that were done.
func fuzz[Q proto.Message, A any](f *testing.F, empty Q, rpc func(*sessions.Service, context.Context, Q) (A, error), accepted func(*testing.T, Q, A)) {
	clock := clockwork.NewRealClock()
	o := store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock}
	o.Migrations = append(append(append(o.Migrations, events.Migrations()...), once.Migrations()...), sessions.Migrations()...)
	st, err := store.Open(f.Context(), o)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	service := sessions.NewService(sessions.New(st, events.New(st, clock, zap.NewNop())))
	ctx := caller.NewContext(f.Context(), caller.Caller{Access: caller.Operator, Session: "default"})
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
	ageing := s.Settings.Ageing.AsDuration()
	limit, attempts := s.Settings.GetMailboxLimit(), s.Settings.GetMaxAttempts()
	if ageing != 0 && ageing < time.Second || ageing > 24*time.Hour || limit < 0 || limit > 10_000_000 || attempts < 1 || attempts > 100 || len(s.Description) > 512 {
		t.Fatalf("the session is now %v", s)
	}
	if asked.GetAgeing() != nil && ageing != asked.Ageing.AsDuration() || asked != nil && asked.MailboxLimit != nil && limit != *asked.MailboxLimit ||
		asked != nil && asked.MaxAttempts != nil && attempts != *asked.MaxAttempts {
		t.Fatalf("asked for %v, the session is now %v", asked, s)
	}
}
