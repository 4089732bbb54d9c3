package blockers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// interval is the session's default until a blocker escalates.
const interval = 15 * time.Minute

func TestRaise_NotifiesTheFirstRoleOfEscalateToThatHasAnAgent(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, builder := w.Agent("boss", "lead"), w.Agent("builder-1", "builder") // no overseer
	x := raise(builder, &pb.RaiseBlockerRequest{
		Reason: "no credentials\nfor the test database", Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH, TaskId: "t-9",
		Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: "credentials"}},
	})
	if x.State != pb.BlockerState_BLOCKER_STATE_OPEN || x.Agent != "builder-1" || x.TaskBlocked || !strings.HasPrefix(x.Id, "b-") {
		t.Errorf("raised %v", x)
	}
	if d := cmp.Diff([]string{"raised by builder-1", "notified role:lead"}, steps(x)); d != "" {
		t.Error(d)
	}
	if got := x.EscalatesAt.AsTime().Sub(x.RaisedAt.AsTime()); got != interval {
		t.Errorf("escalates after %v", got)
	}
	mail := claimed(lead)
	if len(mail) != 1 {
		t.Fatalf("the lead got %v", mail)
	}
	m, payload := mail[0], object(t, mail[0].Payload)
	if m.Type != "blocker_notification" || m.Sender != "builder-1" || m.Priority != 7 || m.TaskId != "t-9" ||
		m.Subject != "builder-1 is blocked: no credentials" || !strings.Contains(m.Body, "test database") || m.Revision != x.Timeline[1].Message {
		t.Errorf("notification %v", m)
	}
	if payload["blocker_id"] != x.Id || payload["severity"] != "high" || payload["agent"] != "builder-1" ||
		!cmp.Equal(payload["awaited"], map[string]any{"kind": "text", "name": "credentials"}) {
		t.Errorf("payload %v", payload)
	}
}

func TestRaise_ByDefaultNotifiesEveryRoleThatDirects(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	for _, role := range []string{"project_manager", "orchestrator", "lead", "overseer"} { // each comes before the ones before
		w.Agent("the-"+role, role)
		if got := steps(raise(a, &pb.RaiseBlockerRequest{})); !slices.Equal(got, []string{"raised by a", "notified role:" + role}) {
			t.Errorf("with an agent of the role %s: %v", role, got)
		}
	}
}

func TestRaise_NamedRecipientsComeInsteadOfEscalateTo(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, dba, builder := w.Agent("boss", "lead"), w.Agent("dba-1", "dba"), w.Agent("builder-1", "builder")
	ops := w.Agent("ops-1", "ops")
	x := raise(builder, &pb.RaiseBlockerRequest{Recipients: []*pb.BlockerRecipient{agentNamed("dba-1"), roleNamed("ops")}})
	if d := cmp.Diff([]string{"raised by builder-1", "notified dba-1", "notified role:ops"}, steps(x)); d != "" {
		t.Error(d)
	}
	if got := []int{len(claimed(dba)), len(claimed(ops)), len(claimed(lead))}; !slices.Equal(got, []int{1, 1, 0}) {
		t.Errorf("messages of dba, ops and lead: %v", got)
	}
}

