package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// patience is how long a test waits for what should come at once.
const patience = 5 * time.Minute

// window is how many bytes a client may be ahead of what the test reads from a stream, and as many again.
const window = 64 << 10

// errCut is how a stream ends whose connection breaks.
var errCut = status.Error(codes.Unavailable, "cut")

// fake is a broker that does what the test tells it: every stream that a client opens is handed to the test.
type fake struct {
	pb.UnimplementedMessageServiceServer
	pb.UnimplementedEventServiceServer
	pb.UnimplementedAgentServiceServer
	pb.UnimplementedStateServiceServer
	pb.UnimplementedLockServiceServer

	address  string
	sends    chan *bidi[pb.SendRequest, pb.SendResponse]
	claims   chan *bidi[pb.ClaimRequest, pb.ClaimResponse]
	locks    chan *bidi[pb.LockRequest, pb.LockResponse]
	receives chan *down[*pb.ReceiveRequest, pb.ReceiveResponse]
	events   chan *down[*pb.SubscribeEventsRequest, pb.SubscribeEventsResponse]
	watches  chan *down[*pb.WatchStateRequest, pb.WatchStateResponse]
	unary    chan *unaryCall
	lists    chan *pb.ListEventsRequest // answered with one event a revision
	headers  chan metadata.MD           // of AgentService.Heartbeat
	over     <-chan struct{}            // the test has ended: everything is answered
}

// bidi is a stream that the test speaks on; handing it an error, or nil, ends it.
type bidi[Req, Res any] struct {
	grpc.BidiStreamingServer[Req, Res]
	end chan error
}

// down is a server's stream together with what was asked for.
type down[Req any, Res any] struct {
	grpc.ServerStreamingServer[Res]
	request Req
	end     chan error
}

// unaryCall is a call that waits for the test's answer.
type unaryCall struct {
	request proto.Message
	answer  chan error
}

