package retention_test

import (
	"context"
	"io"
	"regexp"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/retention"
	"brokerd/internal/testkit"
)

// What the API promises to accept, written out once more.
var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

func FuzzExportSession(f *testing.F) {
	fuzz(f, &pb.ExportSessionRequest{}, func(s *retention.SessionService, ctx context.Context, r *pb.ExportSessionRequest) error {
		return s.ExportSession(r, sink{ctx: ctx})
	}, func(t *testing.T, r *pb.ExportSessionRequest) {
		if r.Name != "" && r.Name != "default" {
			t.Fatalf("%v was exported", r)
		}
	})
}

func FuzzDeleteSession(f *testing.F) {
	fuzz(f, &pb.DeleteSessionRequest{}, func(s *retention.SessionService, ctx context.Context, r *pb.DeleteSessionRequest) error {
		_, err := s.DeleteSession(ctx, r)
		return err
	}, func(t *testing.T, r *pb.DeleteSessionRequest) {
		t.Fatalf("%v was deleted, and is open", r)
	})
}

// fuzz hands requests to an RPC of a keeper with one open session; accepted looks at those that were done.
func fuzz[Q interface {
	proto.Message
	GetName() string
}](f *testing.F, empty Q, rpc func(*retention.SessionService, context.Context, Q) error, accepted func(*testing.T, Q)) {
	s := &stock{t: f, dir: f.TempDir(), clock: newClock()}
	s.store = testkit.Store(f, s.dir, s.clock, retention.Migrations(), idempotency.Migrations(), itemMigrations())
	s.mail = stockMessages{s}
	service := retention.NewSessionService(s.keeper(nil))
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Operator, Session: "default"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := proto.CloneOf(empty)
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		err := rpc(service, ctx, r)
		switch kind := fault.KindOf(err); {
		case err == nil:
			accepted(t, r)
		case kind == fault.Internal || kind == fault.Unavailable:
			t.Fatalf("%v: %v", r, err)
		case kind == fault.NotFound && !aName.MatchString(r.GetName()):
			t.Fatalf("%q was taken for a name", r.GetName())
		}
	})
}

// A sink is a stream that takes all that is sent.
type sink struct {
	grpc.ServerStreamingServer[pb.ExportSessionResponse]
	ctx context.Context
}

func (s sink) Context() context.Context { return s.ctx }

func (s sink) Send(piece *pb.ExportSessionResponse) error {
	_, err := io.Discard.Write(piece.GetData())
	return err
}
