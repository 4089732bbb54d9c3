package state_test

import (
	"slices"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// ofTask returns the names of the keys that belong to a task, read one per page.
func ofTask(a *apptest.Actor, in *pb.ListStateRequest) (keys []string) {
	a.Helper()
	in.PageSize = 1
	for {
		out := apptest.Must(a, a.ListState, in)
		for _, e := range out.GetEntries() {
			keys = append(keys, e.GetNamespace()+"/"+e.GetKey())
			if e.GetTaskId() != in.GetTaskId() {
				a.Errorf("%s belongs to task %q", e.GetKey(), e.GetTaskId())
			}
		}
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			return keys
		}
	}
}

func TestTask_KeysBelongToOneUntilAChangeSaysOtherwise(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	write(a, &pb.PutStateRequest{Key: "plan", Value: text("1"), TaskId: new("t1")})
	set(a, "other", "x")
	apptest.Must(t, a.AppendState,
		&pb.AppendStateRequest{Namespace: "docs", Key: "notes", Text: "first", TaskId: new("t1")})
	apptest.Must(t, a.TransactState, &pb.TransactStateRequest{Changes: []*pb.StateChange{
		{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "pair/a", Value: text("1"), TaskId: new("t1")}}},
		{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "pair/b", Value: text("2"), TaskId: new("t2")}}},
	}})
	expect := func(in *pb.ListStateRequest, want ...string) {
		t.Helper()
		if got := ofTask(a, in); !slices.Equal(got, want) {
			t.Errorf("keys %q, want %q", got, want)
		}
	}
	expect(&pb.ListStateRequest{TaskId: "t1"}, "default/pair/a", "default/plan", "docs/notes")
	expect(&pb.ListStateRequest{TaskId: "t2"}, "default/pair/b")
	expect(&pb.ListStateRequest{TaskId: "t1", KeyPrefix: "pair/"}, "default/pair/a")
	expect(&pb.ListStateRequest{TaskId: "t1", Namespace: "docs"}, "docs/notes")
	expect(&pb.ListStateRequest{TaskId: "t"})

	set(a, "plan", "2") // it stays of the task
	apptest.Must(t, a.AppendState,
		&pb.AppendStateRequest{Namespace: "docs", Key: "notes", Text: "second", TaskId: new("t2")})
	doc := apptest.Must(t, a.GetState, &pb.GetStateRequest{Namespace: "docs", Key: "notes"})
	if e := doc.GetEntries(); doc.GetEntry().GetTaskId() != "t2" || e[0].GetTaskId() != "t1" || e[1].GetTaskId() != "t2" {
		t.Errorf("the document is %v", doc)
	}
	w.Restart()
	expect(&pb.ListStateRequest{TaskId: "t1"}, "default/pair/a", "default/plan")
	if got := get(a, "plan").GetTaskId(); got != "t1" {
		t.Errorf("plan belongs to %q", got)
	}
	write(a, &pb.PutStateRequest{Key: "plan", Value: text("3"), TaskId: new("")})
	apptest.Must(t, a.DeleteState, &pb.DeleteStateRequest{Key: "pair/a"})
	expect(&pb.ListStateRequest{TaskId: "t1"})
	set(a, "pair/a", "again") // a new key: it belongs to none
	expect(&pb.ListStateRequest{TaskId: "t1"})
	history := apptest.Must(t, a.ListStateHistory, &pb.ListStateHistoryRequest{Key: "plan"})
	var tasks []string
	for _, v := range history.GetVersions() {
		tasks = append(tasks, v.GetTaskId())
	}
	if want := []string{"", "t1", "t1"}; !slices.Equal(tasks, want) {
		t.Errorf("the versions of plan belong to %q, want %q", tasks, want)
	}
}

func TestTask_EventsNameIt(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	write(a, &pb.PutStateRequest{Key: "plan", Value: text("1"), TaskId: new("t1")})
	set(a, "plan", "2")
	apptest.Must(t, a.AppendState, &pb.AppendStateRequest{Key: "notes", Text: "first", TaskId: new("t1")})
	set(a, "other", "x")
	out := apptest.Must(t, a.ListEvents, &pb.ListEventsRequest{Filter: &pb.EventFilter{TaskId: "t1"}})
	var types []string
	for _, e := range out.GetEvents() {
		types = append(types, e.GetType())
	}
	if want := []string{"state.put", "state.put", "context_updated"}; !slices.Equal(types, want) {
		t.Errorf("events %q, want %q", types, want)
	}
}
