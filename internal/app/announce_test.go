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
	apptest.NoError(t, err)
	var found []string
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		apptest.NoError(t, err)
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
	o := b.Root()
	for _, name := range []string{"other", "closed"} {
		apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: name})
	}
	for _, session := range []string{"default", "other", "closed"} {
		conn := b.In(session, "watcher")
		apptest.Must(t, pb.NewAgentServiceClient(conn).RegisterAgent, &pb.RegisterAgentRequest{})
		apptest.Must(t, pb.NewChannelServiceClient(conn).SubscribeChannel,
			&pb.SubscribeChannelRequest{Channel: "event/system.disk_low"})
	}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "closed"})
	full.Store(true)
	b.Clock.Advance(10 * time.Second)
	send(t, b.Root(), "watcher") // which has a look at the disk
	send(t, b.Root(), "watcher") // committed after the event
	news := "90 % of the disk is used"
	for session, want := range map[string][]string{"default": {news, "hello", "hello"}, "other": {news}} {
		got := subjects(t, b.In(session, "watcher"))
		slices.Sort(got) // the event and the first send may come in either order
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", session, diff)
		}
	}
	sent, err := b.Actor("closed", "").ListEvents(patient(t), &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"message.sent"}}})
	if err != nil || len(sent.GetEvents()) > 0 {
		t.Errorf("in a closed session: %v %v", sent, err)
	}
}

func TestPublish_CountsAsASend(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	conn := b.Registered("a", "")
	apptest.Must(t, b.Root().ConfigureSession, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0.001), SendBurst: proto.Int32(1)},
	})
	api := pb.NewEventServiceClient(conn)
	apptest.Must(t, api.PublishEvent, &pb.PublishEventRequest{Type: "x"})
	if _, err := api.PublishEvent(patient(t), &pb.PublishEventRequest{Type: "x"}); testkit.Reason(err) != "SEND_RATE" {
		t.Error(err)
	}
}

func TestPublish_NothingInAClosedSession(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	o := b.Root()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "other"})
	_, err := b.Actor("other", "").PublishEvent(patient(t), &pb.PublishEventRequest{Type: "x"})
	if testkit.Reason(err) != "SESSION_CLOSED" {
		t.Error(err)
	}
}
