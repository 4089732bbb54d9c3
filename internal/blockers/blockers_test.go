package blockers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// interval is the session's default until a blocker escalates.
const interval = 15 * time.Minute

func TestRaise_NotifiesTheFirstRoleOfEscalateToThatHasAnAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("boss", "lead"), w.agent("builder-1", "builder") // no overseer
	x := builder.raise(&pb.RaiseBlockerRequest{
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
	mail := lead.claimed()
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
	w := newWorld(t)
	a := w.agent("a", "builder")
	for _, role := range []string{"project_manager", "orchestrator", "lead", "overseer"} { // each comes before the ones before
		w.agent("the-"+role, role)
		if got := steps(a.raise(&pb.RaiseBlockerRequest{})); !slices.Equal(got, []string{"raised by a", "notified role:" + role}) {
			t.Errorf("with an agent of the role %s: %v", role, got)
		}
	}
}

func TestRaise_NamedRecipientsComeInsteadOfEscalateTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, dba, builder := w.agent("boss", "lead"), w.agent("dba-1", "dba"), w.agent("builder-1", "builder")
	ops := w.agent("ops-1", "ops")
	x := builder.raise(&pb.RaiseBlockerRequest{Recipients: []*pb.BlockerRecipient{agentNamed("dba-1"), roleNamed("ops")}})
	if d := cmp.Diff([]string{"raised by builder-1", "notified dba-1", "notified role:ops"}, steps(x)); d != "" {
		t.Error(d)
	}
	if got := []int{len(dba.claimed()), len(ops.claimed()), len(lead.claimed())}; !slices.Equal(got, []int{1, 1, 0}) {
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
			w := newWorld(t)
			w.agent("boss", "lead")
			a := w.agent("a", "builder")
			b := w.agent("b", "builder")
			w.agent("c", "builder")
			x := a.raise(c.in)
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
			out, err := b.messages.ListMessages(b.ctx, &pb.ListMessagesRequest{})
			must(t, err)
			if len(out.Items) != 1 {
				t.Fatalf("b got %v", out.Items)
			}
			m := out.Items[0].Message
			if m.Type != "blocker_notification" || m.Subject != "a waits for you: no credentials" ||
				!strings.Contains(m.Body, "brokerctl blocker ack "+x.Id+"\n") || !strings.Contains(m.Body, "brokerctl blocker resolve "+x.Id+" ") {
				t.Errorf("b got %v", m)
			}
			if f := b.explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); strings.Contains(f.String(), "no agent was notified") {
				t.Errorf("explain says %v", f)
			}
			a.resolve(x.Id, "")
			if out, err = b.messages.ListMessages(b.ctx, &pb.ListMessagesRequest{}); err != nil || len(out.Items) != 1 || out.Items[0].Message.Type != "response" {
				t.Errorf("after the resolution, b has %v, %v", out, err)
			}
		})
	}
}

func TestRaise_TheAwaitedAgentAloneIsNotified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, o := w.agent("a", "builder"), w.agent("b", "builder"), w.operator() // no agent has a role of escalate_to
	x := a.raise(&pb.RaiseBlockerRequest{Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "b"}}})
	if f := o.explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); strings.Contains(f.String(), "no agent was notified") {
		t.Errorf("explain says %v", f)
	}
	if mail := b.claimed(); len(mail) != 1 {
		t.Errorf("b got %v", mail)
	}
}

