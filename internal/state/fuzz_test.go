package state_test

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

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
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
)

// Requests go to a state that knows no session: whatever gets past the checks is NOT_FOUND, so what is not refused as invalid was
// accepted. What the API promises to accept is written out here once more.

var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

func FuzzGetState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.GetStateRequest{}, unary(s.GetState), func(t *testing.T, r *pb.GetStateRequest) {
		wantKey(t, r)
		if r.AtRevision < 0 || r.AfterEntry < 0 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzPutState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.PutStateRequest{}, unary(s.PutState), wantPut)
}

func FuzzAppendState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.AppendStateRequest{}, unary(s.AppendState), func(t *testing.T, r *pb.AppendStateRequest) {
		wantKey(t, r)
		if strings.TrimSpace(r.Text) == "" || len(r.Text) > 256<<10 || strings.Contains(r.Text, "\x00") {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzDeleteState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.DeleteStateRequest{}, unary(s.DeleteState), func(t *testing.T, r *pb.DeleteStateRequest) {
		wantKey(t, r)
		if r.GetCompareRevision() < 0 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzTransactState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.TransactStateRequest{}, unary(s.TransactState), func(t *testing.T, r *pb.TransactStateRequest) {
		if len(r.Compares) > 1000 || len(r.Changes) == 0 || len(r.Changes) > 1000 {
			t.Fatalf("%d compares and %d changes were accepted", len(r.Compares), len(r.Changes))
		}
		for _, c := range r.Compares {
			wantKey(t, c)
			if c.GetRevision() < 0 {
				t.Fatalf("accepted: %v", c)
			}
		}
		seen := map[string]bool{}
		for _, c := range r.Changes {
			var n keyed = c.GetDelete()
			id := c.GetDelete().GetRequestId()
			if c.GetPut() != nil {
				wantPut(t, c.GetPut())
				n, id = c.GetPut(), c.GetPut().GetRequestId()
			} else if c.GetDelete() == nil {
				t.Fatal("an empty change was accepted")
			}
			wantKey(t, n)
			namespace := n.GetNamespace()
			if namespace == "" {
				namespace = "default"
			}
			if name := namespace + "\x00" + n.GetKey(); id != "" || seen[name] {
				t.Fatalf("accepted: %v", c)
			} else {
				seen[name] = true
			}
		}
	})
}

func FuzzListState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.ListStateRequest{}, unary(s.ListState), func(t *testing.T, r *pb.ListStateRequest) {
		wantChoice(t, r.Namespace, r.KeyPrefix)
		if r.PageSize < 0 || r.PageSize > 1000 || r.Owner != "" && !aName.MatchString(r.Owner) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzListStateHistory(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.ListStateHistoryRequest{}, unary(s.ListStateHistory), func(t *testing.T, r *pb.ListStateHistoryRequest) {
		wantKey(t, r)
		if r.PageSize < 0 || r.PageSize > 1000 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzWatchState(f *testing.F) {
	s := nowhereService(f)
	fuzz(f, &pb.WatchStateRequest{}, func(r *pb.WatchStateRequest) error { return s.WatchState(r, silent{}) },
		func(t *testing.T, r *pb.WatchStateRequest) {
			wantChoice(t, r.Namespace, r.KeyPrefix)
			if r.GetAfterRevision() < 0 {
				t.Fatalf("accepted: %v", r)
			}
		})
}

type keyed interface {
	GetNamespace() string
	GetKey() string
}

func wantKey(t *testing.T, r keyed) {
	t.Helper()
	if r.GetKey() == "" {
		t.Fatal("no key was accepted")
	}
	wantChoice(t, r.GetNamespace(), r.GetKey())
}

func wantChoice(t *testing.T, namespace, key string) {
	t.Helper()
	if namespace != "" && !aName.MatchString(namespace) || len(key) > 512 || !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl) {
		t.Fatalf("%q, %q were accepted", namespace, key)
	}
}

func wantPut(t *testing.T, r *pb.PutStateRequest) {
	t.Helper()
	wantKey(t, r)
	if d := r.GetTtl(); d != nil && (d.CheckValid() != nil || d.AsDuration() < time.Second || d.AsDuration() > 365*24*time.Hour) || r.GetCompareRevision() < 0 {
		t.Fatalf("accepted: %v", r)
	}
	switch v := r.GetValue().GetValue().(type) {
	case nil:
		t.Fatal("no value was accepted")
	case *pb.StateValue_StringValue:
		if len(v.StringValue) > 1<<20 || strings.Contains(v.StringValue, "\x00") {
			t.Fatalf("accepted: %q", v.StringValue)
		}
	case *pb.StateValue_JsonValue:
		if len(v.JsonValue) > 1<<20 || !json.Valid([]byte(v.JsonValue)) {
			t.Fatalf("accepted: %q", v.JsonValue)
		}
	}
}

// unary leaves the answer of an RPC out.
func unary[Q, A any](rpc func(context.Context, Q) (A, error)) func(Q) error {
	return func(r Q) error {
		_, err := rpc(outsider(), r)
		return err
	}
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

func nowhereService(f *testing.F) *state.Service {
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock,
		Migrations: slices.Concat(events.Migrations(), idempotency.Migrations(), sessions.Migrations(), state.Migrations())})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	return state.NewService(state.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop()))
}

func outsider() context.Context {
	return identity.NewContext(context.Background(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
}

// silent is a stream on which nothing is sent.
type silent struct {
	grpc.ServerStreamingServer[pb.WatchStateResponse]
}

func (silent) Context() context.Context { return outsider() }
