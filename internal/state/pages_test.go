package state_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// An agent owns more keys, each with a time to live, than one function of the writer may change.
func TestKeys_OfAnAgentOrASessionThatEndsChangeInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.session("project")
	a, b := w.member("project", "a"), w.member("project", "b")
	for i := range 11 {
		in := &pb.TransactStateRequest{}
		for n := range 1000 {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{
				Key: fmt.Sprintf("%d/%d", i, n), Value: text("x"), Own: ptr(true), Ttl: durationpb.New(time.Hour),
			}}})
		}
		_, err := a.TransactState(a.ctx, in)
		must(t, err)
	}
	owned := func(owner string) int {
		out, err := b.ListState(b.ctx, &pb.ListStateRequest{Owner: owner, PageSize: 2})
		must(t, err)
		return len(out.Entries)
	}
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	_, err = a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{})
	must(t, err)
	a.write(&pb.PutStateRequest{Key: "again", Value: text("x"), Own: ptr(true)})
	for owned("a") > 1 || b.get("10/999").Owner != "" {
	}
	for i := range 11 {
		b.put(fmt.Sprintf("%d/999", i), "y")
	}
	if got := b.get("again").Owner; got != "a" {
		t.Errorf("a key that was written since belongs to %q", got)
	}
	o := w.in("project", "")
	_, err = o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "project"})
	must(t, err) // the broker checks how many rows one function changes
}
