package agents_test

import (
	"context"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// Requests go to a registry that knows no session: whatever gets past the checks is NOT_FOUND, so what is
// not refused as invalid was accepted. What the API promises to accept is written out here once more.

var (
	aName    = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)
	aPattern = regexp.MustCompile(`\A[A-Za-z0-9*?][A-Za-z0-9._:*?-]{0,127}\z`)
)

func FuzzRegisterAgent(f *testing.F) {
	fuzz(f, &pb.RegisterAgentRequest{}, (*agents.Service).RegisterAgent, func(t *testing.T, r *pb.RegisterAgentRequest) {
		lease := r.Lease.AsDuration()
		if r.Role != "" && !aName.MatchString(r.Role) || r.Lease != nil && (lease < time.Second || lease > 7*24*time.Hour) ||
			len(r.Instance) > 128 || len(r.Worktree) > 1024 || len(r.Labels) > 64 {
			t.Fatalf("accepted: %v", r)
		}
		wantCapabilities(t, r.Capabilities)
		for k, v := range r.Labels {
			if k == "" || len(k) > 256 || len(v) > 256 {
				t.Fatalf("label %q: %q", k, v)
			}
		}
	})
}

func FuzzHeartbeat(f *testing.F) {
	fuzz(f, &pb.HeartbeatRequest{}, (*agents.Service).Heartbeat, func(t *testing.T, r *pb.HeartbeatRequest) {
		p := r.GetProgress()
		if math.IsNaN(p) || p < 0 || p > 1 || r.Status < 0 || r.Status > pb.AgentStatus_AGENT_STATUS_TERMINATED ||
			len(r.GetActivity()) > 512 || len(r.GetTaskId()) > 128 || len(r.GetLastTool()) > 256 || len(r.GetLastFile()) > 1024 ||
			r.GetCounters().GetTurns() < 0 || r.GetCounters().GetErrors() < 0 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzSaveCheckpoint(f *testing.F) {
	fuzz(f, &pb.SaveCheckpointRequest{}, (*agents.Service).SaveCheckpoint, func(t *testing.T, r *pb.SaveCheckpointRequest) {
		if r.Kind < 0 || r.Kind > pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM || len(r.Reference) > 512 || len(r.Data) > 256<<10 ||
			r.Data != "" && !json.Valid([]byte(r.Data)) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzGetAgent(f *testing.F) {
	fuzz(f, &pb.GetAgentRequest{}, (*agents.Service).GetAgent, func(t *testing.T, r *pb.GetAgentRequest) {
		if r.Name != "" && !aName.MatchString(r.Name) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzListAgents(f *testing.F) {
	fuzz(f, &pb.ListAgentsRequest{}, (*agents.Service).ListAgents, func(t *testing.T, r *pb.ListAgentsRequest) {
		if r.PageSize < 0 || r.PageSize > 1000 || r.Pattern != "" && !aPattern.MatchString(r.Pattern) ||
			r.Role != "" && !aName.MatchString(r.Role) || r.Status < 0 || r.Status > pb.AgentStatus_AGENT_STATUS_TERMINATED {
			t.Fatalf("accepted: %v", r)
		}
		wantCapabilities(t, r.Capabilities)
	})
}

func FuzzDeregisterAgent(f *testing.F) {
	fuzz(f, &pb.DeregisterAgentRequest{}, (*agents.Service).DeregisterAgent, func(t *testing.T, r *pb.DeregisterAgentRequest) {
		if len(r.Reason) > 512 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

// fuzz hands requests to an RPC; accepted looks at those that were not refused.
func fuzz[Q proto.Message, A any](f *testing.F, empty Q, rpc func(*agents.Service, context.Context, Q) (A, error), accepted func(*testing.T, Q)) {
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock, Migrations: slices.Concat(idempotency.Migrations(), sessions.Migrations())})
	apptest.NoError(f, err)
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	service := agents.NewService(agents.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop()))
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := proto.CloneOf(empty)
		if proto.Unmarshal(wire, r) != nil {
			t.Skip() // what is no message at all never gets to a service
		}
		_, err := rpc(service, ctx, r)
		switch fault.KindOf(err) {
		case fault.NotFound:
			accepted(t, r)
		case fault.Invalid:
		default:
			t.Fatalf("%v: %v", r, err)
		}
	})
}

func wantCapabilities(t *testing.T, names []string) {
	t.Helper()
	if len(names) > 64 {
		t.Fatalf("%d capabilities", len(names))
	}
	for _, n := range names {
		if !aName.MatchString(n) {
			t.Fatalf("capability %q", n)
		}
	}
}
