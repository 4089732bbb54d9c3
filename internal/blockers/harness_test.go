package blockers_test

import (
	"context"
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
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a daemon whose clock stands still until the test advances it.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{apptest.Start(t, apptest.WithFakeClock()), t}
}

// An actor is one identity's view of the daemon. The operator has no name.
type actor struct {
	pb.BlockerServiceClient
	registry pb.AgentServiceClient
	tasks    pb.TaskServiceClient
	messages pb.MessageServiceClient
	events   pb.EventServiceClient
	sessions pb.SessionServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	name string
	ctx  context.Context
}

func (w *world) actor(name string) *actor { return w.in("default", name) }

func (w *world) in(session, name string) *actor {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*apptest.Patience)
	w.t.Cleanup(cancel)
	return &actor{
		pb.NewBlockerServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewTaskServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewEventServiceClient(conn),
		pb.NewSessionServiceClient(conn), pb.NewAdminServiceClient(conn), w.t, name, ctx,
	}
}

func (w *world) operator() *actor { return w.actor("") }

// agent registers an agent with a long lease.
func (w *world) agent(name, role string) *actor {
	w.t.Helper()
	return w.brief(name, role, apptest.LongLease)
}

// brief registers an agent with a lease.
func (w *world) brief(name, role string, lease time.Duration) *actor {
	w.t.Helper()
	a := w.actor(name)
	_, err := a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(lease)})
	must(w.t, err)
	return a
}

// raise raises a blocker.
func (a *actor) raise(in *pb.RaiseBlockerRequest) *pb.Blocker {
	a.t.Helper()
	if in.Reason == "" {
		in.Reason = "no credentials"
	}
	out, err := a.RaiseBlocker(a.ctx, in)
	must(a.t, err)
	return out.Blocker
}

func (a *actor) ack(id string) *pb.Blocker {
	a.t.Helper()
	out, err := a.AcknowledgeBlocker(a.ctx, &pb.AcknowledgeBlockerRequest{Id: id})
	must(a.t, err)
	return out.Blocker
}

func (a *actor) resolve(id, how string) *pb.Blocker {
	a.t.Helper()
	out, err := a.ResolveBlocker(a.ctx, &pb.ResolveBlockerRequest{Id: id, Resolution: how})
	must(a.t, err)
	return out.Blocker
}

func (a *actor) get(id string) *pb.Blocker {
	a.t.Helper()
	out, err := a.GetBlocker(a.ctx, &pb.GetBlockerRequest{Id: id})
	must(a.t, err)
	return out.Blocker
}

// completed reports the status completed.
func (a *actor) completed() {
	a.t.Helper()
	_, err := a.registry.Heartbeat(a.ctx, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_COMPLETED})
	must(a.t, err)
}

// follow subscribes to events of a type and returns a function that waits for the next one.
func (a *actor) follow(kind string) func() *pb.Event {
	a.t.Helper()
	filter := &pb.EventFilter{Types: []string{kind}}
	stream, err := a.events.SubscribeEvents(a.ctx, &pb.SubscribeEventsRequest{Filter: filter})
	must(a.t, err)
	first, err := stream.Recv() // the first mark: events from now on follow
	must(a.t, err)
	revision := first.Revision
	var page []*pb.Event
	return func() *pb.Event {
		a.t.Helper()
		for len(page) == 0 {
			in, err := stream.Recv()
			if status.Code(err) == codes.Unavailable { // the clock was advanced while the stream read a page
				stream, err = a.events.SubscribeEvents(a.ctx, &pb.SubscribeEventsRequest{Filter: filter, AfterRevision: &revision})
				must(a.t, err)
				continue
			}
			must(a.t, err)
			page, revision = in.Events, in.Revision
		}
		e := page[0]
		page = page[1:]
		return e
	}
}

// claimed claims what waits for the agent and returns the types and payloads.
func (a *actor) claimed() []*pb.Message {
	a.t.Helper()
	out, err := a.messages.ClaimMessages(a.ctx, &pb.ClaimMessagesRequest{Max: 100})
	must(a.t, err)
	var list []*pb.Message
	for _, c := range out.Claims {
		list = append(list, c.Message)
	}
	return list
}

// notices returns the payloads of the unread notices of a type, with the subject as "notice".
func (a *actor) notices(kind string) []map[string]any {
	a.t.Helper()
	out, err := a.registry.Heartbeat(a.ctx, &pb.HeartbeatRequest{Notices: true})
	must(a.t, err)
	var list []map[string]any
	for _, n := range out.Notices {
		if n.Type == kind {
			o := object(a.t, n.Payload)
			o["notice"] = n.Subject
			list = append(list, o)
		}
	}
	return list
}

// typesOf returns the types of the events of blockers, in order.
func (a *actor) typesOf(prefix string) []string {
	a.t.Helper()
	out, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{prefix}}})
	must(a.t, err)
	var types []string
	for _, e := range out.Events {
		types = append(types, e.Type)
	}
	slices.Sort(types)
	return types
}

func object(t testing.TB, text string) map[string]any {
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %v %s", err, testkit.Reason(err), code, reason)
	}
}
