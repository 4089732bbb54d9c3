package rpc_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

func TestServer_PanicIsInternalAndTheServerGoesOn(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	w := serve(t, func(o *rpc.Options) { o.Log = zap.New(core) })
	conn := dial(t, w.socket)
	w.features.get = func(context.Context) error { panic("secret state") }
	_, err := whoami(calling(t), conn)
	expect(t, err, codes.Internal, "INTERNAL", "")
	if strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	found := logs.FilterMessage("a call panicked").All()
	if len(found) != 1 {
		t.Fatalf("%d entries", len(found))
	}
	if stack, _ := found[0].ContextMap()["stack"].(string); !strings.Contains(stack, "TestServer_PanicIsInternal") {
		t.Errorf("the stack does not lead to the panic: %s", stack)
	}
	w.features.get = nil
	if _, err := whoami(calling(t), conn); err != nil {
		t.Error(err)
	}
}

func TestServer_DefectsAreLoggedWithTheirText(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	w := serve(t, func(o *rpc.Options) { o.Log = zap.New(core) })
	w.features.get = func(context.Context) error { return errors.New("no such table") }
	_, err := whoami(calling(t, "brokerd-agent", "a"), dial(t, w.socket))
	expect(t, err, codes.Internal, "INTERNAL", "")
	found := logs.FilterMessage("call").All()
	if len(found) != 1 || found[0].ContextMap()["error"] != "no such table" || found[0].ContextMap()["agent"] != "a" {
		t.Errorf("%v", found)
	}
}

func TestServer_BadTextIsInvalidWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	const bad = "a\x01" // what the codec breaks
	messages := &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Subject: "fine"},
		{Subject: bad},
	}}
	labels := &pb.SendMessagesRequest{Messages: []*pb.Message{{Labels: map[string]string{"k": bad}}}}
	target := &pb.SendMessagesRequest{Messages: []*pb.Message{{Target: &pb.Target{To: &pb.Target_Role{Role: bad}}}}}
	for field, in := range map[string]*pb.SendMessagesRequest{
		"messages[1].subject":     messages,
		"messages[0].labels":      labels,
		"messages[0].target.role": target,
	} {
		err := conn.Invoke(calling(t), pb.MessageService_SendMessages_FullMethodName, in, &pb.SendMessagesResponse{},
			grpc.ForceCodec(lenient{}))
		expect(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", field)
	}
	stream, err := conn.NewStream(calling(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		pb.MessageService_Send_FullMethodName, grpc.ForceCodec(lenient{}))
	testkit.NoError(t, err)
	testkit.NoError(t, stream.SendMsg(&pb.SendRequest{Messages: messages.Messages}))
	expect(t, stream.RecvMsg(&pb.SendResponse{}), codes.InvalidArgument, "INVALID_ARGUMENT", "messages[1].subject")
}

func TestServer_BytesThatAreNoRequestAreInvalid(t *testing.T) {
	t.Parallel()
	w := serve(t)
	err := dial(t, w.socket).Invoke(calling(t), pb.SessionService_GetSession_FullMethodName,
		wrapperspb.Bytes([]byte{0x0a}), &pb.GetSessionResponse{}, grpc.ForceCodec(raw{}))
	expect(t, err, codes.InvalidArgument, "MALFORMED_REQUEST", "")
}

func TestServer_CredentialIsAskedForBeforeTheRequestIsRead(t *testing.T) {
	t.Parallel()
	w := serve(t)
	err := dial(t, w.tcp).Invoke(calling(t), pb.SessionService_GetSession_FullMethodName,
		wrapperspb.Bytes([]byte{0x0a}), &pb.GetSessionResponse{}, grpc.ForceCodec(raw{}))
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED", "")
}

func TestServer_RequestThatIsTooBigIsRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	client := pb.NewSessionServiceClient(conn)
	_, err := client.GetSession(calling(t), large(5<<20))
	expect(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE", "")
	stream, err := pb.NewMessageServiceClient(conn).Send(calling(t))
	testkit.NoError(t, err)
	if err := stream.Send(&pb.SendRequest{Messages: []*pb.Message{{Body: strings.Repeat("x", 5<<20)}}}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	expect(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE", "")
	if _, err := client.GetSession(calling(t), large(9<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("9 MiB: %v", err)
	}
	if _, err := client.GetSession(calling(t), large(4<<20)); err != nil {
		t.Errorf("4 MiB: %v", err)
	}
}

func TestServer_MetadataThatIsTooBigIsRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	_, err := whoami(calling(t, "x-big", strings.Repeat("x", 9<<10)), dial(t, w.socket))
	expect(t, err, codes.ResourceExhausted, "METADATA_TOO_LARGE", "")
	if _, err := whoami(calling(t, "x-big", strings.Repeat("x", 65<<10)), dial(t, w.socket)); err == nil {
		t.Error("65 KiB of metadata were accepted")
	}
	if _, err := whoami(calling(t, "x-big", strings.Repeat("x", 6<<10)), dial(t, w.socket)); err != nil {
		t.Errorf("6 KiB: %v", err)
	}
}

// preface is how HTTP/2 begins.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func TestServer_GarbageEndsItsConnectionAndNoOther(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	stream, err := pb.NewMessageServiceClient(conn).Send(calling(t))
	testkit.NoError(t, err)
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	for name, bytes := range map[string]string{
		"noise":              string(noise),
		"HTTP/1.1":           "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"noise in frames":    preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + string(noise),
		"oversize frame":     preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\xff\xff\xff\x00\x00\x00\x00\x00\x01" + string(noise),
		"data on stream 0":   preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x00\x00\x00\x00\x00\x00x",
		"headers, no HPACK":  preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
		"window of nothing":  preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x01\x00\x00\x00\x00\x00\x00x",
		"settings too short": preface + "\x00\x00\x05\x04\x00\x00\x00\x00\x00abcde",
	} {
		attacker, err := net.Dial("unix", strings.TrimPrefix(w.socket, "unix://"))
		testkit.NoError(t, err)
		testkit.NoError(t, attacker.SetDeadline(time.Now().Add(patience)))
		_, _ = io.WriteString(attacker, bytes) // may fail: the server closes as soon as it has seen enough
		if _, err := io.Copy(io.Discard, attacker); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%s: the connection stays open", name)
		}
		_ = attacker.Close()
	}
	if err := stream.Send(&pb.SendRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("another client's stream: %v", err)
	}
}

// What is frozen keeps its socket open, and would keep its agent's lease.
func TestServer_WhoAnswersNoPingIsCutOff(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *rpc.Options) { o.PingAfter = time.Second })
	frozen, err := net.Dial("unix", strings.TrimPrefix(w.socket, "unix://"))
	testkit.NoError(t, err)
	defer func() { _ = frozen.Close() }()
	testkit.NoError(t, frozen.SetDeadline(time.Now().Add(patience/2)))
	if _, err := io.WriteString(frozen, preface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, frozen); isTimeout(err) {
		t.Error("the connection stays open")
	}
}

