package handoffs_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

func TestHandoff_IsARequestAndAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	a.upload("spec.yaml", "openapi: 3.1.0")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "Users log in.", Artifacts: []string{"spec.yaml"}}})
	mail := b.claimed()
	if len(mail) != 1 || mail[0].Type != "handoff_request" || mail[0].Sender != "a" || mail[0].TaskId != "t1" || mail[0].Priority != 7 ||
		!strings.Contains(mail[0].Body, "Users log in.") || !slices.Equal(mail[0].Artifacts, []string{"spec.yaml"}) || !strings.Contains(mail[0].Payload, h.Id) {
		t.Fatalf("the recipient got %v", mail)
	}
	out, err := b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Notes: "thanks"})
	must(t, err)
	if n := a.notices("handoff_accepted"); len(n) != 1 || n[0]["handoff_id"] != h.Id || n[0]["accepted_by"] != "b" || n[0]["notes"] != "thanks" {
		t.Errorf("the sender has %v", n)
	}
	if out.Handoff.Notes != "thanks" {
		t.Errorf("accepted %v", out.Handoff)
	}
	if left := b.claimed(); len(left) != 0 {
		t.Errorf("the request is still claimed: %v", left)
	}
	h = a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	_, err = b.RejectHandoff(b.ctx, &pb.RejectHandoffRequest{Id: h.Id})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT") // without notes
	_, err = b.RejectHandoff(b.ctx, &pb.RejectHandoffRequest{Id: h.Id, Notes: "no time"})
	must(t, err)
	if n := a.notices("handoff_rejected"); len(n) != 1 || n[0]["notes"] != "no time" {
		t.Errorf("the sender has %v", n)
	} else if text, _ := n[0]["notice"].(string); !strings.HasSuffix(text, "; notes: no time") {
		t.Errorf("the notice %q lacks the notes", text)
	}
}

func TestHandoff_IsSettledOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, stranger := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("s", "scribe")
	settlers := map[string]func(x *actor, id string) error{
		"accept": func(x *actor, id string) error {
			_, err := x.AcceptHandoff(x.ctx, &pb.AcceptHandoffRequest{Id: id})
			return err
		},
		"reject": func(x *actor, id string) error {
			_, err := x.RejectHandoff(x.ctx, &pb.RejectHandoffRequest{Id: id, Notes: "no"})
			return err
		},
		"cancel": func(x *actor, id string) error {
			_, err := x.CancelHandoff(x.ctx, &pb.CancelHandoffRequest{Id: id})
			return err
		},
	}
	by := map[string]*actor{"accept": b, "reject": b, "cancel": a}
	for first, settle := range settlers {
		h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
		must(t, settle(by[first], h.Id))
		for then, again := range settlers {
			if refused(t, again(by[then], h.Id), codes.FailedPrecondition, "HANDOFF_CLOSED"); t.Failed() {
				t.Fatalf("%s after %s", then, first)
			}
		}
		if len(b.claimed()) != 0 {
			t.Errorf("after %s the request is left", first)
		}
	}
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	refused(t, settlers["accept"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["accept"](a, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["reject"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["cancel"](b, h.Id), codes.PermissionDenied, "NOT_THE_SENDER")
	refused(t, settlers["accept"](w.actor(""), h.Id), codes.FailedPrecondition, "AGENT_REQUIRED")
	refused(t, settlers["accept"](b, "h-999999"), codes.NotFound, "HANDOFF_NOT_FOUND")
	must(t, settlers["cancel"](w.actor(""), h.Id))
}

func TestCreate_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	fence := b.lock("src/")
	for name, c := range map[string]struct {
		in     *pb.CreateHandoffRequest
		code   codes.Code
		reason string
	}{
		"no title":            {&pb.CreateHandoffRequest{ToAgent: "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"no recipient":        {&pb.CreateHandoffRequest{Title: "x"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"two recipients":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", ToRole: "builder"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"itself":              {&pb.CreateHandoffRequest{Title: "x", ToAgent: "a"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an unknown agent":    {&pb.CreateHandoffRequest{Title: "x", ToAgent: "z"}, codes.NotFound, "AGENT_NOT_FOUND"},
		"its own role alone":  {&pb.CreateHandoffRequest{Title: "x", ToRole: "architect"}, codes.NotFound, "ROLE_NOT_FOUND"},
		"a foreign lock":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Fences: []int64{fence}}, codes.FailedPrecondition, "NOT_HELD"},
		"no task to transfer": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TransferTask: true}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a task not held":     {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TaskId: "t1", TransferTask: true}, codes.FailedPrecondition, "NOT_HELD"},
		"a bad link": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b",
			Content: &pb.HandoffContent{ContextLinks: []*pb.ContextLink{{Target: "x"}}}}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"too much text": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Content: &pb.HandoffContent{
			NextSteps: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100), KnownIssues: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100)}},
			codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		_, err := a.CreateHandoff(a.ctx, c.in)
		if refused(t, err, c.code, c.reason); t.Failed() {
			t.Fatal(name)
		}
	}
	if left := b.claimed(); len(left) != 0 {
		t.Errorf("requests %v were sent", left)
	}
}

