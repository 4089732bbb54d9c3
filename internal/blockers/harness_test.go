package blockers_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brief registers an agent with a lease.
func brief(w *apptest.Broker, name, role string, lease time.Duration) *apptest.Actor {
	w.Helper()
	a := w.Actor("default", name)
	apptest.Must(w, a.RegisterAgent, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(lease)})
	return a
}

// raise raises a blocker.
func raise(a *apptest.Actor, in *pb.RaiseBlockerRequest) *pb.Blocker {
	a.Helper()
	if in.Reason == "" {
		in.Reason = "no credentials"
	}
	return apptest.Must(a, a.RaiseBlocker, in).Blocker
}

func ack(a *apptest.Actor, id string) *pb.Blocker {
	a.Helper()
	return apptest.Must(a, a.AcknowledgeBlocker, &pb.AcknowledgeBlockerRequest{Id: id}).Blocker
}

func resolve(a *apptest.Actor, id, how string) *pb.Blocker {
	a.Helper()
	return apptest.Must(a, a.ResolveBlocker, &pb.ResolveBlockerRequest{Id: id, Resolution: how}).Blocker
}

func get(a *apptest.Actor, id string) *pb.Blocker {
	a.Helper()
	return apptest.Must(a, a.GetBlocker, &pb.GetBlockerRequest{Id: id}).Blocker
}

// completed reports the status completed.
func completed(a *apptest.Actor) {
	a.Helper()
	apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_COMPLETED})
}

// follow subscribes to events of a type and returns a function that waits for the next one.
func follow(a *apptest.Actor, kind string) func() *pb.Event {
	a.Helper()
	filter := &pb.EventFilter{Types: []string{kind}}
	stream, err := a.SubscribeEvents(a.Ctx, &pb.SubscribeEventsRequest{Filter: filter})
	apptest.NoError(a, err)
	first, err := stream.Recv() // the first mark: events from now on follow
	apptest.NoError(a, err)
	revision := first.Revision
	var page []*pb.Event
	return func() *pb.Event {
		a.Helper()
		for len(page) == 0 {
			in, err := stream.Recv()
			if status.Code(err) == codes.Unavailable { // the clock was advanced while the stream read a page
				stream, err = a.SubscribeEvents(a.Ctx, &pb.SubscribeEventsRequest{Filter: filter, AfterRevision: &revision})
				apptest.NoError(a, err)
				continue
			}
			apptest.NoError(a, err)
			page, revision = in.Events, in.Revision
		}
		e := page[0]
		page = page[1:]
		return e
	}
}

// claimed claims what waits for the agent and returns the types and payloads.
func claimed(a *apptest.Actor) []*pb.Message {
	a.Helper()
	out := apptest.Must(a, a.ClaimMessages, &pb.ClaimMessagesRequest{Max: 100})
	var list []*pb.Message
	for _, c := range out.Claims {
		list = append(list, c.Message)
	}
	return list
}

// notices returns the payloads of the unread notices of a type, with the subject as "notice".
func notices(a *apptest.Actor, kind string) []map[string]any {
	a.Helper()
	out := apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{Notices: true})
	var list []map[string]any
	for _, n := range out.Notices {
		if n.Type == kind {
			o := object(a, n.Payload)
			o["notice"] = n.Subject
			list = append(list, o)
		}
	}
	return list
}

// typesOf returns the types of the events of blockers, in order.
func typesOf(a *apptest.Actor, prefix string) []string {
	a.Helper()
	var types []string
	for _, e := range a.Events(prefix) {
		types = append(types, e.Type)
	}
	slices.Sort(types)
	return types
}

func object(t apptest.TB, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return o
}

// steps returns the timeline as words: the step, and the recipient or agent.
func steps(x *pb.Blocker) []string {
	var list []string
	for _, e := range x.Timeline {
		word := map[pb.BlockerStep]string{1: "raised", 2: "notified", 3: "acknowledged", 4: "escalated", 5: "resolved", 6: "reopened"}[e.Step]
		switch {
		case e.Recipient.GetRole() != "":
			word += " role:" + e.Recipient.GetRole()
		case e.Recipient.GetAgent() != "":
			word += " " + e.Recipient.GetAgent()
		default:
			word += " by " + e.Agent
		}
		list = append(list, word)
	}
	return list
}
