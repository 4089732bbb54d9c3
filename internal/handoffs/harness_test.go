package handoffs_test

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a running daemon.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{apptest.Start(t), t}
}

// An actor is one identity's view of the daemon. The operator has no name.
type actor struct {
	pb.HandoffServiceClient
	registry pb.AgentServiceClient
	messages pb.MessageServiceClient
	locks    pb.LockServiceClient
	tokens   pb.TokenServiceClient
	tasks    pb.TaskServiceClient
	state    pb.StateServiceClient
	files    pb.ArtifactServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	name string
	ctx  context.Context
}

func (w *world) actor(name string) *actor {
	w.t.Helper()
	return actorOn(w.t, w.Conn(name), name)
}

// actorOn returns the actor of a connection that carries its name.
func actorOn(t testing.TB, conn grpc.ClientConnInterface, name string) *actor {
	ctx, cancel := context.WithTimeout(t.Context(), 3*apptest.Patience)
	t.Cleanup(cancel)
	return &actor{
		pb.NewHandoffServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewLockServiceClient(conn),
		pb.NewTokenServiceClient(conn), pb.NewTaskServiceClient(conn), pb.NewStateServiceClient(conn), pb.NewArtifactServiceClient(conn),
		pb.NewAdminServiceClient(conn), t, name, ctx,
	}
}

// agent registers an agent.
func (w *world) agent(name, role string) *actor {
	w.t.Helper()
	w.Registered(name, role)
	return w.actor(name)
}

func (a *actor) create(in *pb.CreateHandoffRequest) *pb.Handoff {
	a.t.Helper()
	if in.Title == "" {
		in.Title = "Login page"
	}
	out, err := a.CreateHandoff(a.ctx, in)
	must(a.t, err)
	return out.Handoff
}

// upload uploads an artifact.
func (a *actor) upload(name, content string) {
	a.t.Helper()
	stream, err := a.files.UploadArtifact(a.ctx)
	must(a.t, err)
	must(a.t, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{
		Header: &pb.ArtifactHeader{Name: name, Size: int64(len(content))},
	}}))
	must(a.t, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: []byte(content)}}))
	_, err = stream.CloseAndRecv()
	must(a.t, err)
}

func (a *actor) accept(id string) *pb.Handoff {
	a.t.Helper()
	out, err := a.AcceptHandoff(a.ctx, &pb.AcceptHandoffRequest{Id: id})
	must(a.t, err)
	return out.Handoff
}

func (a *actor) get(id string) *pb.Handoff {
	a.t.Helper()
	out, err := a.GetHandoff(a.ctx, &pb.GetHandoffRequest{Id: id})
	must(a.t, err)
	return out.Handoff
}

// lock acquires a lock and returns its fence.
func (a *actor) lock(path string) int64 {
	a.t.Helper()
	out, err := a.locks.AcquireLocks(a.ctx, &pb.AcquireLocksRequest{Paths: []string{path}})
	must(a.t, err)
	if out.Fence == 0 {
		a.t.Fatalf("%s does not get %s: %v", a.name, path, out)
	}
	return out.Fence
}

// token acquires a token and returns its fence.
func (a *actor) token(scope string) int64 {
	a.t.Helper()
	out, err := a.tokens.AcquireToken(a.ctx, &pb.AcquireTokenRequest{Type: "build", Scope: scope})
	must(a.t, err)
	return out.Fence
}

// writes reports whether the broker accepts a change under a fence.
func (a *actor) writes(fence int64) bool {
	a.t.Helper()
	ctx := metadata.AppendToOutgoingContext(a.ctx, "brokerd-fence", strconv.FormatInt(fence, 10))
	_, err := a.state.PutState(ctx, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}})
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		a.t.Fatal(err)
	}
	return err == nil
}

// notices returns the payloads of the unread notices of a type, with the subject as "notice".
func (a *actor) notices(kind string) []map[string]any {
	a.t.Helper()
	out, err := a.registry.Heartbeat(a.ctx, &pb.HeartbeatRequest{Notices: true})
	must(a.t, err)
	var list []map[string]any
	for _, n := range out.Notices {
		if n.Type != kind {
			continue
		}
		var o map[string]any
		must(a.t, json.Unmarshal([]byte(n.Payload), &o))
		o["notice"] = n.Subject
		list = append(list, o)
	}
	return list
}

// claimed claims what waits for the agent.
func (a *actor) claimed() []*pb.Message {
	a.t.Helper()
	out, err := a.messages.ClaimMessages(a.ctx, &pb.ClaimMessagesRequest{Max: 100})
	must(a.t, err)
	var list []*pb.Message
	for _, c := range out.Claims {
		list = append(list, c.Message)
	}
	return list
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %v %s", err, testkit.Reason(err), code, reason)
	}
}
