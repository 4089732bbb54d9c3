package catalog_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

func (a *actor) kind(name string) *pb.MessageType {
	a.t.Helper()
	r, err := a.GetMessageType(a.ctx, &pb.GetMessageTypeRequest{Name: name})
	must(a.t, err)
	return r.Type
}

// fits reports whether a send of this type and payload is accepted.
func (a *actor) fits(kind, payload string) bool {
	a.t.Helper()
	_, err := a.send(&pb.Message{Type: kind, Payload: payload, Body: "text"})
	if err != nil && testkit.Reason(err) != "PAYLOAD_INVALID" {
		a.t.Fatal(err)
	}
	return err == nil
}

func TestRegister_ReplacesTheSchemaOfABuiltInTypeInItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, lead, b := w.operator(), w.agent("a", "lead"), w.agent("b", "")
	refuse := &pb.SessionSettings{UnknownTypes: pb.TypePolicy_TYPE_POLICY_REFUSE, InvalidPayloads: pb.TypePolicy_TYPE_POLICY_REFUSE}
	w.configure(refuse)
	before := b.kind("context_query")
	if !before.BuiltIn || before.Version != 0 || before.RegisteredBy != "" {
		t.Errorf("before: %v", before)
	}
	strict := &pb.RegisterMessageTypeRequest{
		Name: "context.query", Example: `{"query":"What?"}`, Aliases: []string{"lookup"},
		Schema: `{"type":"object","required":["query"],"properties":{"query":{"type":"string"}},"additionalProperties":false}`,
	}
	made := lead.register(strict)
	want := before
	want.Schema, want.Example, want.RegisteredBy, want.Version = strict.Schema, strict.Example, "a", 1
	want.Aliases = append(want.Aliases, "lookup")
	slices.Sort(want.Aliases)
	check := func(got *pb.MessageType) {
		t.Helper()
		if got.RegisteredAt == nil || got.Revision == 0 {
			t.Errorf("no time or revision: %v", got)
		}
		ignored := protocmp.IgnoreFields(&pb.MessageType{}, "registered_at", "revision")
		if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
			t.Error(diff)
		}
	}
	if made.Replaced {
		t.Errorf("replaced a definition of the session: %v", made)
	}
	check(made.Type)
	for _, name := range []string{"ContextQuery", "query.context", "lookup"} {
		check(b.kind(name))
		for payload, fits := range map[string]bool{
			`{"query":"What?"}`: true, `{}`: false, `{"query":"What?","keys":["a"]}`: false, "": true,
		} {
			if got := o.fits(name, payload); got != fits {
				t.Errorf("%s with %q: accepted %v, want %v", name, payload, got, fits)
			}
		}
	}
	w.Restart()
	o, lead, b = w.operator(), w.as(w.Registered("a", "lead")), w.as(w.Registered("b", ""))
	check(b.kind("context.query"))
	if o.fits("context_query", `{}`) {
		t.Error("the schema of the session does not count after a restart")
	}

	_, err := o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: "other", Settings: refuse})
	must(t, err)
	other := w.as(w.In("other", ""))
	if got := other.kind("context_query"); got.RegisteredBy != "" || got.Schema == strict.Schema {
		t.Errorf("in another session: %v", got)
	}

	wider := lead.register(&pb.RegisterMessageTypeRequest{Name: "ContextQuery", Title: "Anything.", Schema: `{"type":"string"}`})
	if !wider.Replaced || wider.Type.Version != 2 || wider.Type.Title != "Anything." || wider.Type.Family != "context" {
		t.Errorf("registered again: %v", wider)
	}
	if !o.fits("context_query", `"text"`) || o.fits("context_query", `{"query":"What?"}`) {
		t.Error("the second schema does not count")
	}
	var listed []string
	list, err := b.ListMessageTypes(b.ctx, &pb.ListMessageTypesRequest{Family: "context"})
	must(t, err)
	for _, kind := range list.Types {
		listed = append(listed, kind.Name)
		if replaced := kind.Name == "context_query"; kind.BuiltIn != true || (kind.Version == 2) != replaced ||
			(kind.RegisteredBy == "a") != replaced {
			t.Errorf("listed %v", kind)
		}
	}
	if !slices.Equal(listed, []string{"context_query", "context_response", "context_updated"}) {
		t.Errorf("listed %q", listed)
	}
}

func TestRegister_AReplacedDirectiveStaysADirective(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, b := w.agent("a", "lead"), w.agent("b", "builder")
	r := lead.register(&pb.RegisterMessageTypeRequest{Name: "halt", Schema: `{"required":["reason"]}`})
	if !r.Type.Directive || r.Type.Family != "control" || !slices.Contains(r.Type.Aliases, "agent_halt") {
		t.Errorf("registered %v", r.Type)
	}
	if _, err := b.send(&pb.Message{Type: "AgentHalt", Payload: `{"reason":"x"}`}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an agent that is no director sends it: %v", err)
	}
	if sent := lead.sent("agent.halt", `{}`); len(sent.Warnings) != 1 {
		t.Errorf("the schema of the session: warnings %q", sent.Warnings)
	}
	lead.sent("text", "")
	claims, err := b.messages.ClaimMessages(b.ctx, &pb.ClaimMessagesRequest{Max: 10})
	must(t, err)
	if len(claims.Claims) != 1 || claims.Claims[0].Message.Type != "halt" || claims.Claims[0].Message.Priority != 10 {
		t.Errorf("after a halt: %v", claims)
	}
}
