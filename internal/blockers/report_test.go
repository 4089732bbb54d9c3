package blockers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// report publishes an event that raises or resolves a blocker, and returns the blocker.
func (a *actor) report(in *pb.PublishEventRequest) *pb.Blocker {
	a.t.Helper()
	in.Blocker = true
	out, err := a.events.PublishEvent(a.ctx, in)
	must(a.t, err)
	return a.get(out.Blocker)
}

// subscribe subscribes to a channel.
func (w *world) subscribe(a *actor, channel string) {
	w.t.Helper()
	_, err := pb.NewChannelServiceClient(w.In("default", a.name)).SubscribeChannel(a.ctx, &pb.SubscribeChannelRequest{Channel: channel})
	must(w.t, err)
}

func TestReport_EventMakesABlockerAndAnotherResolvesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, o := w.agent("builder-1", "builder"), w.agent("builder-2", "builder"), w.operator()
	boss := w.agent("boss", "orchestrator")
	one, every := w.agent("one", "watcher"), w.agent("every", "watcher")
	w.subscribe(one, "event/BlockerEncountered")
	w.subscribe(one, "event/BlockerResolved")
	w.subscribe(every, "event/*")
	a.claim("pg2-task-1")
	x := a.report(&pb.PublishEventRequest{Type: "BlockerEncountered", Severity: pb.Severity_SEVERITY_ERROR, Related: []string{"4711"}, Details: `{
		"task_id": "pg2-task-1", "description": "Cannot implement JWT refresh without User model",
		"dependency": {"required_artifact": "User model", "responsible_agent": "builder-2"}}`})
	if x.Agent != "builder-1" || x.Reason != "Cannot implement JWT refresh without User model" || x.TaskId != "pg2-task-1" || !x.TaskBlocked ||
		x.Severity != pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH || x.Awaited.GetAgent() != "builder-2" {
		t.Errorf("raised %v", x)
	}
	a.wantTask("pg2-task-1", pb.TaskState_TASK_STATE_BLOCKED)
	if d := cmp.Diff([]string{"raised by builder-1", "notified role:orchestrator", "notified builder-2"}, steps(x)); d != "" {
		t.Error(d)
	}
	if n := len(boss.claimed()) + len(b.claimed()); n != 2 {
		t.Errorf("the recipients got %d messages", n)
	}
	y := a.report(&pb.PublishEventRequest{Type: "BlockerResolved", Details: `{"task_id": "pg2-task-1", "resolution": "Partial interface received"}`})
	if y.Id != x.Id || y.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || y.Resolution != "Partial interface received" || y.ResolvedBy != "builder-1" {
		t.Errorf("resolved %v", y)
	}
	a.wantTask("pg2-task-1", pb.TaskState_TASK_STATE_CLAIMED)
	out, err := o.events.ListEvents(o.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"BlockerEncountered", "BlockerResolved"}, TaskId: "pg2-task-1"}})
	must(t, err)
	var got []string
	for _, e := range out.Events {
		got = append(got, strings.TrimSpace(e.Type+" "+strings.Join(e.Related, " ")))
	}
	want := []string{"blocker.encountered", "blocker_encountered 4711 " + x.Id, "blocker.resolved " + x.Id, "blocker_resolved " + x.Id}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, who := range []*actor{one, every} {
		var types []string
		for _, m := range who.claimed() {
			if kind := object(t, m.Payload)["type"]; strings.HasPrefix(kind.(string), "blocker") {
				types = append(types, kind.(string))
			}
		}
		if d := cmp.Diff([]string{"blocker_encountered", "blocker_resolved"}, types); d != "" {
			t.Errorf("%s: %s", who.name, d)
		}
	}
}

func TestReport_ReadsTheDetailsOfAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	w.agent("b", "builder")
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
		x := a.report(c.in)
		if x.Reason != c.reason || x.Severity != c.severity || x.Awaited.GetAgent() != c.awaited || x.TaskId != c.task {
			t.Errorf("%s: %v", name, x)
		}
	}
}

func TestReport_ResolvesOnlyWhatIsClear(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	resolve := func(who *actor, details string) (*pb.PublishEventResponse, error) {
		return who.events.PublishEvent(who.ctx, &pb.PublishEventRequest{Type: "BlockerResolved", Details: details, Blocker: true})
	}
	_, err := resolve(a, "")
	refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
	first := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
	second := a.raise(&pb.RaiseBlockerRequest{TaskId: "t2"})
	third := a.raise(&pb.RaiseBlockerRequest{TaskId: "t2"})
	b.raise(&pb.RaiseBlockerRequest{TaskId: "t3"})
	_, err = resolve(a, "")
	refused(t, err, codes.FailedPrecondition, "AMBIGUOUS_BLOCKER")
	for _, x := range []*pb.Blocker{first, second, third} {
		if !strings.Contains(status.Convert(err).Message(), x.Id) {
			t.Errorf("%v does not name %s", err, x.Id)
		}
	}
	_, err = resolve(a, `{"task_id": "t2"}`)
	refused(t, err, codes.FailedPrecondition, "AMBIGUOUS_BLOCKER")
	if text := status.Convert(err).Message(); strings.Contains(text, first.Id) || !strings.Contains(text, third.Id+", "+second.Id) {
		t.Error(text)
	}
	_, err = resolve(a, `{"task_id": "t3"}`) // of another agent
	refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
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
	refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
	out, err := resolve(a, "") // its only one is left
	if err != nil || out.Blocker != third.Id {
		t.Errorf("the last one: %v, %v", out, err)
	}
	if n := len(a.typesOf("blocker_resolved")); n != 6 { // and as many of the broker's
		t.Errorf("%d events of resolutions", n)
	}
}

func TestReport_RefusesWhatIsNoReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	for name, in := range map[string]*pb.PublishEventRequest{
		"another type":           {Type: "TaskCompleted", Summary: "x"},
		"no reason":              {Type: "BlockerEncountered", Details: `{"blocker_type": "missing_dependency"}`},
		"a NUL":                  {Type: "BlockerEncountered", Details: `{"reason": "x\u0000"}`},
		"a task of two lines":    {Type: "BlockerEncountered", Details: `{"reason": "x", "task_id": "t\n1"}`},
		"a very long resolution": {Type: "BlockerResolved", Details: `{"resolution": "` + strings.Repeat("x", 4<<10+1) + `"}`},
	} {
		in.Blocker = true
		if _, err := a.events.PublishEvent(a.ctx, in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := a.typesOf("blocker_encountered"); len(got) != 0 {
		t.Errorf("a refused event is in the log: %v", got)
	}
	x := a.raise(&pb.RaiseBlockerRequest{})
	_, err := a.events.PublishEvent(a.ctx, &pb.PublishEventRequest{Type: "BlockerResolved"})
	must(t, err)
	if got := a.get(x.Id); got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("an event that does not ask for it has changed %v", got)
	}
}

func TestReport_SameRequestMakesOneBlocker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	in := &pb.PublishEventRequest{RequestId: uuid.NewString(), Type: "BlockerEncountered", Summary: "x", Blocker: true}
	first, err := a.events.PublishEvent(a.ctx, in)
	must(t, err)
	again, err := a.events.PublishEvent(a.ctx, in)
	must(t, err)
	if first.Blocker == "" || again.Blocker != first.Blocker || again.Revision != first.Revision {
		t.Errorf("got %v, then %v", first, again)
	}
	if got := a.typesOf("blocker.encountered"); len(got) != 1 {
		t.Errorf("events %v", got)
	}
}
