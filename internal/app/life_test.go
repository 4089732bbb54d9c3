package app_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestStart_AndCleanStopAreEventsOfTheBroker(t *testing.T) {
	b := apptest.Start(t)
	b.Restart()
	list := func(agent string) (types []string) {
		t.Helper()
		filter := &pb.EventFilter{Types: []string{"broker.*"}, Categories: []pb.EventCategory{pb.EventCategory_EVENT_CATEGORY_SYSTEM}}
		out, err := pb.NewEventServiceClient(b.Conn(agent)).ListEvents(patient(t), &pb.ListEventsRequest{Filter: filter})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range out.GetEvents() {
			types = append(types, e.GetType())
		}
		return types
	}
	if diff := cmp.Diff([]string{"broker.started", "broker.stopped", "broker.started"}, list("")); diff != "" {
		t.Error(diff)
	}
	if got := list("agent"); got != nil {
		t.Errorf("an agent sees %v", got)
	}
}
