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
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestHandoff_IsARequestAndAnAnswer(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	upload(a, "spec.yaml", "openapi: 3.1.0")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "Users log in.", Artifacts: []string{"spec.yaml"}}})
	mail := claimed(b)
	if len(mail) != 1 || mail[0].Type != "handoff_request" || mail[0].Sender != "a" || mail[0].TaskId != "t1" || mail[0].Priority != 7 ||
		!strings.Contains(mail[0].Body, "Users log in.") || !slices.Equal(mail[0].Artifacts, []string{"spec.yaml"}) || !strings.Contains(mail[0].Payload, h.Id) {
		t.Fatalf("the recipient got %v", mail)
	}
	out := apptest.Must(t, b.AcceptHandoff, &pb.AcceptHandoffRequest{Id: h.Id, Notes: "thanks"})
	if n := notices(a, "handoff_accepted"); len(n) != 1 || n[0]["handoff_id"] != h.Id || n[0]["accepted_by"] != "b" || n[0]["notes"] != "thanks" {
		t.Errorf("the sender has %v", n)
	}
	if out.Handoff.Notes != "thanks" {
		t.Errorf("accepted %v", out.Handoff)
	}
	if left := claimed(b); len(left) != 0 {
		t.Errorf("the request is still claimed: %v", left)
	}
	h = create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
	apptest.Refuses(t, b.RejectHandoff, &pb.RejectHandoffRequest{Id: h.Id}, codes.InvalidArgument, "INVALID_ARGUMENT") // without notes
	apptest.Must(t, b.RejectHandoff, &pb.RejectHandoffRequest{Id: h.Id, Notes: "no time"})
	if n := notices(a, "handoff_rejected"); len(n) != 1 || n[0]["notes"] != "no time" {
		t.Errorf("the sender has %v", n)
	} else if text, _ := n[0]["notice"].(string); !strings.HasSuffix(text, "; notes: no time") {
		t.Errorf("the notice %q lacks the notes", text)
	}
}

func TestHandoff_IsSettledOnce(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b, stranger := w.Agent("a", "architect"), w.Agent("b", "builder"), w.Agent("s", "scribe")
	settlers := map[string]func(x *apptest.Actor, id string) error{
		"accept": func(x *apptest.Actor, id string) error {
			return apptest.Err(x.AcceptHandoff(x.Ctx, &pb.AcceptHandoffRequest{Id: id}))
		},
		"reject": func(x *apptest.Actor, id string) error {
			return apptest.Err(x.RejectHandoff(x.Ctx, &pb.RejectHandoffRequest{Id: id, Notes: "no"}))
		},
		"cancel": func(x *apptest.Actor, id string) error {
			return apptest.Err(x.CancelHandoff(x.Ctx, &pb.CancelHandoffRequest{Id: id}))
		},
	}
	by := map[string]*apptest.Actor{"accept": b, "reject": b, "cancel": a}
	for first, settle := range settlers {
		h := create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
		apptest.NoError(t, settle(by[first], h.Id))
		for then, again := range settlers {
			if !apptest.Refused(t, again(by[then], h.Id), codes.FailedPrecondition, "HANDOFF_CLOSED") {
				t.Fatalf("%s after %s", then, first)
			}
		}
		if len(claimed(b)) != 0 {
			t.Errorf("after %s the request is left", first)
		}
	}
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
	apptest.Refused(t, settlers["accept"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	apptest.Refused(t, settlers["accept"](a, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	apptest.Refused(t, settlers["reject"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	apptest.Refused(t, settlers["cancel"](b, h.Id), codes.PermissionDenied, "NOT_THE_SENDER")
	apptest.Refused(t, settlers["accept"](w.Root(), h.Id), codes.FailedPrecondition, "AGENT_REQUIRED")
	apptest.Refused(t, settlers["accept"](b, "h-999999"), codes.NotFound, "HANDOFF_NOT_FOUND")
	apptest.NoError(t, settlers["cancel"](w.Root(), h.Id))
}

// numbers returns 1 to n.
func numbers(n int64) (all []int64) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func TestCreate_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	fence := lock(b, "src/")
	for name, c := range map[string]struct {
		in     *pb.CreateHandoffRequest
		code   codes.Code
		reason string
	}{
		"no recipient":        {&pb.CreateHandoffRequest{Title: "x"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"two recipients":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", ToRole: "builder"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"itself":              {&pb.CreateHandoffRequest{Title: "x", ToAgent: "a"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an unknown agent":    {&pb.CreateHandoffRequest{Title: "x", ToAgent: "z"}, codes.NotFound, "AGENT_NOT_FOUND"},
		"its own role alone":  {&pb.CreateHandoffRequest{Title: "x", ToRole: "architect"}, codes.NotFound, "ROLE_NOT_FOUND"},
		"a foreign lock":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Fences: []int64{fence}}, codes.FailedPrecondition, "NOT_HELD"},
		"no task to transfer": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TransferTask: true}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a task not held":     {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TaskId: "t1", TransferTask: true}, codes.FailedPrecondition, "NOT_HELD"},
		"101 fences": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Fences: numbers(101)},
			codes.InvalidArgument, "INVALID_ARGUMENT"},
		"too much text": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Content: &pb.HandoffContent{
			NextSteps: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100), KnownIssues: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100)}},
			codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		if err := apptest.Err(a.CreateHandoff(a.Ctx, c.in)); !apptest.Refused(t, err, c.code, c.reason) {
			t.Fatal(name)
		}
	}
	if left := claimed(b); len(left) != 0 {
		t.Errorf("requests %v were sent", left)
	}
}