func TestCreate_RefusesAnArtifactThatTheSessionDoesNotHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	a.upload("docs/plan.md", "one")
	for missing, c := range map[string]struct{ reason, resource, says string }{
		"docs/plan.txt":  {"ARTIFACT_NOT_FOUND", "docs/plan.txt", "did you mean docs/plan.md?"},
		"docs/plan.md@2": {"VERSION_NOT_FOUND", "docs/plan.md@2", "its newest version is 1"},
		"../secret":      {"ARTIFACT_NOT_FOUND", "../secret", "must be uploaded before the handoff"},
	} {
		_, err := a.CreateHandoff(a.ctx, &pb.CreateHandoffRequest{
			Title: "x", ToAgent: "b", Content: &pb.HandoffContent{Artifacts: []string{"docs/plan.md", "docs/plan.md@1", missing}},
		})
		refused(t, err, codes.NotFound, c.reason)
		if text := status.Convert(err).Message(); !strings.HasPrefix(text, "content.artifacts[2]: ") || !strings.Contains(text, c.says) {
			t.Errorf("%s: %s", missing, text)
		}
		if got := client.Resource(err); got != c.resource {
			t.Errorf("%s: the error names %q", missing, got)
		}
	}
	if left := b.claimed(); len(left) != 0 {
		t.Errorf("requests %v were sent", left)
	}
}

func TestCreate_SameRequestCreatesOneHandoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	in := &pb.CreateHandoffRequest{RequestId: uuid.NewString(), ToAgent: "b"}
	first, second := a.create(in), a.create(in)
	if first.Id != second.Id || len(b.claimed()) != 1 {
		t.Errorf("created %s and %s", first.Id, second.Id)
	}
	accept := &pb.AcceptHandoffRequest{RequestId: uuid.NewString(), Id: first.Id}
	for range 2 {
		_, err := b.AcceptHandoff(b.ctx, accept)
		must(t, err)
	}
}

func TestCheck_NamesTheAgentAndTheTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Checklist: []string{"tests pass", "docs read"}})
	check := func(x *actor, number int32, uncheck bool) (*pb.Handoff, error) {
		out, err := x.CheckHandoffItem(x.ctx, &pb.CheckHandoffItemRequest{Id: h.Id, Number: number, Uncheck: uncheck})
		return out.GetHandoff(), err
	}
	_, err := check(a, 1, false)
	refused(t, err, codes.PermissionDenied, "NOT_THE_RECIPIENT")
	_, err = check(b, 3, false)
	refused(t, err, codes.NotFound, "ITEM_NOT_FOUND")
	got, err := check(b, 2, false)
	must(t, err)
	if i := got.Checklist[1]; !i.Checked || i.CheckedBy != "b" || i.CheckedAt == nil || got.Checked != 1 || got.Checklist[0].Checked {
		t.Errorf("checked %v", got.Checklist)
	}
	again, err := check(b, 2, false)
	must(t, err)
	if again.Revision != got.Revision {
		t.Error("checking it again changed it")
	}
	got, err = check(b, 2, true)
	must(t, err)
	if got.Checked != 0 || got.Checklist[1].CheckedBy != "" {
		t.Errorf("unchecked %v", got.Checklist)
	}
	b.accept(h.Id)
	if got, err = check(b, 1, false); err != nil || got.Checked != 1 {
		t.Errorf("after it is accepted: %v, %v", got, err)
	}
}

