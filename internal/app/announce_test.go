package app_test

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// subjects are those of the messages in an agent's inbox.
func subjects(t *testing.T, conn *grpc.ClientConn) []string {
	t.Helper()
	stream, err := pb.NewMessageServiceClient(conn).Receive(patient(t), &pb.ReceiveRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range page.GetItems() {
			found = append(found, i.GetMessage().GetSubject())
		}
	}
}

func TestAnnounce_EventOfTheBrokerItselfReachesEverySession(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) {
			if full.Load() {
				return 0.9, nil
			}
			return 0.5, nil
		}
	}))
	o := pb.NewSessionServiceClient(b.Operator())
	for _, name := range []string{"other", "closed"} {
		if _, err := o.CreateSession(patient(t), &pb.CreateSessionRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, session := range []string{"default", "other", "closed"} {
		conn := b.In(session, "watcher")
		if _, err := pb.NewAgentServiceClient(conn).RegisterAgent(patient(t), &pb.RegisterAgentRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := pb.NewChannelServiceClient(conn).SubscribeChannel(patient(t), &pb.SubscribeChannelRequest{Channel: "event/system.disk_low"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.CloseSession(patient(t), &pb.CloseSessionRequest{Name: "closed"}); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	b.Clock.Advance(10 * time.Second)
	send(t, pb.NewMessageServiceClient(b.Operator()), "watcher") // which has a look at the disk
	send(t, pb.NewMessageServiceClient(b.Operator()), "watcher") // committed after the event
	news := "90 % of the disk is used"
	for session, want := range map[string][]string{"default": {news, "hello", "hello"}, "other": {news}} {
		got := subjects(t, b.In(session, "watcher"))
		slices.Sort(got) // the event and the first send may come in either order
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", session, diff)
		}
	}
	sent, err := pb.NewEventServiceClient(b.In("closed", "")).ListEvents(patient(t), &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"message.sent"}}})
	if err != nil || len(sent.GetEvents()) > 0 {
		t.Errorf("in a closed session: %v %v", sent, err)
	}
}

func TestPublish_CountsAsASend(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	conn := b.Registered("a", "")
	_, err := pb.NewSessionServiceClient(b.Operator()).ConfigureSession(patient(t), &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0.001), SendBurst: proto.Int32(1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	api := pb.NewEventServiceClient(conn)
	if _, err := api.PublishEvent(patient(t), &pb.PublishEventRequest{Type: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.PublishEvent(patient(t), &pb.PublishEventRequest{Type: "x"}); testkit.Reason(err) != "SEND_RATE" {
		t.Error(err)
	}
}

func TestPublish_NothingInAClosedSession(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	o := pb.NewSessionServiceClient(b.Operator())
	if _, err := o.CreateSession(patient(t), &pb.CreateSessionRequest{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.CloseSession(patient(t), &pb.CloseSessionRequest{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	_, err := pb.NewEventServiceClient(b.In("other", "")).PublishEvent(patient(t), &pb.PublishEventRequest{Type: "x"})
	if testkit.Reason(err) != "SESSION_CLOSED" {
		t.Error(err)
	}
}