func TestRaise_NotifiesTheAwaitedAgentOnce(t *testing.T) {
	t.Parallel()
	awaits := func(name string) *pb.AwaitedObject {
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: name}}
	}
	for name, c := range map[string]struct {
		in   *pb.RaiseBlockerRequest
		want []string
	}{
		"besides a role":         {&pb.RaiseBlockerRequest{Awaited: awaits("b")}, []string{"role:lead", "b"}},
		"besides an agent":       {&pb.RaiseBlockerRequest{Awaited: awaits("b"), Recipients: []*pb.BlockerRecipient{agentNamed("boss")}}, []string{"boss", "b"}},
		"a recipient":            {&pb.RaiseBlockerRequest{Awaited: awaits("b"), Recipients: []*pb.BlockerRecipient{agentNamed("b")}}, []string{"b"}},
		"the only one of a role": {&pb.RaiseBlockerRequest{Awaited: awaits("boss")}, []string{"role:lead"}},
		"one of a role":          {&pb.RaiseBlockerRequest{Awaited: awaits("b"), Recipients: []*pb.BlockerRecipient{roleNamed("builder")}}, []string{"role:builder", "b"}},
		"the raiser":             {&pb.RaiseBlockerRequest{Awaited: awaits("a")}, []string{"role:lead"}},
		"not registered":         {&pb.RaiseBlockerRequest{Awaited: awaits("x")}, []string{"role:lead"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := apptest.Start(t, apptest.WithFakeClock())
			w.Agent("boss", "lead")
			a := w.Agent("a", "builder")
			b := w.Agent("b", "builder")
			w.Agent("c", "builder")
			x := raise(a, c.in)
			want := []string{"raised by a"}
			for _, r := range c.want {
				want = append(want, "notified "+r)
			}
			if d := cmp.Diff(want, steps(x)); d != "" {
				t.Error(d)
			}
			if !slices.Contains(c.want, "b") {
				return
			}
			out := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{})
			if len(out.Items) != 1 {
				t.Fatalf("b got %v", out.Items)
			}
			m := out.Items[0].Message
			if m.Type != "blocker_notification" || m.Subject != "a waits for you: no credentials" ||
				!strings.Contains(m.Body, "This is blocker "+x.Id+": acknowledge it") {
				t.Errorf("b got %v", m)
			}
			if f := explain(b, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); strings.Contains(f.String(), "no agent was notified") {
				t.Errorf("explain says %v", f)
			}
			resolve(a, x.Id, "")
			if out, err := b.ListMessages(b.Ctx, &pb.ListMessagesRequest{}); err != nil || len(out.Items) != 1 || out.Items[0].Message.Type != "response" {
				t.Errorf("after the resolution, b has %v, %v", out, err)
			}
		})
	}
}

func TestRaise_TheAwaitedAgentAloneIsNotified(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b, o := w.Agent("a", "builder"), w.Agent("b", "builder"), w.Root() // no agent has a role of escalate_to
	x := raise(a, &pb.RaiseBlockerRequest{Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "b"}}})
	if f := explain(o, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); strings.Contains(f.String(), "no agent was notified") {
		t.Errorf("explain says %v", f)
	}
	if mail := claimed(b); len(mail) != 1 {
		t.Errorf("b got %v", mail)
	}
}

func TestRaise_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	apptest.Refuses(t, a.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "x", Recipients: []*pb.BlockerRecipient{agentNamed("b")}},
		codes.NotFound, "AGENT_NOT_FOUND")
	apptest.Refuses(t, a.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "x", Recipients: []*pb.BlockerRecipient{roleNamed("dba")}},
		codes.NotFound, "ROLE_NOT_FOUND")
	apptest.Refuses(t, w.Actor("default", "stranger").RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "x"},
		codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	for name, in := range map[string]*pb.RaiseBlockerRequest{
		"no recipient": {Reason: "x", Recipients: []*pb.BlockerRecipient{{}}},
		"a text to wait for": {Reason: "x", AutoResolve: true, Awaited: &pb.AwaitedObject{
			Object: &pb.AwaitedObject_Text{Text: "rain"}}},
		"an empty lock": {Reason: "x", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{}}},
	} {
		if err := apptest.Err(a.RaiseBlocker(a.Ctx, in)); !apptest.Refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT") {
			t.Fatalf("with %s", name)
		}
	}
	out := apptest.Must(t, a.ListBlockers, &pb.ListBlockersRequest{})
	if len(out.Blockers) != 0 {
		t.Errorf("there are %v", out.Blockers)
	}
}

func TestRaise_SameRequestRaisesOneBlocker(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, a := w.Agent("boss", "lead"), w.Agent("a", "builder")
	in := &pb.RaiseBlockerRequest{RequestId: uuid.NewString()}
	first, second := raise(a, in), raise(a, in)
	if first.Id != second.Id || len(claimed(lead)) != 1 {
		t.Errorf("got %s and %s", first.Id, second.Id)
	}
}

