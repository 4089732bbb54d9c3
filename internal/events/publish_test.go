package events_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestPublish_EventOfAnAgentStandsInTheLog(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	api := pb.NewEventServiceClient(b.Registered("builder-1", "builder"))
	full := &pb.PublishEventRequest{
		Type: "build.finished", Category: pb.EventCategory_EVENT_CATEGORY_WORK, Severity: pb.Severity_SEVERITY_ERROR, Summary: "it's red",
		Details: `{"a": [1]}`, Related: []string{"4711"}, TaskId: "t1",
	}
	var want []*pb.Event
	for _, c := range []struct {
		in *pb.PublishEventRequest
		as pb.EventServiceClient
		e  *pb.Event
	}{
		{full, api, &pb.Event{
			Type: "build_finished", TypeAsSent: "build.finished", Category: full.Category, Severity: full.Severity, Source: "builder-1", SourceRole: "builder", Summary: full.Summary,
			Details: full.Details, Related: full.Related, TaskId: full.TaskId, Session: "default",
		}},
		{&pb.PublishEventRequest{Type: "x"}, pb.NewEventServiceClient(b.Operator()), &pb.Event{
			Type: "x", Category: pb.EventCategory_EVENT_CATEGORY_AGENT, Severity: pb.Severity_SEVERITY_INFO, Source: "system", Session: "default",
		}},
	} {
		out, err := c.as.PublishEvent(t.Context(), c.in)
		testkit.NoError(t, err)
		c.e.Revision = out.Revision
		want = append(want, c.e)
	}
	got, err := api.ListEvents(t.Context(), &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"build.finished", "x"}}})
	testkit.NoError(t, err)
	if diff := cmp.Diff(want, got.Events, protocmp.Transform(), protocmp.IgnoreFields(&pb.Event{}, "time")); diff != "" {
		t.Error(diff)
	}
}

func TestPublish_RefusesWhoIsNotRegistered(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	_, err := pb.NewEventServiceClient(b.Conn("stranger")).PublishEvent(t.Context(), &pb.PublishEventRequest{Type: "x"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}

func TestPublish_TheSameRequestPublishesOnce(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	api := pb.NewEventServiceClient(b.Registered("a", ""))
	in := &pb.PublishEventRequest{RequestId: "01890a5d-ac96-774b-bcce-b302099a8057", Type: "x"}
	first, err := api.PublishEvent(t.Context(), in)
	testkit.NoError(t, err)
	again, err := api.PublishEvent(t.Context(), in)
	if err != nil || again.Revision != first.Revision {
		t.Errorf("%v %v, want %v", again, err, first)
	}
	in.Type = "y"
	if _, err := api.PublishEvent(t.Context(), in); status.Code(err) != codes.AlreadyExists {
		t.Error(err)
	}
}

func TestPublish_RefusalsNameTheField(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		field string
		in    *pb.PublishEventRequest
	}{
		{"type", &pb.PublishEventRequest{Type: "9a"}},
		{"type", &pb.PublishEventRequest{Type: "a b"}},
		{"type", &pb.PublishEventRequest{Type: "it's"}},
		{"type", &pb.PublishEventRequest{Type: strings.Repeat("a", 129)}},
		{"type", &pb.PublishEventRequest{Type: strings.Repeat("aB", 64)}},
		{"type", &pb.PublishEventRequest{Type: "message.sent"}},
		{"type", &pb.PublishEventRequest{Type: "agent.mine"}},
		{"type", &pb.PublishEventRequest{Type: "producer.x"}},
		{"type", &pb.PublishEventRequest{Type: "system.disk_low"}},
		{"details", &pb.PublishEventRequest{Type: "x", Details: "[1]"}},
		{"request_id", &pb.PublishEventRequest{Type: "x", RequestId: "7"}},
	} {
		_, err := k.api.PublishEvent(testkit.Operator(t.Context()), c.in)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(strings.Join(testkit.Fields(err), " "), c.field) {
			t.Errorf("%.80v: %v (fields %v), not the field %s", c.in, err, testkit.Fields(err), c.field)
		}
	}
}

func TestPublish_LimitsAreReached(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	related := make([]string, 16)
	for i := range related {
		related[i] = strings.Repeat("r", 128)
	}
	_, err := k.api.PublishEvent(testkit.Operator(t.Context()), &pb.PublishEventRequest{
		Type: strings.Repeat("a", 128), Summary: strings.Repeat("s", 512), Details: `{"a":"` + strings.Repeat("x", 64<<10-8) + `"}`,
		Related: related, TaskId: strings.Repeat("t", 128),
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPublish_WakesFollowersOfAnyType(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	stream, err := k.api.SubscribeEvents(testkit.Operator(t.Context()), &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"build.*"}}})
	testkit.NoError(t, err)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.api.PublishEvent(testkit.Operator(t.Context()), &pb.PublishEventRequest{Type: "build.finished"}); err != nil {
		t.Fatal(err)
	}
	page, err := stream.Recv()
	if err != nil || len(page.GetEvents()) != 1 || page.GetEvents()[0].GetType() != "build_finished" {
		t.Errorf("%v %v", page, err)
	}
}
