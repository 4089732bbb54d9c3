package state_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// An agent owns more keys, each with a time to live, than one function of the writer may change.
func TestKeys_OfAnAgentOrASessionThatEndsChangeInPages(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("project", nil)
	a, b := w.Actor("project", "a").Register("builder"), w.Actor("project", "b").Register("builder")
	for i := range 11 {
		in := &pb.TransactStateRequest{}
		for n := range 1000 {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{
				Key: fmt.Sprintf("%d/%d", i, n), Value: text("x"), Own: new(true), Ttl: durationpb.New(time.Hour),
			}}})
		}
		apptest.Must(t, a.TransactState, in)
	}
	owned := func(owner string) int {
		out := apptest.Must(t, b.ListState, &pb.ListStateRequest{Owner: owner, PageSize: 2})
		return len(out.Entries)
	}
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{})
	write(a, &pb.PutStateRequest{Key: "again", Value: text("x"), Own: new(true)})
	for owned("a") > 1 || get(b, "10/999").Owner != "" {
	}
	for i := range 11 {
		set(b, fmt.Sprintf("%d/999", i), "y")
	}
	if got := get(b, "again").Owner; got != "a" {
		t.Errorf("a key that was written since belongs to %q", got)
	}
	o := w.Actor("project", "")
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "project"}) // the broker checks how many rows one function changes
}