func TestRaise_ASessionHasAThousandUnresolvedBlockers(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	o, a := w.Root(), w.Agent("a", "builder")
	o.Configure(&pb.SessionSettings{SendRate: new(0.0)})
	for range 1000 {
		raise(a, &pb.RaiseBlockerRequest{})
	}
	apptest.Refuses(t, a.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "x"},
		codes.ResourceExhausted, "TOO_MANY_BLOCKERS")
	out := apptest.Must(t, a.ListBlockers, &pb.ListBlockersRequest{PageSize: 1})
	resolve(a, out.Blockers[0].Id, "")
	raise(a, &pb.RaiseBlockerRequest{})
}

func TestAcknowledge_EndsTheEscalation(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, a := w.Agent("boss", "lead"), w.Agent("a", "builder")
	x := raise(a, &pb.RaiseBlockerRequest{})
	apptest.Refuses(t, a.AcknowledgeBlocker, &pb.AcknowledgeBlockerRequest{Id: x.Id},
		codes.FailedPrecondition, "OWN_BLOCKER")
	out := apptest.Must(t, lead.AcknowledgeBlocker, &pb.AcknowledgeBlockerRequest{Id: x.Id, Note: "on it"})
	got := out.Blocker
	if got.State != pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED || got.EscalatesAt != nil || !slices.Equal(got.AcknowledgedBy, []string{"boss"}) ||
		!got.AcknowledgedAt.AsTime().Equal(w.Clock.Now()) || got.Timeline[2].Note != "on it" {
		t.Errorf("acknowledged %v", got)
	}
	if again := ack(lead, strings.TrimPrefix(x.Id, "b-")); again.Revision != got.Revision { // by its revision
		t.Errorf("the second time changed it: %v", again)
	}
	if both := ack(w.Root(), x.Id); !slices.Equal(both.AcknowledgedBy, []string{"boss", "system"}) {
		t.Errorf("acknowledged by %v", both.AcknowledgedBy)
	}
}

func TestResolve_NotifiesAllInvolvedAndWithdrawsTheNotifications(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, a, ops, dba := w.Agent("boss", "lead"), w.Agent("a", "builder"), w.Agent("ops-1", "ops"), w.Agent("dba-1", "dba")
	x := raise(a, &pb.RaiseBlockerRequest{Recipients: []*pb.BlockerRecipient{agentNamed("dba-1"), roleNamed("lead")}})
	ack(ops, x.Id)
	w.Clock.Advance(90 * time.Second)
	got := resolve(dba, x.Id, "granted")
	if got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.ResolvedBy != "dba-1" || got.Resolution != "granted" ||
		got.TimeBlocked.AsDuration() != 90*time.Second {
		t.Errorf("resolved %v", got)
	}
	for _, who := range []*apptest.Actor{lead, a, ops} {
		n := notices(who, "response")
		if len(n) != 1 || n[0]["blocker_id"] != x.Id || n[0]["resolution"] != "granted" || n[0]["time_blocked_seconds"] != 90.0 {
			t.Errorf("%s has the notices %v", who.Name, n)
		} else if text, _ := n[0]["notice"].(string); !strings.HasSuffix(text, "; resolution: granted") {
			t.Errorf("the notice %q lacks the resolution", text)
		}
	}
	if n := notices(dba, "response"); len(n) != 0 {
		t.Errorf("the agent that resolved it has the notices %v", n)
	}
	if left := append(claimed(lead), claimed(dba)...); len(left) != 0 {
		t.Errorf("the notifications %v are left", left)
	}
	apptest.Refuses(t, lead.ResolveBlocker, &pb.ResolveBlockerRequest{Id: x.Id},
		codes.FailedPrecondition, "BLOCKER_RESOLVED")
	apptest.Refuses(t, lead.AcknowledgeBlocker, &pb.AcknowledgeBlockerRequest{Id: x.Id},
		codes.FailedPrecondition, "BLOCKER_RESOLVED")
	w.Clock.Advance(time.Hour)
	if later := get(a, x.Id); later.TimeBlocked.AsDuration() != 90*time.Second {
		t.Errorf("an hour later it says %v", later.TimeBlocked.AsDuration())
	}
	if d := cmp.Diff([]string{"blocker.acknowledged", "blocker.encountered", "blocker.resolved"}, typesOf(a, "blocker.*")); d != "" {
		t.Error(d)
	}
}