func TestCreate_RefusesAnArtifactThatTheSessionDoesNotHave(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	upload(a, "docs/plan.md", "one")
	for missing, c := range map[string]struct{ reason, resource, says string }{
		"docs/plan.txt":  {"ARTIFACT_NOT_FOUND", "docs/plan.txt", "did you mean docs/plan.md?"},
		"docs/plan.md@2": {"VERSION_NOT_FOUND", "docs/plan.md@2", "its newest version is 1"},
		"../secret":      {"ARTIFACT_NOT_FOUND", "../secret", "must be uploaded before the handoff"},
	} {
		_, err := a.CreateHandoff(a.Ctx, &pb.CreateHandoffRequest{
			Title: "x", ToAgent: "b", Content: &pb.HandoffContent{Artifacts: []string{"docs/plan.md", "docs/plan.md@1", missing}},
		})
		apptest.Refused(t, err, codes.NotFound, c.reason)
		if text := status.Convert(err).Message(); !strings.HasPrefix(text, "content.artifacts[2]: ") || !strings.Contains(text, c.says) {
			t.Errorf("%s: %s", missing, text)
		}
		if got := client.Resource(err); got != c.resource {
			t.Errorf("%s: the error names %q", missing, got)
		}
	}
	if left := claimed(b); len(left) != 0 {
		t.Errorf("requests %v were sent", left)
	}
}

func TestCreate_SameRequestCreatesOneHandoff(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	in := &pb.CreateHandoffRequest{RequestId: uuid.NewString(), ToAgent: "b"}
	first, second := create(a, in), create(a, in)
	if first.Id != second.Id || len(claimed(b)) != 1 {
		t.Errorf("created %s and %s", first.Id, second.Id)
	}
	accept := &pb.AcceptHandoffRequest{RequestId: uuid.NewString(), Id: first.Id}
	for range 2 {
		apptest.Must(t, b.AcceptHandoff, accept)
	}
}

