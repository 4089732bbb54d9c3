package locks_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// Requests go to a table that knows no session: whatever gets past the checks is NOT_FOUND, so what is
// not refused as invalid was accepted. What the API promises to accept is written out here once more.

func wantAcquire(t *testing.T, r *pb.AcquireLocksRequest) {
	t.Helper()
	wait, hold := r.Wait.AsDuration(), r.MaxHold.AsDuration()
	if len(r.Paths) == 0 || r.Mode < 0 || r.Mode > 2 || wait < 0 || wait > 24*time.Hour ||
		r.MaxHold != nil && (hold < time.Second || hold > 7*24*time.Hour) || !line(r.Holder, 128) || !line(r.Reason, 512) {
		t.Fatalf("accepted: %v", r)
	}
	wantPaths(t, r.Paths)
}

func wantExtend(t *testing.T, r *pb.ExtendLocksRequest) {
	t.Helper()
	hold := r.MaxHold.AsDuration()
	if len(r.Fences) == 0 || r.MaxHold != nil && (hold < time.Second || hold > 7*24*time.Hour) {
		t.Fatalf("accepted: %v", r)
	}
	wantNumbers(t, r.Fences)
}

func wantRelease(t *testing.T, r *pb.ReleaseLocksRequest) {
	t.Helper()
	if len(r.Fences)+len(r.Tickets)+len(r.Paths) == 0 && !r.All || !line(r.Holder, 128) {
		t.Fatalf("accepted: %v", r)
	}
	wantNumbers(t, r.Fences)
	wantNumbers(t, r.Tickets)
	wantPaths(t, r.Paths)
}

func FuzzLock(f *testing.F) {
	acquire := func(r *pb.AcquireLocksRequest) *pb.LockRequest_Acquire { return &pb.LockRequest_Acquire{Acquire: r} }
	for _, r := range []*pb.LockRequest{
		{}, {Number: 1}, {Number: -1, Request: acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}})},
		{Number: 1, Request: acquire(&pb.AcquireLocksRequest{Paths: []string{"src/", "**/*.go"}, Wait: durationpb.New(time.Minute), KeepTicket: true})},
		{Number: 2, Request: acquire(&pb.AcquireLocksRequest{Paths: []string{"../x"}, Wait: durationpb.New(-1)})},
		{Number: 3, Request: &pb.LockRequest_Extend{Extend: &pb.ExtendLocksRequest{Fences: []int64{7}, MaxHold: durationpb.New(time.Hour)}}},
		{Number: 4, Request: &pb.LockRequest_Extend{Extend: &pb.ExtendLocksRequest{Fences: []int64{0, -1}}}},
		{Number: 5, Request: &pb.LockRequest_Release{Release: &pb.ReleaseLocksRequest{Fences: []int64{7}, Tickets: []int64{8}, Paths: []string{"x"}}}},
		{Number: 6, Request: &pb.LockRequest_Release{Release: &pb.ReleaseLocksRequest{RequestId: "x", All: true}}},
		{Number: 7, Request: &pb.LockRequest_Cancel{Cancel: &pb.LockCancel{}}}, {Request: &pb.LockRequest_Cancel{Cancel: &pb.LockCancel{}}},
	} {
		seed(f, r)
	}
	fuzzTable(f, &pb.LockRequest{}, askOnce, func(t *testing.T, r *pb.LockRequest) {
		switch x := r.Request.(type) {
		case *pb.LockRequest_Acquire:
			wantAcquire(t, x.Acquire)
		case *pb.LockRequest_Extend:
			wantExtend(t, x.Extend)
		case *pb.LockRequest_Release:
			wantRelease(t, x.Release)
		default:
			t.Fatalf("accepted: %v", r)
		}
		if r.Number < 1 {
			t.Fatalf("accepted: number %d", r.Number)
		}
	})
}

// askOnce makes one request on a stream of its own. It returns the error in the answer, which must be the only one, or that of the stream.
func askOnce(table *locks.Table) func(context.Context, *pb.LockRequest) (*pb.LockResponse, error) {
	return func(ctx context.Context, r *pb.LockRequest) (*pb.LockResponse, error) {
		var refused error
		s := locks.NewService(table, func(_ context.Context, err error) *pb.ItemError {
			refused = err
			return &pb.ItemError{Message: err.Error()}
		})
		l := &monologue{ctx: ctx, rest: []*pb.LockRequest{r}}
		if err := s.Lock(l); err != nil {
			return nil, err
		}
		switch {
		case r.GetCancel() != nil && len(l.answers) == 0:
			return nil, fault.Field("cancel", "has no answer")
		case len(l.answers) != 1 || l.answers[0].Number != r.Number:
			return nil, fmt.Errorf("answered with %v", l.answers)
		}
		return l.answers[0], refused
	}
}

// A monologue is a Lock stream whose client says what it has to say, and then listens.
type monologue struct {
	pb.LockService_LockServer
	ctx     context.Context
	rest    []*pb.LockRequest
	answers []*pb.LockResponse
}

// Context implements grpc.ServerStream.
func (m *monologue) Context() context.Context { return m.ctx }

// Recv implements grpc.BidiStreamingServer.
func (m *monologue) Recv() (*pb.LockRequest, error) {
	if len(m.rest) == 0 {
		return nil, io.EOF
	}
	next := m.rest[0]
	m.rest = m.rest[1:]
	return next, nil
}

// Send implements grpc.BidiStreamingServer.
func (m *monologue) Send(a *pb.LockResponse) error {
	m.answers = append(m.answers, a)
	return nil
}

func seed(f *testing.F, m proto.Message) {
	f.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
}

// fuzzTable is fuzz for any service of a table.
func fuzzTable[Q proto.Message, A any](f *testing.F, empty Q, rpcOf func(*locks.Table) func(context.Context, Q) (A, error), accepted func(*testing.T, Q)) {
	f.Helper()
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock, Migrations: slices.Concat(idempotency.Migrations(), sessions.Migrations())})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	table := locks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop())
	rpc := rpcOf(table)
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := proto.CloneOf(empty)
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		_, err := rpc(ctx, r)
		switch fault.KindOf(err) {
		case fault.NotFound:
			accepted(t, r)
		case fault.Invalid:
		default:
			t.Fatalf("%v: %v", r, err)
		}
	})
}

func wantPaths(t *testing.T, paths []string) {
	t.Helper()
	if len(paths) > 1000 {
		t.Fatalf("%d paths", len(paths))
	}
	for _, p := range paths {
		if p == "" || len(p) > 1024 || p[0] == '/' || strings.ContainsAny(p, "\\\x00\n") || strings.Contains("/"+p+"/", "/../") {
			t.Fatalf("path %q", p)
		}
	}
}

func wantNumbers(t *testing.T, list []int64) {
	t.Helper()
	if len(list) > 1000 {
		t.Fatalf("%d numbers", len(list))
	}
	for _, n := range list {
		if n <= 0 {
			t.Fatalf("number %d", n)
		}
	}
}

func line(s string, most int) bool { return len(s) <= most && !strings.ContainsAny(s, "\x00\n\r\x7f") }
