package blockers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// report publishes an event that raises or resolves a blocker, and returns the blocker.
func report(a *apptest.Actor, in *pb.PublishEventRequest) *pb.Blocker {
	a.Helper()
	in.Blocker = true
	return get(a, apptest.Must(a, a.PublishEvent, in).Blocker)
}

func TestReport_EventMakesABlockerAndAnotherResolvesIt(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b, o := w.Agent("builder-1", "builder"), w.Agent("builder-2", "builder"), w.Root()
	boss := w.Agent("boss", "orchestrator")
	one, every := w.Agent("one", "watcher"), w.Agent("every", "watcher")
	apptest.Must(t, one.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/BlockerEncountered"})
	apptest.Must(t, one.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/BlockerResolved"})
	apptest.Must(t, every.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/*"})
	claim(a, "pg2-task-1")
	x := report(a, &pb.PublishEventRequest{Type: "BlockerEncountered", Severity: pb.Severity_SEVERITY_ERROR, Related: []string{"4711"}, Details: `{
		"task_id": "pg2-task-1", "description": "Cannot implement JWT refresh without User model",
		"dependency": {"required_artifact": "User model", "responsible_agent": "builder-2"}}`})
	if x.Agent != "builder-1" || x.Reason != "Cannot implement JWT refresh without User model" || x.TaskId != "pg2-task-1" || !x.TaskBlocked ||
		x.Severity != pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH || x.Awaited.GetAgent() != "builder-2" {
		t.Errorf("raised %v", x)
	}
	wantTask(a, "pg2-task-1", pb.TaskState_TASK_STATE_BLOCKED)
	if d := cmp.Diff([]string{"raised by builder-1", "notified role:orchestrator", "notified builder-2"}, steps(x)); d != "" {
		t.Error(d)
	}
	if n := len(claimed(boss)) + len(claimed(b)); n != 2 {
		t.Errorf("the recipients got %d messages", n)
	}
	y := report(a, &pb.PublishEventRequest{Type: "BlockerResolved", Details: `{"task_id": "pg2-task-1", "resolution": "Partial interface received"}`})
	if y.Id != x.Id || y.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || y.Resolution != "Partial interface received" || y.ResolvedBy != "builder-1" {
		t.Errorf("resolved %v", y)
	}
	wantTask(a, "pg2-task-1", pb.TaskState_TASK_STATE_CLAIMED)
	out := apptest.Must(t, o.ListEvents, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"BlockerEncountered", "BlockerResolved"}, TaskId: "pg2-task-1"}})
	var got []string
	for _, e := range out.Events {
		got = append(got, strings.TrimSpace(e.Type+" "+strings.Join(e.Related, " ")))
	}
	want := []string{"blocker.encountered", "blocker_encountered 4711 " + x.Id, "blocker.resolved " + x.Id, "blocker_resolved " + x.Id}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, who := range []*apptest.Actor{one, every} {
		var types []string
		for _, m := range claimed(who) {
			if kind := object(t, m.Payload)["type"]; strings.HasPrefix(kind.(string), "blocker") {
				types = append(types, kind.(string))
			}
		}
		if d := cmp.Diff([]string{"blocker_encountered", "blocker_resolved"}, types); d != "" {
			t.Errorf("%s: %s", who.Name, d)
		}
	}
}

func TestReport_ReadsTheDetailsOfAgents(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	w.Agent("b", "builder")
	for name, c := range map[string]struct {
		in       *pb.PublishEventRequest
		reason   string
		severity pb.BlockerSeverity
		awaited  string
		task     string
	}{
		"a reason":           {&pb.PublishEventRequest{Details: `{"reason": "no key", "severity": "Critical"}`}, "no key", 4, "", ""},
		"a summary":          {&pb.PublishEventRequest{Summary: "no key", Severity: pb.Severity_SEVERITY_CRITICAL}, "no key", 4, "", ""},
		"awaited":            {&pb.PublishEventRequest{Summary: "x", Details: `{"awaited": "b", "severity": "low"}`}, "x", 1, "b", ""},
		"awaited.agent":      {&pb.PublishEventRequest{Summary: "x", Details: `{"awaited": {"agent": "b"}}`}, "x", 2, "b", ""},
		"awaited_agent":      {&pb.PublishEventRequest{Summary: "x", Details: `{"awaited_agent": "b"}`}, "x", 2, "b", ""},
		"an unknown agent":   {&pb.PublishEventRequest{Summary: "x", Details: `{"awaited_agent": "nobody-has-it"}`}, "x", 2, "", ""},
		"the request's task": {&pb.PublishEventRequest{Summary: "x", TaskId: "t1", Details: `{"task_id": "t2"}`}, "x", 2, "", "t1"},
		"other forms":        {&pb.PublishEventRequest{Summary: "x", Details: `{"description": 7, "severity": {}, "dependency": [], "task_id": null}`}, "x", 2, "", ""},
	} {
		c.in.Type = "blocker_detected"
		x := report(a, c.in)
		if x.Reason != c.reason || x.Severity != c.severity || x.Awaited.GetAgent() != c.awaited || x.TaskId != c.task {
			t.Errorf("%s: %v", name, x)
		}
	}
}

func TestReport_ResolvesOnlyWhatIsClear(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	resolve := func(who *apptest.Actor, details string) (*pb.PublishEventResponse, error) {
		return who.PublishEvent(who.Ctx, &pb.PublishEventRequest{Type: "BlockerResolved", Details: details, Blocker: true})
	}
	_, err := resolve(a, "")
	apptest.Refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
	first := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"})
	second := raise(a, &pb.RaiseBlockerRequest{TaskId: "t2"})
	third := raise(a, &pb.RaiseBlockerRequest{TaskId: "t2"})
	raise(b, &pb.RaiseBlockerRequest{TaskId: "t3"})
	_, err = resolve(a, "")
	apptest.Refused(t, err, codes.FailedPrecondition, "AMBIGUOUS_BLOCKER")
	for _, x := range []*pb.Blocker{first, second, third} {
		if !strings.Contains(status.Convert(err).Message(), x.Id) {
			t.Errorf("%v does not name %s", err, x.Id)
		}
	}
	_, err = resolve(a, `{"task_id": "t2"}`)
	apptest.Refused(t, err, codes.FailedPrecondition, "AMBIGUOUS_BLOCKER")
	if text := status.Convert(err).Message(); strings.Contains(text, first.Id) || !strings.Contains(text, third.Id+", "+second.Id) {
		t.Error(text)
	}
	_, err = resolve(a, `{"task_id": "t3"}`) // of another agent
	apptest.Refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
	for details, want := range map[string]string{
		`{"task_id": "t1", "blocker_id": "blocker_pg2_task1_001"}`: first.Id,
		`{"task_id": "t1", "blocker_id": "` + second.Id + `"}`:     second.Id,
	} {
		out, err := resolve(a, details)
		if err != nil || out.Blocker != want {
			t.Errorf("%s: %v, %v", details, out, err)
		}
	}
	_, err = resolve(a, `{"blocker_id": "`+first.Id+`"}`)
	apptest.Refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
	out, err := resolve(a, "") // its only one is left
	if err != nil || out.Blocker != third.Id {
		t.Errorf("the last one: %v, %v", out, err)
	}
	if n := len(typesOf(a, "blocker_resolved")); n != 6 { // and as many of the broker's
		t.Errorf("%d events of resolutions", n)
	}
}

func TestReport_RefusesWhatIsNoReport(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	for name, in := range map[string]*pb.PublishEventRequest{
		"another type":           {Type: "TaskCompleted", Summary: "x"},
		"no reason":              {Type: "BlockerEncountered", Details: `{"blocker_type": "missing_dependency"}`},
		"a NUL":                  {Type: "BlockerEncountered", Details: `{"reason": "x\u0000"}`},
		"a task of two lines":    {Type: "BlockerEncountered", Details: `{"reason": "x", "task_id": "t\n1"}`},
		"a very long resolution": {Type: "BlockerResolved", Details: `{"resolution": "` + strings.Repeat("x", 4<<10+1) + `"}`},
	} {
		in.Blocker = true
		if _, err := a.PublishEvent(a.Ctx, in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := typesOf(a, "blocker_encountered"); len(got) != 0 {
		t.Errorf("a refused event is in the log: %v", got)
	}
	x := raise(a, &pb.RaiseBlockerRequest{})
	apptest.Must(t, a.PublishEvent, &pb.PublishEventRequest{Type: "BlockerResolved"})
	if got := get(a, x.Id); got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("an event that does not ask for it has changed %v", got)
	}
}

func TestReport_SameRequestMakesOneBlocker(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	in := &pb.PublishEventRequest{RequestId: uuid.NewString(), Type: "BlockerEncountered", Summary: "x", Blocker: true}
	first := apptest.Must(t, a.PublishEvent, in)
	again := apptest.Must(t, a.PublishEvent, in)
	if first.Blocker == "" || again.Blocker != first.Blocker || again.Revision != first.Revision {
		t.Errorf("got %v, then %v", first, again)
	}
	if got := typesOf(a, "blocker.encountered"); len(got) != 1 {
		t.Errorf("events %v", got)
	}
}