func TestCheck_NamesTheAgentAndTheTime(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Checklist: []string{"tests pass", "docs read"}})
	check := func(x *apptest.Actor, number int32, uncheck bool) (*pb.Handoff, error) {
		out, err := x.CheckHandoffItem(x.Ctx, &pb.CheckHandoffItemRequest{Id: h.Id, Number: number, Uncheck: uncheck})
		return out.GetHandoff(), err
	}
	apptest.Refused(t, apptest.Err(check(a, 1, false)), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	apptest.Refused(t, apptest.Err(check(b, 3, false)), codes.NotFound, "ITEM_NOT_FOUND")
	got, err := check(b, 2, false)
	apptest.NoError(t, err)
	if i := got.Checklist[1]; !i.Checked || i.CheckedBy != "b" || i.CheckedAt == nil || got.Checked != 1 || got.Checklist[0].Checked {
		t.Errorf("checked %v", got.Checklist)
	}
	again, err := check(b, 2, false)
	apptest.NoError(t, err)
	if again.Revision != got.Revision {
		t.Error("checking it again changed it")
	}
	got, err = check(b, 2, true)
	apptest.NoError(t, err)
	if got.Checked != 0 || got.Checklist[1].CheckedBy != "" {
		t.Errorf("unchecked %v", got.Checklist)
	}
	accept(b, h.Id)
	if got, err = check(b, 1, false); err != nil || got.Checked != 1 {
		t.Errorf("after it is accepted: %v, %v", got, err)
	}
}

func TestGet_WaitsUntilTheHandoffIsSettledAndRendersMarkdown(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	upload(a, "spec.yaml", "one")
	upload(a, "spec.yaml", "two")
	h := create(a, &pb.CreateHandoffRequest{
		ToAgent: "b", TaskId: "t1", Checklist: []string{"tests pass"}, Fences: []int64{lock(a, "src/")}, Content: &pb.HandoffContent{
			Background: "Users log in.", WorkDone: "The form.", Artifacts: []string{"spec.yaml@2"}, NextSteps: []string{"call it", "test it"},
			KnownIssues: []string{"slow\non Mondays"}, OpenQuestions: []string{"which font?"}, ContextLinks: []*pb.ContextLink{
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_STATE, Target: "default/design", Title: "the design"},
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_URL, Target: "https://example.org/a"},
			},
		},
	})
	got := make(chan *pb.GetHandoffResponse)
	go func() {
		out, err := a.GetHandoff(a.Ctx, &pb.GetHandoffRequest{Id: h.Id, Wait: durationpb.New(time.Hour), Markdown: true})
		if err != nil {
			t.Error(err)
		}
		got <- out
	}()
	// This does not end the wait.
	apptest.Must(t, b.CheckHandoffItem, &pb.CheckHandoffItemRequest{Id: h.Id, Number: 1})
	accept(b, h.Id)
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
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	ids := []string{
		create(a, &pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "long"}}).Id,
		create(a, &pb.CreateHandoffRequest{ToRole: "builder"}).Id,
		create(b, &pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}).Id,
	}
	accept(b, ids[0])
	list := func(in *pb.ListHandoffsRequest) (got []string) {
		t.Helper()
		for {
			out := apptest.Must(t, a.ListHandoffs, in)
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
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
	apptest.Must(t, b.DeregisterAgent, &pb.DeregisterAgentRequest{})
	if got := get(a, h.Id); got.State != pb.HandoffState_HANDOFF_STATE_REJECTED || got.SettledBy != "system" {
		t.Errorf("got %v", got)
	}
	if n := notices(a, "handoff_rejected"); len(n) != 1 || n[0]["notes"] != "b has deregistered" {
		t.Errorf("the sender has %v", n)
	}
}

func TestCreate_DropsFieldsThatTheBrokerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "architect")
	w.Agent("b", "builder")
	in := &pb.CreateHandoffRequest{ToAgent: "b", Content: &pb.HandoffContent{ContextLinks: []*pb.ContextLink{{Kind: 1, Target: "x"}}}}
	in.Content.ContextLinks[0].ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "unknown"))
	h := create(a, in)
	if n := testkit.Number(t, w.Dir(), `SELECT count(*) FROM item_parts WHERE item = ? AND instr(body, 'unknown') > 0`, h.Revision); n != 0 {
		t.Error("the content has an unknown field, which no limit bounds")
	}
}