func TestRaise_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	_, err := a.RaiseBlocker(a.ctx, &pb.RaiseBlockerRequest{Reason: "x", Recipients: []*pb.BlockerRecipient{agentNamed("b")}})
	refused(t, err, codes.NotFound, "AGENT_NOT_FOUND")
	_, err = a.RaiseBlocker(a.ctx, &pb.RaiseBlockerRequest{Reason: "x", Recipients: []*pb.BlockerRecipient{roleNamed("dba")}})
	refused(t, err, codes.NotFound, "ROLE_NOT_FOUND")
	_, err = w.actor("stranger").RaiseBlocker(a.ctx, &pb.RaiseBlockerRequest{Reason: "x"})
	refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	for name, in := range map[string]*pb.RaiseBlockerRequest{
		"no reason":           {Reason: " \n"},
		"a long reason":       {Reason: strings.Repeat("x", 64<<10+1)},
		"a bad severity":      {Reason: "x", Severity: 9},
		"no recipient":        {Reason: "x", Recipients: []*pb.BlockerRecipient{{}}},
		"too many recipients": {Reason: "x", Recipients: slices.Repeat([]*pb.BlockerRecipient{agentNamed("a")}, 21)},
		"a text to wait for":  {Reason: "x", AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: "rain"}}},
		"an empty lock":       {Reason: "x", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{}}},
	} {
		_, err := a.RaiseBlocker(a.ctx, in)
		if refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
	out, err := a.ListBlockers(a.ctx, &pb.ListBlockersRequest{})
	must(t, err)
	if len(out.Blockers) != 0 {
		t.Errorf("there are %v", out.Blockers)
	}
}

func TestRaise_SameRequestRaisesOneBlocker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("boss", "lead"), w.agent("a", "builder")
	in := &pb.RaiseBlockerRequest{RequestId: uuid.NewString()}
	first, second := a.raise(in), a.raise(in)
	if first.Id != second.Id || len(lead.claimed()) != 1 {
		t.Errorf("got %s and %s", first.Id, second.Id)
	}
}

func TestRaise_ASessionHasAThousandUnresolvedBlockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "builder")
	_, err := o.sessions.ConfigureSession(o.ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0)}})
	must(t, err)
	for range 1000 {
		a.raise(&pb.RaiseBlockerRequest{})
	}
	_, err = a.RaiseBlocker(a.ctx, &pb.RaiseBlockerRequest{Reason: "x"})
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_BLOCKERS")
	out, err := a.ListBlockers(a.ctx, &pb.ListBlockersRequest{PageSize: 1})
	must(t, err)
	a.resolve(out.Blockers[0].Id, "")
	a.raise(&pb.RaiseBlockerRequest{})
}

func TestAcknowledge_EndsTheEscalation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("boss", "lead"), w.agent("a", "builder")
	x := a.raise(&pb.RaiseBlockerRequest{})
	_, err := a.AcknowledgeBlocker(a.ctx, &pb.AcknowledgeBlockerRequest{Id: x.Id})
	refused(t, err, codes.FailedPrecondition, "OWN_BLOCKER")
	out, err := lead.AcknowledgeBlocker(lead.ctx, &pb.AcknowledgeBlockerRequest{Id: x.Id, Note: "on it"})
	must(t, err)
	got := out.Blocker
	if got.State != pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED || got.EscalatesAt != nil || !slices.Equal(got.AcknowledgedBy, []string{"boss"}) ||
		!got.AcknowledgedAt.AsTime().Equal(w.Clock.Now()) || got.Timeline[2].Note != "on it" {
		t.Errorf("acknowledged %v", got)
	}
	if again := lead.ack(strings.TrimPrefix(x.Id, "b-")); again.Revision != got.Revision { // by its revision
		t.Errorf("the second time changed it: %v", again)
	}
	if both := w.operator().ack(x.Id); !slices.Equal(both.AcknowledgedBy, []string{"boss", "system"}) {
		t.Errorf("acknowledged by %v", both.AcknowledgedBy)
	}
}

