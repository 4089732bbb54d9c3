package admin_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admin"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

// Requests go to a service that knows no session: whatever gets past the checks is NOT_FOUND, so what is not refused as invalid was
// accepted. What the API promises to accept is written out here once more.
func FuzzExplain(f *testing.F) {
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock,
		Migrations: sessions.Migrations()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	service := admin.NewService(admin.Parts{Store: st, Clock: clock, Directory: directory.New()})
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Operator, Session: "none"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := &pb.ExplainRequest{}
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		_, err := service.Explain(ctx, r)
		switch fault.KindOf(err) {
		case fault.NotFound:
		case fault.Invalid:
			return
		default:
			t.Fatalf("%v: %v", r, err)
		}
		line := func(s string, most int) bool {
			return s != "" && len(s) <= most && !strings.ContainsAny(s, "\x00\n\r\t\x1b")
		}
		ok := true
		switch s := r.Subject.(type) {
		case *pb.ExplainRequest_Message:
			ok = line(s.Message, 128)
		case *pb.ExplainRequest_Lock:
			ok = line(s.Lock, 1024)
		case *pb.ExplainRequest_Token:
			kind, scope, _ := strings.Cut(s.Token, "/")
			ok = aName.MatchString(kind) && line(scope, 641)
		case *pb.ExplainRequest_Agent:
			ok = aName.MatchString(s.Agent)
		case *pb.ExplainRequest_Role:
			ok = aName.MatchString(s.Role)
		case *pb.ExplainRequest_Channel:
			ok = line(s.Channel, 134)
		}
		if !ok {
			t.Fatalf("accepted: %v", r)
		}
	})
}