// newFake starts a fake broker on a Unix socket, and a client of it.
func newFake(t *testing.T, opts ...client.Option) (*fake, *client.Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fake") // short: a socket's path has a limit
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &fake{
		address:  filepath.Join(dir, "s"),
		sends:    make(chan *bidi[pb.SendRequest, pb.SendResponse], 16),
		claims:   make(chan *bidi[pb.ClaimRequest, pb.ClaimResponse], 16),
		locks:    make(chan *bidi[pb.LockRequest, pb.LockResponse], 16),
		receives: make(chan *down[*pb.ReceiveRequest, pb.ReceiveResponse], 16),
		events:   make(chan *down[*pb.SubscribeEventsRequest, pb.SubscribeEventsResponse], 16),
		watches:  make(chan *down[*pb.WatchStateRequest, pb.WatchStateResponse], 16),
		unary:    make(chan *unaryCall, 16),
		lists:    make(chan *pb.ListEventsRequest, 16),
		headers:  make(chan metadata.MD, 16),
		over:     t.Context().Done(),
	}
	listener, err := net.Listen("unix", f.address)
	apptest.NoError(t, err)
	server := grpc.NewServer(grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	pb.RegisterMessageServiceServer(server, f)
	pb.RegisterEventServiceServer(server, f)
	pb.RegisterAgentServiceServer(server, f)
	pb.RegisterStateServiceServer(server, f)
	pb.RegisterLockServiceServer(server, f)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c, err := client.Dial(t.Context(), append([]client.Option{client.WithAddress("unix://" + f.address)}, opts...)...)
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	return f, c
}

func (f *fake) Send(stream grpc.BidiStreamingServer[pb.SendRequest, pb.SendResponse]) error {
	return serveBidi(f, stream, f.sends)
}

func (f *fake) Claim(stream grpc.BidiStreamingServer[pb.ClaimRequest, pb.ClaimResponse]) error {
	return serveBidi(f, stream, f.claims)
}

func (f *fake) Lock(stream grpc.BidiStreamingServer[pb.LockRequest, pb.LockResponse]) error {
	return serveBidi(f, stream, f.locks)
}

func (f *fake) Receive(request *pb.ReceiveRequest, stream grpc.ServerStreamingServer[pb.ReceiveResponse]) error {
	return serveDown(request, stream, f.receives)
}

func (f *fake) SubscribeEvents(request *pb.SubscribeEventsRequest, stream grpc.ServerStreamingServer[pb.SubscribeEventsResponse]) error {
	return serveDown(request, stream, f.events)
}

func (f *fake) ListEvents(_ context.Context, r *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	f.lists <- r
	page := &pb.ListEventsResponse{Revision: r.GetUntilRevision()}
	for revision := r.GetAfterRevision() + 1; revision <= r.GetUntilRevision(); revision++ {
		page.Events = append(page.Events, &pb.Event{Revision: revision})
	}
	return page, nil
}

func (f *fake) AckMessages(ctx context.Context, r *pb.AckMessagesRequest) (*pb.AckMessagesResponse, error) {
	return &pb.AckMessagesResponse{}, f.call(ctx, r)
}

func (f *fake) NackMessages(ctx context.Context, r *pb.NackMessagesRequest) (*pb.NackMessagesResponse, error) {
	return &pb.NackMessagesResponse{}, f.call(ctx, r)
}

func (f *fake) ReleaseClaims(ctx context.Context, r *pb.ReleaseClaimsRequest) (*pb.ReleaseClaimsResponse, error) {
	return &pb.ReleaseClaimsResponse{}, f.call(ctx, r)
}

func (f *fake) ExtendClaims(ctx context.Context, r *pb.ExtendClaimsRequest) (*pb.ExtendClaimsResponse, error) {
	return &pb.ExtendClaimsResponse{}, f.call(ctx, r)
}

func (f *fake) Heartbeat(ctx context.Context, _ *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	f.headers <- md
	return &pb.HeartbeatResponse{}, nil
}

// fakeIncarnation is the incarnation of every agent that registers with a fake.
const fakeIncarnation = 7

func (f *fake) RegisterAgent(ctx context.Context, r *pb.RegisterAgentRequest) (*pb.RegisterAgentResponse, error) {
	return &pb.RegisterAgentResponse{Agent: &pb.Agent{Incarnation: fakeIncarnation}}, f.call(ctx, r)
}

// call hands a unary call to the test and waits for its answer.
func (f *fake) call(ctx context.Context, request proto.Message) error {
	c := &unaryCall{request: request, answer: make(chan error, 1)}
	f.unary <- c
	select {
	case err := <-c.answer:
		return err
	case <-f.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func serveBidi[Req, Res any](f *fake, stream grpc.BidiStreamingServer[Req, Res], to chan *bidi[Req, Res]) error {
	b := &bidi[Req, Res]{BidiStreamingServer: stream, end: make(chan error, 1)}
	to <- b
	select {
	case err := <-b.end:
		return err
	case <-f.over:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func serveDown[Req, Res any](request Req, stream grpc.ServerStreamingServer[Res], to chan *down[Req, Res]) error {
	d := &down[Req, Res]{ServerStreamingServer: stream, request: request, end: make(chan error, 1)}
	to <- d
	select {
	case err := <-d.end:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// recv reads the client's next frame.
func (b *bidi[Req, Res]) recv(t *testing.T) *Req {
	t.Helper()
	frame, err := b.Recv()
	if err != nil {
		t.Fatalf("the client's next frame: %v", err)
	}
	return frame
}

// send writes a frame to the client.
func (b *bidi[Req, Res]) send(t *testing.T, frame *Res) {
	t.Helper()
	if err := b.Send(frame); err != nil {
		t.Fatalf("write to the client: %v", err)
	}
}

// next takes what should come at once.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// wantCode fails the test unless err has the code.
func wantCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Fatalf("got %v (%v), want %v", got, err, code)
	}
}

// wantIs fails the test unless err is, or wraps, target.
func wantIs(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
}