func TestResolve_NotifiesAllInvolvedAndWithdrawsTheNotifications(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, ops, dba := w.agent("boss", "lead"), w.agent("a", "builder"), w.agent("ops-1", "ops"), w.agent("dba-1", "dba")
	x := a.raise(&pb.RaiseBlockerRequest{Recipients: []*pb.BlockerRecipient{agentNamed("dba-1"), roleNamed("lead")}})
	ops.ack(x.Id)
	w.Clock.Advance(90 * time.Second)
	got := dba.resolve(x.Id, "granted")
	if got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.ResolvedBy != "dba-1" || got.Resolution != "granted" ||
		got.TimeBlocked.AsDuration() != 90*time.Second {
		t.Errorf("resolved %v", got)
	}
	for _, who := range []*actor{lead, a, ops} {
		n := who.notices("response")
		if len(n) != 1 || n[0]["blocker_id"] != x.Id || n[0]["resolution"] != "granted" || n[0]["time_blocked_seconds"] != 90.0 {
			t.Errorf("%s has the notices %v", who.name, n)
		} else if text, _ := n[0]["notice"].(string); !strings.HasSuffix(text, "; resolution: granted") {
			t.Errorf("the notice %q lacks the resolution", text)
		}
	}
	if n := dba.notices("response"); len(n) != 0 {
		t.Errorf("the agent that resolved it has the notices %v", n)
	}
	if left := append(lead.claimed(), dba.claimed()...); len(left) != 0 {
		t.Errorf("the notifications %v are left", left)
	}
	_, err := lead.ResolveBlocker(lead.ctx, &pb.ResolveBlockerRequest{Id: x.Id})
	refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
	_, err = lead.AcknowledgeBlocker(lead.ctx, &pb.AcknowledgeBlockerRequest{Id: x.Id})
	refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
	w.Clock.Advance(time.Hour)
	if later := a.get(x.Id); later.TimeBlocked.AsDuration() != 90*time.Second {
		t.Errorf("an hour later it says %v", later.TimeBlocked.AsDuration())
	}
	if d := cmp.Diff([]string{"blocker.acknowledged", "blocker.encountered", "blocker.resolved"}, a.typesOf("blocker.*")); d != "" {
		t.Error(d)
	}
}

func TestResolve_OfManyCallersOneResolves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	x := a.raise(&pb.RaiseBlockerRequest{})
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := a.ResolveBlocker(a.ctx, &pb.ResolveBlockerRequest{Id: x.Id})
			done <- err
		}()
	}
	succeeded := 0
	for range 8 {
		if err := <-done; err == nil {
			succeeded++
		} else {
			refused(t, err, codes.FailedPrecondition, "BLOCKER_RESOLVED")
		}
	}
	if succeeded != 1 {
		t.Errorf("%d calls resolved it", succeeded)
	}
}

func TestGet_WaitsUntilTheBlockerIsResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "lead")
	x := a.raise(&pb.RaiseBlockerRequest{})
	got := make(chan *pb.Blocker)
	go func() {
		out, err := a.GetBlocker(a.ctx, &pb.GetBlockerRequest{Id: x.Id, Wait: durationpb.New(time.Hour)})
		if err != nil {
			t.Error(err)
		}
		got <- out.GetBlocker()
	}()
	b.ack(x.Id) // does not end the wait
	b.resolve(x.Id, "done")
	if x := <-got; x.GetState() != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("the wait returned %v", x)
	}
	_, err := a.GetBlocker(a.ctx, &pb.GetBlockerRequest{Id: "b-999999"})
	refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
}

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	on := func(name string) *pb.AwaitedObject {
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: name}}
	}
	ids := []string{
		a.raise(&pb.RaiseBlockerRequest{TaskId: "t1", Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_LOW}).Id,
		b.raise(&pb.RaiseBlockerRequest{TaskId: "t1", Awaited: on("a")}).Id,
		a.raise(&pb.RaiseBlockerRequest{Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_CRITICAL}).Id,
	}
	b.ack(ids[2])
	a.resolve(ids[0], "")
	list := func(in *pb.ListBlockersRequest) (got []string) {
		t.Helper()
		for {
			out, err := a.ListBlockers(a.ctx, in)
			must(t, err)
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
	_, err := a.ListBlockers(a.ctx, &pb.ListBlockersRequest{States: []pb.BlockerState{7}})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

func agentNamed(name string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: name}}
}

func roleNamed(name string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: name}}
}
