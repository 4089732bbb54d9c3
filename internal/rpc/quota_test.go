package rpc_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

// wantRetry checks that an error says when to try again, and which limit was met.
func wantRetry(t *testing.T, err error, limit, value string) {
	t.Helper()
	retry := false
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration() > 0
		case *errdetails.ErrorInfo:
			if d.Metadata["limit"] != limit || d.Metadata[limit] != value {
				t.Errorf("metadata %v", d.Metadata)
			}
		}
	}
	if !retry || !strings.Contains(err.Error(), value+" "+limit) {
		t.Error(err)
	}
}

// openStream opens a stream and waits until the server has it, or refuses it.
func openStream(ctx context.Context, conn *grpc.ClientConn) (pb.MessageService_SendClient, error) {
	stream, err := pb.NewMessageServiceClient(conn).Send(ctx)
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&pb.SendRequest{}) // what went wrong comes with Recv
	_, err = stream.Recv()
	return stream, err
}

func TestQuota_AnAgentHasAtMostAHundredStreams(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conns := []*grpc.ClientConn{dial(t, w.socket), dial(t, w.socket)}
	a := calling(t, "brokerd-agent", "a")
	var last pb.MessageService_SendClient
	for i := range 100 {
		var err error
		if last, err = openStream(a, conns[i%2]); err != nil {
			t.Fatalf("stream %d: %v", i+1, err)
		}
	}
	_, err := openStream(a, conns[0])
	expect(t, err, codes.ResourceExhausted, "TOO_MANY_STREAMS", "")
	wantRetry(t, err, "streams", "100")

	// Other agents, the same name in another session, operators, and the agent's calls go on.
	for _, who := range [][]string{{"brokerd-agent", "b"}, {"brokerd-agent", "a", "brokerd-session", "other"}, nil} {
		if _, err := openStream(calling(t, who...), conns[0]); err != nil {
			t.Errorf("%v: %v", who, err)
		}
	}
	if _, err := whoami(a, conns[0]); err != nil {
		t.Error(err)
	}

	testkit.NoError(t, last.CloseSend())
	if _, err := last.Recv(); err == nil {
		t.Error("the stream goes on")
	}
	if _, err := openStream(a, conns[0]); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestQuota_AnAgentHasAtMostSixteenConnections(t *testing.T) {
	t.Parallel()
	w := serve(t)
	a, b := calling(t, "brokerd-agent", "a"), calling(t, "brokerd-agent", "b")
	var conns []*grpc.ClientConn
	for i := range 16 {
		conn := dial(t, w.socket)
		conns = append(conns, conn)
		for range 2 {
			if _, err := whoami(a, conn); err != nil {
				t.Fatalf("connection %d: %v", i+1, err)
			}
		}
	}
	one := dial(t, w.socket)
	_, err := whoami(a, one)
	expect(t, err, codes.ResourceExhausted, "TOO_MANY_CONNECTIONS", "")
	wantRetry(t, err, "connections", "16")
	if _, err := whoami(b, one); err != nil {
		t.Errorf("another agent: %v", err)
	}
	if _, err := whoami(calling(t), one); err != nil {
		t.Errorf("an operator: %v", err)
	}
	if _, err := whoami(b, conns[0]); err != nil {
		t.Errorf("another agent through a shared connection: %v", err)
	}
	_ = conns[15].Close()
	for err = status.Error(codes.ResourceExhausted, ""); status.Code(err) == codes.ResourceExhausted && a.Err() == nil; {
		_, err = whoami(a, one) // until the server has seen that the other was closed
	}
	if err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

func TestQuota_RequestsUnderWayAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	w := serve(t)
	began, proceed := make(chan struct{}), make(chan struct{})
	w.features.get = func(context.Context) error {
		began <- struct{}{}
		<-proceed
		return nil
	}
	conn := dial(t, w.socket)
	big := large(4 << 20)
	get := func(agent string, r *pb.GetSessionRequest) error {
		_, err := pb.NewSessionServiceClient(conn).GetSession(calling(t, "brokerd-agent", agent), r)
		return err
	}
	outcomes := make(chan error)
	begin := func(agent string, r *pb.GetSessionRequest) {
		go func() { outcomes <- get(agent, r) }()
		<-began
	}
	for range 15 { // of 4 MiB and some bytes each
		begin("a", big)
	}
	err := get("a", big)
	expect(t, err, codes.ResourceExhausted, "TOO_MUCH_UNDER_WAY", "")
	wantRetry(t, err, "request_bytes", "67108864")
	begin("b", big)
	begin("a", &pb.GetSessionRequest{Name: "small"})
	close(proceed)
	for range 17 {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	begin("a", big)
	if err := <-outcomes; err != nil {
		t.Error(err)
	}
}