func TestGet_WaitsUntilTheHandoffIsSettledAndRendersMarkdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	a.upload("spec.yaml", "one")
	a.upload("spec.yaml", "two")
	h := a.create(&pb.CreateHandoffRequest{
		ToAgent: "b", TaskId: "t1", Checklist: []string{"tests pass"}, Fences: []int64{a.lock("src/")}, Content: &pb.HandoffContent{
			Background: "Users log in.", WorkDone: "The form.", Artifacts: []string{"spec.yaml@2"}, NextSteps: []string{"call it", "test it"},
			KnownIssues: []string{"slow\non Mondays"}, OpenQuestions: []string{"which font?"}, ContextLinks: []*pb.ContextLink{
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_STATE, Target: "default/design", Title: "the design"},
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_URL, Target: "https://example.org/a"},
			},
		},
	})
	got := make(chan *pb.GetHandoffResponse)
	go func() {
		out, err := a.GetHandoff(a.ctx, &pb.GetHandoffRequest{Id: h.Id, Wait: durationpb.New(time.Hour), Markdown: true})
		if err != nil {
			t.Error(err)
		}
		got <- out
	}()
	_, err := b.CheckHandoffItem(b.ctx, &pb.CheckHandoffItemRequest{Id: h.Id, Number: 1}) // does not end the wait
	must(t, err)
	b.accept(h.Id)
	out := <-got
	if out.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED {
		t.Fatalf("the wait returned %v", out)
	}
	for _, want := range []string{
		"# Handoff " + h.Id + ": Login page\n", "- State: accepted\n", "- Task: t1\n", "## Background\n\nUsers log in.\n", "## Work done\n\nThe form.\n",
		"- `spec.yaml@2`\n", "- state `default/design`: the design\n", "- <https://example.org/a>\n", "1. call it\n2. test it\n", "- slow\n  on Mondays\n",
		"- which font?\n", "- [x] tests pass (b, ", "- lock `src/`, fence ",
	} {
		if !strings.Contains(out.Markdown, want) {
			t.Errorf("the Markdown has no %q:\n%s", want, out.Markdown)
		}
	}
}

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	ids := []string{
		a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "long"}}).Id,
		a.create(&pb.CreateHandoffRequest{ToRole: "builder"}).Id,
		b.create(&pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}).Id,
	}
	b.accept(ids[0])
	list := func(in *pb.ListHandoffsRequest) (got []string) {
		t.Helper()
		for {
			out, err := a.ListHandoffs(a.ctx, in)
			must(t, err)
			for _, h := range out.Handoffs {
				if got = append(got, h.Id); h.Content != nil {
					t.Errorf("%s has its content in a list", h.Id)
				}
			}
			if in.PageToken = out.NextPageToken; in.PageToken == "" {
				return got
			}
		}
	}
	for name, c := range map[string]struct {
		in   *pb.ListHandoffsRequest
		want []string
	}{
		"all, one per page": {&pb.ListHandoffsRequest{PageSize: 1}, []string{ids[2], ids[1], ids[0]}},
		"the oldest first":  {&pb.ListHandoffsRequest{OldestFirst: true, PageSize: 1}, ids},
		"pending":           {&pb.ListHandoffsRequest{States: []pb.HandoffState{1}}, []string{ids[2], ids[1]}},
		"accepted":          {&pb.ListHandoffsRequest{States: []pb.HandoffState{2}}, ids[:1]},
		"from b":            {&pb.ListHandoffsRequest{From: "b"}, ids[2:]},
		"to b or its role":  {&pb.ListHandoffsRequest{ToAgent: "b"}, []string{ids[1], ids[0]}},
		"to the role":       {&pb.ListHandoffsRequest{ToRole: "builder"}, ids[1:2]},
		"of the task":       {&pb.ListHandoffsRequest{TaskId: "t1"}, []string{ids[2], ids[0]}},
	} {
		if d := cmp.Diff(c.want, list(c.in)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestAgentGone_RejectsWhatADeregisteredAgentCannotAccept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	_, err := b.registry.DeregisterAgent(b.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	if got := a.get(h.Id); got.State != pb.HandoffState_HANDOFF_STATE_REJECTED || got.SettledBy != "system" {
		t.Errorf("got %v", got)
	}
	if n := a.notices("handoff_rejected"); len(n) != 1 || n[0]["notes"] != "b has deregistered" {
		t.Errorf("the sender has %v", n)
	}
}

func TestCreate_DropsFieldsThatTheBrokerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "architect")
	w.agent("b", "builder")
	in := &pb.CreateHandoffRequest{ToAgent: "b", Content: &pb.HandoffContent{ContextLinks: []*pb.ContextLink{{Kind: 1, Target: "x"}}}}
	in.Content.ContextLinks[0].ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "unknown"))
	h := a.create(in)
	if n := testkit.Number(t, w.Dir(), `SELECT count(*) FROM item_parts WHERE item = ? AND instr(body, 'unknown') > 0`, h.Revision); n != 0 {
		t.Error("the content has an unknown field, which no limit bounds")
	}
}

