package state_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Histories(30, 60)
	goleak.VerifyTestMain(m)
}

// patience bounds the calls of a test. The longest test makes 110,000 changes, which take minutes on a busy machine.
const patience = 10 * time.Minute

// A world is a daemon whose clock stands still until the test advances it. At the end of the test its database must be sound.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience })), t}
}

// An actor is one identity's view of the daemon. The system has no name.
type actor struct {
	pb.StateServiceClient
	events   pb.EventServiceClient
	registry pb.AgentServiceClient
	sessions pb.SessionServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	name string
	ctx  context.Context // ends with the test, or when its patience does
}

// in returns somebody's view of a session, who need not be registered.
func (w *world) in(session, name string) *actor {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return &actor{
		pb.NewStateServiceClient(conn), pb.NewEventServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewSessionServiceClient(conn),
		pb.NewAdminServiceClient(conn), w.t, name, ctx,
	}
}

func (w *world) operator() *actor { return w.in("default", "") }

// agent returns a registered agent.
func (w *world) agent(name string) *actor { return w.member("default", name) }

// member returns a registered agent of a session.
func (w *world) member(session, name string) *actor {
	w.t.Helper()
	a := w.in(session, name)
	_, err := a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder"})
	must(w.t, err)
	return a
}

// session makes a session.
func (w *world) session(name string) {
	w.t.Helper()
	o := w.operator()
	_, err := o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: name})
	must(w.t, err)
}

func text(s string) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}
}

func ptr[T any](v T) *T { return &v }

// put writes a key and returns its revision.
func (a *actor) put(key, value string) int64 {
	a.t.Helper()
	return a.write(&pb.PutStateRequest{Key: key, Value: text(value)}).Revision
}

// write makes a put that is accepted.
func (a *actor) write(in *pb.PutStateRequest) *pb.StateEntry {
	a.t.Helper()
	out, err := a.PutState(a.ctx, in)
	must(a.t, err)
	return out.Entry
}

// get returns a key that is there.
func (a *actor) get(key string) *pb.StateEntry {
	a.t.Helper()
	out, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: key})
	must(a.t, err)
	return out.Entry
}

// value returns the text of a key, or nothing if it is not there.
func (a *actor) value(key string) string {
	a.t.Helper()
	out, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: key})
	if status.Code(err) == codes.NotFound {
		return ""
	}
	must(a.t, err)
	return out.Entry.GetValue().GetStringValue()
}

// append adds an entry to a document.
func (a *actor) append(key, text string) *pb.AppendStateResponse {
	a.t.Helper()
	out, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Key: key, Text: text})
	must(a.t, err)
	return out
}

// delete removes a key and returns the revision of that.
func (a *actor) delete(key string) int64 {
	a.t.Helper()
	out, err := a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: key})
	must(a.t, err)
	return out.Revision
}

// history returns all versions of a key that are kept, newest first.
func (a *actor) history(key string) []*pb.StateEntry {
	a.t.Helper()
	var list []*pb.StateEntry
	in := &pb.ListStateHistoryRequest{Key: key}
	for {
		out, err := a.ListStateHistory(a.ctx, in)
		must(a.t, err)
		list = append(list, out.Versions...)
		if in.PageToken = out.NextPageToken; in.PageToken == "" {
			return list
		}
	}
}

// listed returns the events of some types, or all, oldest first.
func (a *actor) listed(kinds ...string) []*pb.Event {
	a.t.Helper()
	out, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: kinds}})
	must(a.t, err)
	return out.Events
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks the code and the reason of an error.
func refused(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %s %s", err, testkit.Reason(err), code, reason)
	}
}

// awaitEvents returns the events of a type once there are so many.
func (a *actor) awaitEvents(kind string, n int) []*pb.Event {
	a.t.Helper()
	sub, err := a.events.SubscribeEvents(a.ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{kind}}})
	must(a.t, err)
	var list []*pb.Event
	for len(list) < n {
		page, err := sub.Recv()
		if err != nil {
			a.t.Fatalf("waiting for %s: %v, after %v", kind, err, list)
		}
		list = append(list, page.Events...)
	}
	return list
}