func TestResolve_OfManyCallersOneResolves(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	x := raise(a, &pb.RaiseBlockerRequest{})
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := a.ResolveBlocker(a.Ctx, &pb.ResolveBlockerRequest{Id: x.Id})
			done <- err
		}()
	}
	succeeded := 0
	for range 8 {
		if err := <-done; err == nil {
			succeeded++
		} else {
			apptest.Refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
		}
	}
	if succeeded != 1 {
		t.Errorf("%d calls resolved it", succeeded)
	}
}

func TestGet_WaitsUntilTheBlockerIsResolved(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "lead")
	x := raise(a, &pb.RaiseBlockerRequest{})
	got := make(chan *pb.Blocker)
	go func() {
		out, err := a.GetBlocker(a.Ctx, &pb.GetBlockerRequest{Id: x.Id, Wait: durationpb.New(time.Hour)})
		if err != nil {
			t.Error(err)
		}
		got <- out.GetBlocker()
	}()
	ack(b, x.Id) // does not end the wait
	resolve(b, x.Id, "done")
	if x := <-got; x.GetState() != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("the wait returned %v", x)
	}
	apptest.Refuses(t, a.GetBlocker, &pb.GetBlockerRequest{Id: "b-999999"}, codes.NotFound, "BLOCKER_NOT_FOUND")
}

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	on := func(name string) *pb.AwaitedObject {
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: name}}
	}
	ids := []string{
		raise(a, &pb.RaiseBlockerRequest{TaskId: "t1", Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_LOW}).Id,
		raise(b, &pb.RaiseBlockerRequest{TaskId: "t1", Awaited: on("a")}).Id,
		raise(a, &pb.RaiseBlockerRequest{Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_CRITICAL}).Id,
	}
	ack(b, ids[2])
	resolve(a, ids[0], "")
	list := func(in *pb.ListBlockersRequest) (got []string) {
		t.Helper()
		for {
			out := apptest.Must(t, a.ListBlockers, in)
			for _, x := range out.Blockers {
				got = append(got, x.Id)
			}
			if in.PageToken = out.NextPageToken; in.PageToken == "" {
				return got
			}
		}
	}
	for name, c := range map[string]struct {
		in   *pb.ListBlockersRequest
		want []string
	}{
		"all, one per page": {&pb.ListBlockersRequest{PageSize: 1}, []string{ids[2], ids[1], ids[0]}},
		"the oldest first":  {&pb.ListBlockersRequest{OldestFirst: true, PageSize: 1}, ids},
		"unresolved":        {&pb.ListBlockersRequest{States: []pb.BlockerState{1, 2}}, []string{ids[2], ids[1]}},
		"acknowledged":      {&pb.ListBlockersRequest{States: []pb.BlockerState{2}}, ids[2:]},
		"resolved":          {&pb.ListBlockersRequest{States: []pb.BlockerState{3}}, ids[:1]},
		"of b":              {&pb.ListBlockersRequest{Agent: "b"}, ids[1:2]},
		"of the task":       {&pb.ListBlockersRequest{TaskId: "t1"}, []string{ids[1], ids[0]}},
		"medium or higher":  {&pb.ListBlockersRequest{LowestSeverity: pb.BlockerSeverity_BLOCKER_SEVERITY_MEDIUM}, []string{ids[2], ids[1]}},
		"awaiting a":        {&pb.ListBlockersRequest{AwaitedAgent: "a"}, ids[1:2]},
	} {
		if d := cmp.Diff(c.want, list(c.in)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	apptest.Refuses(t, a.ListBlockers, &pb.ListBlockersRequest{States: []pb.BlockerState{7}},
		codes.InvalidArgument, "INVALID_ARGUMENT")
}

func agentNamed(name string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: name}}
}

func roleNamed(name string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: name}}
}
