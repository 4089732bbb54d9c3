package catalog_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func kind(a *apptest.Actor, name string) *pb.MessageType {
	a.Helper()
	return apptest.Must(a, a.GetMessageType, &pb.GetMessageTypeRequest{Name: name}).Type
}

// fits reports whether a send of this type and payload is accepted.
func fits(a *apptest.Actor, kind, payload string) bool {
	a.Helper()
	_, err := send(a, &pb.Message{Type: kind, Payload: payload, Body: "text"})
	if err != nil && testkit.Reason(err) != "PAYLOAD_INVALID" {
		a.Fatal(err)
	}
	return err == nil
}

func TestRegister_ReplacesTheSchemaOfABuiltInTypeInItsSession(t *testing.T) {
	t.Parallel()
	w := start(t)
	o, lead, b := w.Root(), w.Agent("a", "lead"), w.Agent("b", "")
	refuse := &pb.SessionSettings{UnknownTypes: pb.TypePolicy_TYPE_POLICY_REFUSE, InvalidPayloads: pb.TypePolicy_TYPE_POLICY_REFUSE}
	w.Root().Configure(refuse)
	before := kind(b, "context_query")
	if !before.BuiltIn || before.Version != 0 || before.RegisteredBy != "" {
		t.Errorf("before: %v", before)
	}
	strict := &pb.RegisterMessageTypeRequest{
		Name: "context.query", Example: `{"query":"What?"}`, Aliases: []string{"lookup"},
		Schema: `{"type":"object","required":["query"],"properties":{"query":{"type":"string"}},"additionalProperties":false}`,
	}
	made := apptest.Must(t, lead.RegisterMessageType, strict)
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
		check(kind(b, name))
		for payload, accepted := range map[string]bool{
			`{"query":"What?"}`: true, `{}`: false, `{"query":"What?","keys":["a"]}`: false, "": true,
		} {
			if got := fits(o, name, payload); got != accepted {
				t.Errorf("%s with %q: accepted %v, want %v", name, payload, got, accepted)
			}
		}
	}
	w.Restart()
	o, lead, b = w.Root(), w.Agent("a", "lead"), w.Agent("b", "")
	check(kind(b, "context.query"))
	if fits(o, "context_query", `{}`) {
		t.Error("the schema of the session does not count after a restart")
	}

	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other", Settings: refuse})
	other := w.Actor("other", "")
	if got := kind(other, "context_query"); got.RegisteredBy != "" || got.Schema == strict.Schema {
		t.Errorf("in another session: %v", got)
	}

	wider := apptest.Must(t, lead.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "ContextQuery", Title: "Anything.", Schema: `{"type":"string"}`})
	if !wider.Replaced || wider.Type.Version != 2 || wider.Type.Title != "Anything." || wider.Type.Family != "context" {
		t.Errorf("registered again: %v", wider)
	}
	if !fits(o, "context_query", `"text"`) || fits(o, "context_query", `{"query":"What?"}`) {
		t.Error("the second schema does not count")
	}
	var listed []string
	list := apptest.Must(t, b.ListMessageTypes, &pb.ListMessageTypesRequest{Family: "context"})
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
	w := start(t)
	lead, b := w.Agent("a", "lead"), w.Agent("b", "builder")
	r := apptest.Must(t, lead.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "halt", Schema: `{"required":["reason"]}`})
	if !r.Type.Directive || r.Type.Family != "control" || !slices.Contains(r.Type.Aliases, "agent_halt") {
		t.Errorf("registered %v", r.Type)
	}
	if _, err := send(b, &pb.Message{Type: "AgentHalt", Payload: `{"reason":"x"}`}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an agent that is no director sends it: %v", err)
	}
	if sent := sent(lead, "agent.halt", `{}`); len(sent.Warnings) != 1 {
		t.Errorf("the schema of the session: warnings %q", sent.Warnings)
	}
	sent(lead, "text", "")
	claims := apptest.Must(t, b.ClaimMessages, &pb.ClaimMessagesRequest{Max: 10})
	if len(claims.Claims) != 1 || claims.Claims[0].Message.Type != "halt" || claims.Claims[0].Message.Priority != 10 {
		t.Errorf("after a halt: %v", claims)
	}
}
