package rules_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// zero is a text that PostgreSQL cannot keep.
const zero = "x\x00"

// The daemon refuses a zero byte in every text of every request, and names the field, on each store.
func TestZero_IsRefusedInEveryText(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	operator, agent := broker.Operator(), broker.Conn("a")
	apptest.Must(t, broker.Agent("a", "").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "system"}}},
	}})
	tried := 0
	for _, m := range methods() {
		conn := operator
		if m.Name() == "Claim" { // from which operators are excluded
			conn = agent
		}
		for _, p := range texts(m.Input()) {
			f := p.way[len(p.way)-1]
			if m.Name() == "Reply" && filled.MatchString(p.path(false)) {
				continue
			}
			value, path := protoreflect.ValueOfString(zero), p.path(f.IsList())
			if f.IsMap() {
				value = labelled(f, 1)
				value.Map().Set(protoreflect.ValueOfString("k0").MapKey(), protoreflect.ValueOfString(zero))
				path += `["k0"]`
			}
			tried++
			err := call(t, conn, m, p.request([]protoreflect.Value{value}))
			// Some services look at the form of a request id after what they require.
			named := names(err, path) || f.Name() == "request_id"
			if status.Code(err) != codes.InvalidArgument || !named {
				t.Errorf("%s: %s gets %v, which names %v", m.FullName(), path, err, testkit.Fields(err))
			}
		}
	}
	if tried < 300 {
		t.Errorf("only %d texts were found", tried)
	}
}

// texts returns the places of all texts and labels of a request.
func texts(root protoreflect.MessageDescriptor) (all []place) {
	var walk func(p place, d protoreflect.MessageDescriptor)
	walk = func(p place, d protoreflect.MessageDescriptor) {
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			at := place{root, append(p.way[:len(p.way):len(p.way)], f)}
			switch inner := f.Message(); {
			case f.IsMap(), f.Kind() == protoreflect.StringKind:
				all = append(all, at)
			case inner != nil && inner.ParentFile().Package() == root.ParentFile().Package() && !slices.Contains(p.way, f):
				walk(at, inner)
			}
		}
	}
	walk(place{root: root}, root)
	return all
}

// A zero that JSON escapes is no zero byte: each store keeps it, also in a text of which it reads parts.
func TestZero_IsKeptWhereJSONEscapesIt(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	root, a := broker.Root(), broker.Agent("a", "")
	const text = `{"\u0000":["\u0000",{"a":"\u0000"}]}`
	apptest.Must(t, root.RegisterMessageType, &pb.RegisterMessageTypeRequest{
		Name: "escaped", Title: "T", Example: text, Schema: `{"type":"object","title":"\u0000"}`,
	})
	apptest.Must(t, a.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Type: "escaped", Payload: text},
	}})
	apptest.Must(t, a.SaveCheckpoint, &pb.SaveCheckpointRequest{Kind: 1, Data: text})
	apptest.Must(t, a.PublishEvent, &pb.PublishEventRequest{Type: "build.done", Summary: "s", Details: text})
	apptest.Must(t, a.PutState, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: text}}})
	kept := []proto.Message{
		apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "k"}),
		apptest.Must(t, root.GetMessageType, &pb.GetMessageTypeRequest{Name: "escaped"}),
		apptest.Must(t, a.ListEvents, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"build.done"}}}),
		apptest.Must(t, a.ClaimMessages, &pb.ClaimMessagesRequest{}),
	}
	for _, m := range kept {
		if encoded, err := proto.Marshal(m); err != nil || !strings.Contains(string(encoded), text) {
			t.Errorf("%v, %v", m, err)
		}
	}
}
