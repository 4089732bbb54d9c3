package state_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// ofTask returns the names of the keys that belong to a task, read one per page.
func (a *actor) ofTask(in *pb.ListStateRequest) (keys []string) {
	a.t.Helper()
	in.PageSize = 1
	for {
		out, err := a.ListState(a.ctx, in)
		must(a.t, err)
		for _, e := range out.GetEntries() {
			keys = append(keys, e.GetNamespace()+"/"+e.GetKey())
			if e.GetTaskId() != in.GetTaskId() {
				a.t.Errorf("%s belongs to task %q", e.GetKey(), e.GetTaskId())
			}
		}
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			return keys
		}
	}
}

func TestTask_KeysBelongToOneUntilAChangeSaysOtherwise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	a.write(&pb.PutStateRequest{Key: "plan", Value: text("1"), TaskId: ptr("t1")})
	a.put("other", "x")
	_, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Namespace: "docs", Key: "notes", Text: "first", TaskId: ptr("t1")})
	must(t, err)
	_, err = a.TransactState(a.ctx, &pb.TransactStateRequest{Changes: []*pb.StateChange{
		{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "pair/a", Value: text("1"), TaskId: ptr("t1")}}},
		{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "pair/b", Value: text("2"), TaskId: ptr("t2")}}},
	}})
	must(t, err)
	expect := func(in *pb.ListStateRequest, want ...string) {
		t.Helper()
		if got := a.ofTask(in); !slices.Equal(got, want) {
			t.Errorf("keys %q, want %q", got, want)
		}
	}
	expect(&pb.ListStateRequest{TaskId: "t1"}, "default/pair/a", "default/plan", "docs/notes")
	expect(&pb.ListStateRequest{TaskId: "t2"}, "default/pair/b")
	expect(&pb.ListStateRequest{TaskId: "t1", KeyPrefix: "pair/"}, "default/pair/a")
	expect(&pb.ListStateRequest{TaskId: "t1", Namespace: "docs"}, "docs/notes")
	expect(&pb.ListStateRequest{TaskId: "t"})

	a.put("plan", "2") // it stays of the task
	_, err = a.AppendState(a.ctx, &pb.AppendStateRequest{Namespace: "docs", Key: "notes", Text: "second", TaskId: ptr("t2")})
	must(t, err)
	doc, err := a.GetState(a.ctx, &pb.GetStateRequest{Namespace: "docs", Key: "notes"})
	must(t, err)
	if e := doc.GetEntries(); doc.GetEntry().GetTaskId() != "t2" || e[0].GetTaskId() != "t1" || e[1].GetTaskId() != "t2" {
		t.Errorf("the document is %v", doc)
	}
	w.Restart()
	expect(&pb.ListStateRequest{TaskId: "t1"}, "default/pair/a", "default/plan")
	if got := a.get("plan").GetTaskId(); got != "t1" {
		t.Errorf("plan belongs to %q", got)
	}
	a.write(&pb.PutStateRequest{Key: "plan", Value: text("3"), TaskId: ptr("")})
	_, err = a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: "pair/a"})
	must(t, err)
	expect(&pb.ListStateRequest{TaskId: "t1"})
	a.put("pair/a", "again") // a new key: it belongs to none
	expect(&pb.ListStateRequest{TaskId: "t1"})
	history, err := a.ListStateHistory(a.ctx, &pb.ListStateHistoryRequest{Key: "plan"})
	must(t, err)
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
	w := newWorld(t)
	a := w.agent("a")
	a.write(&pb.PutStateRequest{Key: "plan", Value: text("1"), TaskId: ptr("t1")})
	a.put("plan", "2")
	_, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Key: "notes", Text: "first", TaskId: ptr("t1")})
	must(t, err)
	a.put("other", "x")
	out, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{TaskId: "t1"}})
	must(t, err)
	var types []string
	for _, e := range out.GetEvents() {
		types = append(types, e.GetType())
	}
	if want := []string{"state.put", "state.put", "context_updated"}; !slices.Equal(types, want) {
		t.Errorf("events %q, want %q", types, want)
	}
}

func TestTask_AnIDThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	long := strings.Repeat("x", 129)
	for name, call := range map[string]func() error{
		"put": func() error {
			_, err := a.PutState(a.ctx, &pb.PutStateRequest{Key: "k", Value: text("1"), TaskId: &long})
			return err
		},
		"append": func() error {
			_, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Key: "d", Text: "x", TaskId: &long})
			return err
		},
		"list": func() error { _, err := a.ListState(a.ctx, &pb.ListStateRequest{TaskId: long}); return err },
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}
