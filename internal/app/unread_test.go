package app_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Not parallel: the heap is that of the whole process.
func TestStreams_UnreadOnesCostABoundedAmountOfMemory(t *testing.T) {
	const (
		streams  = 20 // of each kind
		items    = 50
		itemSize = 60 << 10
		most     = 512 << 10 // bytes of a stream: twice what the daemon may use, for the client's end is in this process
	)
	b := apptest.Start(t)
	operator := b.Operator()
	settings := &pb.SessionSettings{SendRate: proto.Float64(0)}
	apptest.Must(t, pb.NewSessionServiceClient(operator).ConfigureSession,
		&pb.ConfigureSessionRequest{Settings: settings})
	b.Registered("idle", "")
	value := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: text(itemSize)}}
	for i := range items {
		message := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "idle"}}, Body: text(itemSize)}
		event := &pb.PublishEventRequest{Type: "x", Details: `{"x":"` + text(itemSize) + `"}`}
		key := &pb.PutStateRequest{Namespace: "n", Key: strconv.Itoa(i), Value: value}
		apptest.Must(t, pb.NewMessageServiceClient(operator).SendMessages,
			&pb.SendMessagesRequest{Messages: []*pb.Message{message}})
		apptest.Must(t, pb.NewEventServiceClient(operator).PublishEvent, event)
		apptest.Must(t, pb.NewStateServiceClient(operator).PutState, key)
	}
	conn, err := grpc.NewClient(b.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "brokerd-agent", "idle"))
	defer cancel()
	status := func() {
		t.Helper()
		apptest.Must(t, pb.NewAdminServiceClient(operator).GetStatus, &pb.GetStatusRequest{})
	}
	status()
	before := heap()
	for range streams {
		apptest.NoError(t, apptest.Err(pb.NewMessageServiceClient(conn).Receive(ctx, &pb.ReceiveRequest{Follow: true})))
		if _, err := pb.NewEventServiceClient(conn).SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64)}); err != nil {
			t.Fatal(err)
		}
		if _, err := pb.NewStateServiceClient(conn).WatchState(ctx, &pb.WatchStateRequest{AfterRevision: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	cost := func() int64 {
		status()
		return (heap() - before) / (3 * streams)
	}
	for range 50 { // the calls give the streams time to read as far ahead as they do
		cost()
	}
	kept := cost()
	// On a busy machine, some streams may be about to make an answer still, which is garbage afterwards.
	for late := time.Now().Add(apptest.Patience); kept > most && time.Now().Before(late); {
		kept = cost()
	}
	t.Logf("%d KiB a stream", kept>>10)
	if kept > most {
		t.Errorf("an unread stream costs %d KiB of memory, want at most %d", kept>>10, most>>10)
	}
}
