package events_test

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// Requests go to a log that knows no session: whatever gets past the checks is NOT_FOUND, so what is
// not refused as invalid was accepted. What the API promises to accept is written out here once more.

var anEvent = regexp.MustCompile(`\A[A-Za-z][A-Za-z0-9._-]{0,127}\z`)

var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

func FuzzListEvents(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.ListEventsRequest{}, func(r *pb.ListEventsRequest) error {
		_, err := s.ListEvents(outsider(), r)
		return err
	}, func(t *testing.T, r *pb.ListEventsRequest) {
		if r.AfterRevision < 0 || r.UntilRevision < 0 || r.PageSize < 0 || r.PageSize > 1000 {
			t.Fatalf("accepted: %v", r)
		}
		wantFilter(t, r.Filter)
	})
}

func FuzzSubscribeEvents(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.SubscribeEventsRequest{}, func(r *pb.SubscribeEventsRequest) error {
		return s.SubscribeEvents(r, silent{})
	}, func(t *testing.T, r *pb.SubscribeEventsRequest) {
		if r.GetAfterRevision() < 0 || r.Cursor != "" && !aName.MatchString(r.Cursor) {
			t.Fatalf("accepted: %v", r)
		}
		wantFilter(t, r.Filter)
	})
}

func FuzzPublishEvent(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.PublishEventRequest{}, func(r *pb.PublishEventRequest) error {
		_, err := s.PublishEvent(outsider(), r)
		return err
	}, func(t *testing.T, r *pb.PublishEventRequest) {
		if !anEvent.MatchString(r.Type) || strings.HasPrefix(r.Type, "message.") || len(r.Summary) > 512 || len(r.Details) > 64<<10+1000 || len(r.Related) > 16 ||
			len(r.TaskId) > 128 || r.Category < 0 || r.Category > pb.EventCategory_EVENT_CATEGORY_SYSTEM || r.Severity < 0 || r.Severity > 5 {
			t.Fatalf("accepted: %v", r)
		}
		var details map[string]any
		if r.Details != "" && strings.TrimSpace(r.Details) != "" && json.Unmarshal([]byte(r.Details), &details) != nil {
			t.Fatalf("details %q were accepted", r.Details)
		}
	})
}

// fuzz hands requests to an RPC; accepted looks at those that were not refused.
func fuzz[Q proto.Message](f *testing.F, empty Q, rpc func(Q) error, accepted func(*testing.T, Q)) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := proto.CloneOf(empty)
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		err := rpc(r)
		switch fault.KindOf(err) {
		case fault.NotFound:
			accepted(t, r)
		case fault.Invalid:
		default:
			t.Fatalf("%v: %v", r, err)
		}
	})
}

func nowhereService(f *testing.F) *events.Service {
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock, Migrations: slices.Concat(events.Migrations(), schema.Migrations(), idempotency.Migrations(), sessions.Migrations())})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	return events.NewService(events.New(st, clock, zap.NewNop()), directory.New(), anybody{}, nobody{})
}

func outsider() context.Context {
	return identity.NewContext(context.Background(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
}

// silent is a stream on which nothing is sent.
type silent struct {
	grpc.ServerStreamingServer[pb.SubscribeEventsResponse]
}

func (silent) Context() context.Context { return outsider() }

func wantFilter(t *testing.T, m *pb.EventFilter) {
	t.Helper()
	for _, names := range [][]string{m.GetTypes(), m.GetSources(), m.GetSourceRoles()} {
		if len(names) > 100 {
			t.Fatalf("%d values of one field", len(names))
		}
		for _, n := range names {
			if !aName.MatchString(strings.TrimSuffix(n, ".*")) {
				t.Fatalf("%q was accepted", n)
			}
		}
	}
	for _, c := range m.GetCategories() {
		if c < pb.EventCategory_EVENT_CATEGORY_AGENT || c > pb.EventCategory_EVENT_CATEGORY_SYSTEM {
			t.Fatalf("category %d was accepted", c)
		}
	}
	if _, known := pb.Severity_name[int32(m.GetLowestSeverity())]; !known || len(m.GetCategories()) > 100 || len(m.GetTaskId()) > 128 {
		t.Fatalf("accepted: %v", m)
	}
}