func TestItems_ShowTheAnswerThatEachSideOwes(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	h := create(a, &pb.CreateHandoffRequest{ToRole: "builder"})
	for who, want := range map[*apptest.Actor]struct {
		relation pb.WorkRelation
		calls    []string
	}{
		a: {pb.WorkRelation_WORK_RELATION_OPENED, []string{
			`GetHandoff {"id":"` + h.Id + `","wait":"600s"}`, `CancelHandoff {"id":"` + h.Id + `"}`,
		}},
		b: {pb.WorkRelation_WORK_RELATION_OWES, []string{
			`AcceptHandoff {"id":"` + h.Id + `"}`, `RejectHandoff {"id":"` + h.Id + `"} notes`, `GetHandoff {"id":"` + h.Id + `"}`,
		}},
	} {
		out := apptest.Must(t, who.GetAgent, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
		items := out.GetHoldings().GetWork()
		if len(items) != 1 || items[0].Id != h.Id || items[0].Relation != want.relation || !slices.Equal(testkit.Calls(items[0].Calls), want.calls) {
			t.Errorf("%s has the items %v", who.Name, items)
		}
	}
	out := apptest.Must(t, a.Explain, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Handoff{Handoff: h.Id}})
	if len(out.Findings) != 1 || !strings.Contains(out.Findings[0].Summary, "role:builder has not answered") {
		t.Errorf("explain says %v", out.Findings)
	}
}

func TestHandoff_SurvivesARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	h := create(a, &pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{lock(a, "src/")}})
	w.Restart()
	if got := accept(b, h.Id); got.Grants[0].NewFence == 0 || !writes(b, got.Grants[0].NewFence) {
		t.Errorf("accepted %v", got)
	}
}

func TestCreate_SessionHasAThousandPendingHandoffs(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	w.Root().Configure(&pb.SessionSettings{SendRate: new(0.0)})
	var first string
	for i := range 1000 {
		if h := create(a, &pb.CreateHandoffRequest{ToAgent: "b"}); i == 0 {
			first = h.Id
		}
	}
	apptest.Refuses(t, a.CreateHandoff, &pb.CreateHandoffRequest{Title: "one more", ToAgent: "b"},
		codes.ResourceExhausted, "TOO_MANY_HANDOFFS")
	accept(b, first)
	create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
}

func TestDamage_OfOneHandoffStopsNoList(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a, b := w.Agent("a", "architect"), w.Agent("b", "builder")
	damaged, sound := create(a, &pb.CreateHandoffRequest{ToAgent: "b"}), create(a, &pb.CreateHandoffRequest{ToAgent: "b"})
	for _, as := range []string{`x'0a' || item`, `x''`} { // what cannot be decoded, and what is another item
		w.Restart(func() {
			testkit.Change(t, w.Dir(), `CREATE TABLE sound AS SELECT item AS v FROM items WHERE id = ?`, damaged.Revision)
			testkit.Change(t, w.Dir(), `UPDATE items SET item = `+as+` WHERE id = ?`, damaged.Revision)
		})
		list := apptest.Must(t, a.ListHandoffs, &pb.ListHandoffsRequest{})
		if len(list.Handoffs) != 1 || list.Handoffs[0].Id != sound.Id {
			t.Errorf("beside a damaged handoff, the list has %v", list.Handoffs)
		}
		if _, err := b.GetHandoff(b.Ctx, &pb.GetHandoffRequest{Id: damaged.Id}); status.Code(err) != codes.Internal {
			t.Errorf("a damaged handoff: %v", err)
		}
		w.Restart(func() {
			testkit.Change(t, w.Dir(), `UPDATE items SET item = (SELECT v FROM sound) WHERE id = ?`, damaged.Revision)
			testkit.Change(t, w.Dir(), `DROP TABLE sound`)
		})
	}
	accept(b, damaged.Id)
}
