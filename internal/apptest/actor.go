package apptest

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

// callPatience bounds each call and each actor. The longest test makes 110,000 changes, which take minutes on a busy
// machine.
const callPatience = 3 * Patience

// An Actor is one caller of a broker with the clients of all services: an agent, an observer or an operator. Its RPCs may
// be called concurrently, the other methods from the test's own goroutine.
type Actor struct {
	TB
	pb.AdminServiceClient
	pb.AgentServiceClient
	pb.ArtifactServiceClient
	pb.BlockerServiceClient
	pb.CatalogServiceClient
	pb.ChannelServiceClient
	pb.CredentialServiceClient
	pb.DecisionServiceClient
	pb.EventServiceClient
	pb.HandoffServiceClient
	pb.LockServiceClient
	pb.MessageServiceClient
	pb.SessionServiceClient
	pb.StateServiceClient
	pb.TaskServiceClient
	pb.TokenServiceClient
	pb.VoteServiceClient

	Name string          // empty: not an agent
	Ctx  context.Context // for streams and for calls that may fail; it ends with the test
}

// NewActor returns the caller that a connection stands for.
func NewActor(t TB, conn grpc.ClientConnInterface, name string) *Actor {
	t.Helper()
	return newActor(t, patient(t), conn, name)
}

// patient returns a context that ends with the test.
func patient(t TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), callPatience)
	t.Cleanup(cancel)
	return ctx
}

func newActor(t TB, ctx context.Context, conn grpc.ClientConnInterface, name string) *Actor {
	return &Actor{
		t, pb.NewAdminServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewArtifactServiceClient(conn),
		pb.NewBlockerServiceClient(conn), pb.NewCatalogServiceClient(conn), pb.NewChannelServiceClient(conn),
		pb.NewCredentialServiceClient(conn), pb.NewDecisionServiceClient(conn), pb.NewEventServiceClient(conn),
		pb.NewHandoffServiceClient(conn), pb.NewLockServiceClient(conn), pb.NewMessageServiceClient(conn),
		pb.NewSessionServiceClient(conn), pb.NewStateServiceClient(conn), pb.NewTaskServiceClient(conn),
		pb.NewTokenServiceClient(conn), pb.NewVoteServiceClient(conn), name, ctx,
	}
}

// Actor returns a caller in a session: an operator if name is empty, else an agent, which need not be registered.
func (b *Broker) Actor(session, name string) *Actor {
	b.Helper()
	return newActor(b.TB, b.ctx, b.In(session, name), name)
}

// Root returns the operator in the session "default".
func (b *Broker) Root() *Actor { return b.Actor("default", "") }

// Agent registers an agent in the session "default", with a long lease.
func (b *Broker) Agent(name, role string) *Actor {
	b.Helper()
	return b.Actor("default", name).Register(role)
}

// Session creates a session and returns its operator.
func (b *Broker) Session(name string, settings *pb.SessionSettings) *Actor {
	b.Helper()
	Must(b, b.Root().CreateSession, &pb.CreateSessionRequest{Name: name, Settings: settings})
	return b.Actor(name, "")
}

// Register registers the agent, with a long lease, and returns it.
func (a *Actor) Register(role string) *Actor {
	a.Helper()
	Must(a, a.RegisterAgent, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(LongLease)})
	return a
}

// Configure changes settings of the session.
func (a *Actor) Configure(s *pb.SessionSettings) {
	a.Helper()
	Must(a, a.ConfigureSession, &pb.ConfigureSessionRequest{Settings: s})
}

// Upload uploads a content, which must succeed.
func (a *Actor) Upload(name, content string) *pb.ArtifactVersion {
	a.Helper()
	stream, err := a.UploadArtifact(a.Ctx)
	NoError(a, err)
	header := &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
	NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header}}))
	NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: []byte(content)}}))
	out, err := stream.CloseAndRecv()
	NoError(a, err)
	return out.GetArtifact()
}

// Events returns the first 1,000 events of some types, of all if there are none, oldest first.
func (a *Actor) Events(types ...string) []*pb.Event {
	a.Helper()
	in := &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: types}, PageSize: 1000}
	return Must(a, a.ListEvents, in).Events
}

// AwaitEvents returns the events of a type after a revision, once there are n of them.
func (a *Actor) AwaitEvents(kind string, n int, after int64) []*pb.Event {
	a.Helper()
	filter := &pb.EventFilter{Types: []string{kind}}
	stream, err := a.SubscribeEvents(a.Ctx, &pb.SubscribeEventsRequest{AfterRevision: &after, Filter: filter})
	NoError(a, err)
	var list []*pb.Event
	for len(list) < n {
		page, err := stream.Recv()
		if err != nil {
			a.Fatalf("waiting for %s: %v, after %v", kind, err, list)
		}
		list = append(list, page.Events...)
	}
	return list
}

// Must makes a call that has to succeed, and returns its answer.
func Must[Q, A proto.Message](t TB, call func(context.Context, Q, ...grpc.CallOption) (A, error), in Q) A {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	out, err := call(ctx, in)
	NoError(t, err)
	return out
}

// NoError ends the test if there is an error.
func NoError(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Err leaves out the answer of a call.
func Err[A any](_ A, err error) error { return err }

// Refuses makes a call that the broker has to refuse with a code and a reason.
func Refuses[Q, A proto.Message](
	t TB, call func(context.Context, Q, ...grpc.CallOption) (A, error), in Q, code codes.Code, reason string,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	_, err := call(ctx, in)
	Refused(t, err, code, reason)
}

// Refused checks the code and the reason of an error, and reports whether they are right.
func Refused(t TB, err error, code codes.Code, reason string) bool {
	t.Helper()
	ok := status.Code(err) == code && testkit.Reason(err) == reason
	if !ok {
		t.Errorf("got %v (%s), want %v (%s)", err, testkit.Reason(err), code, reason)
	}
	return ok
}

// Invalid checks that an error names a field as invalid.
func Invalid(t TB, err error, field string) {
	t.Helper()
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), field) {
		t.Errorf("got %v (fields %v), want the field %s", err, testkit.Fields(err), field)
	}
}