func TestItems_ShowTheAnswerThatEachSideOwes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToRole: "builder"})
	for who, want := range map[*actor]struct {
		relation pb.WorkRelation
		command  string
	}{
		a: {pb.WorkRelation_WORK_RELATION_OPENED, "handoff get " + h.Id},
		b: {pb.WorkRelation_WORK_RELATION_OWES, "handoff accept " + h.Id},
	} {
		out, err := who.registry.GetAgent(who.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
		must(t, err)
		items := out.GetHoldings().GetWork()
		if len(items) != 1 || items[0].Id != h.Id || items[0].Relation != want.relation || !strings.Contains(strings.Join(items[0].Commands, "\n"), want.command) {
			t.Errorf("%s has the items %v", who.name, items)
		}
	}
	out, err := a.admin.Explain(a.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Handoff{Handoff: h.Id}})
	must(t, err)
	if len(out.Findings) != 1 || !strings.Contains(out.Findings[0].Summary, "role:builder has not answered") {
		t.Errorf("explain says %v", out.Findings)
	}
}

func TestHandoff_SurvivesARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{a.lock("src/")}})
	w.Restart()
	if got := b.accept(h.Id); got.Grants[0].NewFence == 0 || !b.writes(got.Grants[0].NewFence) {
		t.Errorf("accepted %v", got)
	}
}

func TestCreate_SessionHasAThousandPendingHandoffs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	_, err := pb.NewSessionServiceClient(w.Operator()).ConfigureSession(a.ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0)},
	})
	must(t, err)
	var first string
	for i := range 1000 {
		if h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"}); i == 0 {
			first = h.Id
		}
	}
	_, err = a.CreateHandoff(a.ctx, &pb.CreateHandoffRequest{Title: "one more", ToAgent: "b"})
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_HANDOFFS")
	b.accept(first)
	a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
}

func TestDamage_OfOneHandoffStopsNoList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	damaged, sound := a.create(&pb.CreateHandoffRequest{ToAgent: "b"}), a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	for _, as := range []string{`x'0a' || item`, `x''`} { // what cannot be decoded, and what is another item
		w.Restart(func() {
			testkit.Change(t, w.Dir(), `CREATE TABLE sound AS SELECT item AS v FROM items WHERE id = ?`, damaged.Revision)
			testkit.Change(t, w.Dir(), `UPDATE items SET item = `+as+` WHERE id = ?`, damaged.Revision)
		})
		list, err := a.ListHandoffs(a.ctx, &pb.ListHandoffsRequest{})
		must(t, err)
		if len(list.Handoffs) != 1 || list.Handoffs[0].Id != sound.Id {
			t.Errorf("beside a damaged handoff, the list has %v", list.Handoffs)
		}
		if _, err := b.GetHandoff(b.ctx, &pb.GetHandoffRequest{Id: damaged.Id}); status.Code(err) != codes.Internal {
			t.Errorf("a damaged handoff: %v", err)
		}
		w.Restart(func() {
			testkit.Change(t, w.Dir(), `UPDATE items SET item = (SELECT v FROM sound) WHERE id = ?`, damaged.Revision)
			testkit.Change(t, w.Dir(), `DROP TABLE sound`)
		})
	}
	b.accept(damaged.Id)
}
