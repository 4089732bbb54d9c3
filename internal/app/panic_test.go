package app_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// Texts at which plantedCodec panics in the daemon.
const (
	inRequest = "panic at this request"
	inAnswer  = "panic at this answer"
)

// A plantedCodec is gRPC's codec with planted panics: in a goroutine that reads a request, and in
// one that sends an answer.
type plantedCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c plantedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if name(v, "Request") && bytes.Contains(data.Materialize(), []byte(inRequest)) {
		panic(inRequest)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal implements encoding.CodecV2.
func (c plantedCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	if name(v, "Response") && bytes.Contains(data.Materialize(), []byte(inAnswer)) {
		panic(inAnswer)
	}
	return data, err
}

// name reports whether v is a message whose name ends so.
func name(v any, suffix string) bool {
	m, ok := v.(proto.Message)
	return ok && strings.HasSuffix(string(m.ProtoReflect().Descriptor().Name()), suffix)
}

// plantPanics makes every daemon of this package panic at these texts. It must run before the first
// of them starts.
func plantPanics() { encoding.RegisterCodecV2(plantedCodec{encoding.GetCodecV2("proto")}) }

// lastError reads a stream to its end.
func lastError[A any](stream interface{ Recv() (A, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// frames sends frames and reads the stream to its end.
func frames[R, A any](stream grpc.BidiStreamingClient[R, A], err error, frames ...*R) error {
	for _, f := range frames {
		if err == nil {
			err = stream.Send(f)
		}
	}
	return lastError(stream, err)
}

func TestPanic_EndsItsOwnCallAlone(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.ErrorLevel)
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Log = zap.New(core) }))
	victim, bystander := b.Registered("victim", ""), b.Registered("bystander", "")
	other, err := pb.NewMessageServiceClient(bystander).Send(patient(t))
	apptest.NoError(t, err)
	messages, sessions := pb.NewMessageServiceClient(victim), b.Root()
	events, state, locks := pb.NewEventServiceClient(victim), pb.NewStateServiceClient(victim), pb.NewLockServiceClient(victim)
	mine := &pb.Target{To: &pb.Target_Agent{Agent: "victim"}}
	apptest.Must(t, messages.SendMessages,
		&pb.SendMessagesRequest{Messages: []*pb.Message{{Target: mine, Subject: inAnswer}}})
	value := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: inAnswer}}
	put := &pb.StateChange{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Namespace: "n", Key: "k", Value: value}}}
	// Its answer lacks the value.
	apptest.Must(t, state.TransactState, &pb.TransactStateRequest{Changes: []*pb.StateChange{put}})
	for _, c := range []struct {
		method string
		stack  string // a function that has panicked
		call   func(context.Context) error
	}{
		{"SendMessages", "SendMessages_Handler", func(ctx context.Context) error {
			return apptest.Err(messages.SendMessages(ctx, &pb.SendMessagesRequest{RequestId: inRequest}))
		}},
		{"Send", "readBatches", func(ctx context.Context) error {
			stream, err := messages.Send(ctx)
			return frames(stream, err, &pb.SendRequest{Messages: []*pb.Message{{Subject: inRequest}}})
		}},
		{"Claim", "readSettlements", func(ctx context.Context) error {
			stream, err := messages.Claim(ctx)
			return frames(stream, err, &pb.ClaimRequest{Open: &pb.ClaimOpen{Types: []string{"none"}}}, &pb.ClaimRequest{Acks: []string{inRequest}})
		}},
		{"Claim, answering", "sendFrame", func(ctx context.Context) error {
			stream, err := messages.Claim(ctx)
			// The answer names the ack that is refused.
			return frames(stream, err, &pb.ClaimRequest{Open: &pb.ClaimOpen{Types: []string{"none"}}}, &pb.ClaimRequest{Acks: []string{inAnswer}})
		}},
		{"Lock", "readRequests", func(ctx context.Context) error {
			stream, err := locks.Lock(ctx)
			acquire := &pb.AcquireLocksRequest{Paths: []string{inRequest}}
			return frames(stream, err, &pb.LockRequest{Number: 1, Request: &pb.LockRequest_Acquire{Acquire: acquire}})
		}},
		{"Receive", "messagesrpc.(*Service).Receive", func(ctx context.Context) error {
			stream, err := messages.Receive(ctx, &pb.ReceiveRequest{Follow: true})
			return lastError(stream, err)
		}},
		{"SubscribeEvents", "SubscribeEvents", func(ctx context.Context) error {
			stream, err := events.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64)})
			return lastError(stream, err)
		}},
		{"WatchState", "WatchState", func(ctx context.Context) error {
			stream, err := state.WatchState(ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
			return lastError(stream, err)
		}},
		{"ExportSession", "ExportSession", func(ctx context.Context) error {
			stream, err := sessions.ExportSession(ctx, &pb.ExportSessionRequest{})
			return lastError(stream, err)
		}},
	} {
		if err := c.call(patient(t)); status.Code(err) != codes.Internal {
			t.Errorf("%s ends with %v, want INTERNAL", c.method, err)
		}
		entries := logged.TakeAll()
		if len(entries) != 1 || !strings.Contains(entries[0].ContextMap()["stack"].(string), c.stack) {
			t.Errorf("%s: the log has %d errors, want one with the stack of %s", c.method, len(entries), c.stack)
		}
		if err := other.Send(&pb.SendRequest{Messages: []*pb.Message{{Target: mine}}}); err != nil {
			t.Fatalf("after %s: %v", c.method, err)
		}
		if out, err := other.Recv(); err != nil || out.GetResults()[0].GetId() == "" {
			t.Fatalf("after %s: %v %v", c.method, out, err)
		}
	}
}