func TestServer_PingFloodEndsItsConnectionAndNoOther(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	if _, err := whoami(calling(t), conn); err != nil {
		t.Fatal(err)
	}
	attacker, err := net.Dial("unix", strings.TrimPrefix(w.socket, "unix://"))
	testkit.NoError(t, err)
	defer func() { _ = attacker.Close() }()
	testkit.NoError(t, attacker.SetDeadline(time.Now().Add(patience)))
	ping := "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"
	_, _ = io.WriteString(attacker, preface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+strings.Repeat(ping, 1000))
	if _, err := io.Copy(io.Discard, attacker); isTimeout(err) {
		t.Error("the connection stays open")
	}
	if _, err := whoami(calling(t), conn); err != nil {
		t.Error(err)
	}
}

func TestServer_CountsItsOwnStreams(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	ctx, cancel := context.WithCancel(calling(t))
	defer cancel()
	for range 3 {
		stream, err := pb.NewMessageServiceClient(conn).Send(ctx)
		testkit.NoError(t, err)
		testkit.NoError(t, stream.Send(&pb.SendRequest{}))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	reflection, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	testkit.NoError(t, err)
	err = reflection.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	testkit.NoError(t, err)
	if _, err := reflection.Recv(); err != nil {
		t.Fatal(err)
	}
	if n := w.server.Streams(); n != 3 {
		t.Errorf("%d streams, want 3", n)
	}
	cancel()
	stopped, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	w.server.Stop(stopped) // waits for the handlers
	if n := w.server.Streams(); n != 0 {
		t.Errorf("%d streams after the end, want 0", n)
	}
}

func TestServer_StopCutsOffWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := serve(t)
	stream, err := pb.NewMessageServiceClient(dial(t, w.socket)).Send(calling(t))
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&pb.SendRequest{}))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	w.server.Stop(over)
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
	w.server.Stop(over)
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
