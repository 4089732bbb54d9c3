package state_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestPut_OfManyWhoReadTheSameOneWins(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	write(a, &pb.PutStateRequest{Key: "n", Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{}}})
	const clients, turns = 8, 25
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for done := 0; done < turns; {
				now, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: "n"})
				if err != nil {
					t.Error(err)
					return
				}
				_, err = a.PutState(a.Ctx, &pb.PutStateRequest{Key: "n", CompareRevision: &now.Entry.Revision,
					Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: now.Entry.Value.GetIntegerValue() + 1}}})
				switch status.Code(err) {
				case codes.OK:
					done++
				case codes.Aborted:
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := get(a, "n").Value.GetIntegerValue(); n != clients*turns {
		t.Errorf("counted %d, want %d", n, clients*turns)
	}
}

func TestPut_OnlyTheOwnerAndOperatorsWriteWhatIsOwned(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("other", nil)
	a, b, o := w.Agent("a", "builder"), w.Agent("b", "builder"), w.Root()
	namesake := w.Actor("other", "a").Register("builder")
	for _, namespace := range []string{"default", "global"} {
		put := func(x *apptest.Actor, own *bool) error {
			_, err := x.PutState(x.Ctx, &pb.PutStateRequest{Namespace: namespace, Key: "k", Value: text(x.Name), Own: own})
			return err
		}
		denied := func(err error) {
			t.Helper()
			apptest.Refused(t, err, codes.PermissionDenied, "NOT_THE_OWNER")
		}
		apptest.NoError(t, put(a, new(true)))
		denied(put(b, nil))
		denied(put(b, new(true)))
		denied(put(b, new(false)))
		if namespace == "global" {
			denied(put(namesake, nil))
		}
		_, err := b.DeleteState(b.Ctx, &pb.DeleteStateRequest{Namespace: namespace, Key: "k"})
		denied(err)
		_, err = b.TransactState(b.Ctx, &pb.TransactStateRequest{Changes: []*pb.StateChange{
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "free", Value: text("x")}}},
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Namespace: namespace, Key: "k"}}},
		}})
		denied(err)
		if value(b, "free") != "" {
			t.Error("half of a transaction was made")
		}
		apptest.NoError(t, put(o, nil))
		apptest.NoError(t, put(a, nil))
		out := apptest.Must(t, b.ListState, &pb.ListStateRequest{Namespace: namespace, Owner: "a"})
		if len(out.Entries) != 1 || out.Entries[0].Owner != "a" {
			t.Errorf("owned by a: %v", out.Entries)
		}
		apptest.NoError(t, put(a, new(false)))
		apptest.NoError(t, put(b, new(true)))
		apptest.NoError(t, put(o, new(false)))
		apptest.NoError(t, put(a, new(true)))
	}
	apptest.Refused(t, func() error {
		return apptest.Err(o.PutState(o.Ctx, &pb.PutStateRequest{Key: "o", Value: text(""), Own: new(true)}))
	}(), codes.InvalidArgument, "INVALID_ARGUMENT")
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	if e := get(b, "k"); e.Owner != "" {
		t.Errorf("after its owner has gone: %v", e)
	}
	set(b, "k", "b")
}

func TestPut_TimeToLiveEndsInADeletion(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	put := func(key string, ttl time.Duration) {
		write(a, &pb.PutStateRequest{Key: key, Value: text("x"), Ttl: durationpb.New(ttl), Own: new(true)})
	}
	put("short", 10*time.Second)
	put("long", 30*time.Second)
	put("renewed", 10*time.Second)
	put("kept", 10*time.Second)
	put("renewed", 30*time.Second)
	set(a, "kept", "x") // each put sets it anew, here to none
	if e := get(a, "short"); !e.ExpiresAt.AsTime().Equal(w.Clock.Now().Add(10 * time.Second)) {
		t.Errorf("expires at %v", e.ExpiresAt.AsTime())
	}
	w.Clock.Advance(10 * time.Second)
	if value(a, "short") != "" || value(a, "long") == "" || value(a, "renewed") == "" || value(a, "kept") == "" {
		t.Error("others are there than should be")
	}
	gone := a.AwaitEvents("state.expired", 1, 0)[0]
	if e := versionsOf(a, "short")[0]; !e.Deleted || e.Version != 2 || e.Revision != gone.Revision || e.Author != "system" || e.Owner != "" {
		t.Errorf("its newest version is %v, the event %v", e, gone)
	}
	w.Restart()
	set(a, "other", "x") // it is running
	w.Clock.Advance(20 * time.Second)
	a.AwaitEvents("state.expired", 3, 0)
	if value(a, "long") != "" || value(a, "renewed") != "" || value(a, "kept") == "" {
		t.Error("after the restart others are there than should be")
	}
}

func TestPut_FindsWhatHasExpiredGoneBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	for i := range 20 { // the put and the expiry race: whoever comes first, the outcome is the same
		key := strconv.Itoa(i)
		write(a, &pb.PutStateRequest{Key: key, Value: text("x"), Ttl: durationpb.New(time.Second)})
		w.Clock.Advance(time.Second)
		e := write(a, &pb.PutStateRequest{Key: key, Value: text("y"), CompareRevision: new(int64(0))})
		if e.Version != 3 {
			t.Fatalf("version %d, want the put, the expiry, the put", e.Version)
		}
	}
}

func TestTransact_IsOneEventAndOneRevision(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	first := set(a, "a", "1")
	in := &pb.TransactStateRequest{
		Compares: []*pb.StateCompare{{Key: "a", Revision: first}, {Key: "b"}, {Namespace: "global", Key: "g"}},
		Changes: []*pb.StateChange{
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Key: "a"}}},
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "b", Value: text("2")}}},
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Key: "never"}}},
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("3"), CompareRevision: new(int64(0))}}},
		},
	}
	out := apptest.Must(t, a.TransactState, in)
	at := func(e *pb.StateEntry) [3]any { return [3]any{e.Key, e.Version, e.Revision} }
	r := out.Revision
	var got [][3]any
	for _, e := range out.Entries {
		got = append(got, at(e))
	}
	if diff := cmp.Diff([][3]any{{"a", int64(2), r}, {"b", int64(1), r}, {"never", int64(0), int64(0)}, {"g", int64(1), r}}, got); diff != "" {
		t.Error(diff)
	}
	if value(a, "a") != "" || value(a, "b") != "2" {
		t.Error("the values are others")
	}
	events := a.Events("state.transacted")
	if len(events) != 1 || events[0].Revision != r || !strings.Contains(events[0].Details, `"count":4`) {
		t.Errorf("events: %v", events)
	}
	again, err := a.TransactState(a.Ctx, in)
	apptest.Refused(t, err, codes.Aborted, "STATE_CHANGED")
	if again != nil || len(versionsOf(a, "b")) != 1 {
		t.Error("a refused transaction changed something")
	}
	none := apptest.Must(t, a.TransactState, &pb.TransactStateRequest{Changes: in.Changes[2:3]})
	if none.Revision != 0 {
		t.Errorf("nothing changed at revision %d", none.Revision)
	}
}

func TestChange_TheSameRequestChangesOnce(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	for name, call := range map[string]func() (any, error){
		"put": func() (any, error) {
			return a.PutState(a.Ctx, &pb.PutStateRequest{RequestId: id, Key: "p", Value: text("x")})
		},
		"append": func() (any, error) {
			return a.AppendState(a.Ctx, &pb.AppendStateRequest{RequestId: id, Key: "d", Text: "x"})
		},
		"delete": func() (any, error) { return a.DeleteState(a.Ctx, &pb.DeleteStateRequest{RequestId: id, Key: "gone"}) },
		"transact": func() (any, error) {
			return a.TransactState(a.Ctx, &pb.TransactStateRequest{RequestId: id, Changes: []*pb.StateChange{
				{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "t", Value: text("x")}}},
			}})
		},
	} {
		set(a, "gone", "x")
		first, err := call()
		apptest.NoError(t, err)
		again, err := call()
		apptest.NoError(t, err)
		if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, key := range []string{"p", "d", "t"} {
		if n := len(versionsOf(a, key)); n != 1 {
			t.Errorf("%s has %d versions", key, n)
		}
	}
	_, err := a.PutState(a.Ctx, &pb.PutStateRequest{RequestId: id, Key: "p", Value: text("y")})
	apptest.Refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestState_BelongsToItsSessionUnlessItIsGlobal(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("other", nil)
	a, b := w.Agent("a", "builder"), w.Actor("other", "b").Register("builder")
	set(a, "k", "of a")
	if v := value(b, "k"); v != "" {
		t.Errorf("another session reads %q", v)
	}
	put := apptest.Must(t, b.PutState, &pb.PutStateRequest{Namespace: "global", Key: "k", Value: text("of b")})
	out := apptest.Must(t, a.GetState, &pb.GetStateRequest{Namespace: "global", Key: "k"})
	if out.Entry.Value.GetStringValue() != "of b" || out.Entry.Revision != put.Entry.Revision {
		t.Errorf("the global key is %v", out.Entry)
	}
	if got := b.Events("state.*"); len(got) != 1 || got[0].Revision != put.Entry.Revision {
		t.Errorf("events of the writer's session: %v", got)
	}
	if got := a.Events("state.*"); len(got) != 1 {
		t.Errorf("events of the other session: %v", got)
	}
}

func TestState_StaysAsItIsInAClosedSession(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("s", nil)
	a, b, o := w.Actor("s", "a").Register("builder"), w.Agent("b", "builder"), w.Actor("s", "")
	write(a, &pb.PutStateRequest{Key: "k", Value: text("x"), Ttl: durationpb.New(time.Minute)})
	apptest.Must(t, a.PutState, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("x"), Own: new(true)})
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "s"})
	newest := o.Events()
	for _, namespace := range []string{"", "global"} {
		_, err := o.PutState(o.Ctx, &pb.PutStateRequest{Namespace: namespace, Key: "k", Value: text("y")})
		apptest.Refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
		_, err = o.DeleteState(o.Ctx, &pb.DeleteStateRequest{Namespace: namespace, Key: "k"})
		apptest.Refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
		_, err = o.AppendState(o.Ctx, &pb.AppendStateRequest{Namespace: namespace, Key: "d", Text: "y"})
		apptest.Refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	}
	w.Clock.Advance(time.Minute)
	set(b, "k", "x") // the calendar had its turn, if it has one
	if value(a, "k") != "x" || len(o.Events()) != len(newest) {
		t.Error("something has changed in a closed session")
	}
	out := apptest.Must(t, b.GetState, &pb.GetStateRequest{Namespace: "global", Key: "g"})
	if out.Entry.Value.GetStringValue() != "x" {
		t.Error("the global key has gone with the session of its author")
	}
	def := w.Root()
	apptest.Must(t, def.DeleteSession, &pb.DeleteSessionRequest{Name: "s"})
	apptest.Must(t, b.PutState, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("y")})
}

func TestChange_RefusesWhoIsNotRegistered(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	x := w.Actor("default", "stranger")
	_, err := x.PutState(x.Ctx, &pb.PutStateRequest{Key: "k", Value: text("x")})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestPut_IsRefusedWhenTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return 0.96, nil }
	}))
	a := b.Agent("a", "builder")
	_, err := a.PutState(a.Ctx, &pb.PutStateRequest{Key: "k", Value: text("x")})
	apptest.Refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	_, err = a.AppendState(a.Ctx, &pb.AppendStateRequest{Key: "k", Text: "x"})
	apptest.Refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	apptest.Must(t, a.DeleteState, &pb.DeleteStateRequest{Key: "k"})
}

func TestState_RefusalsNameTheField(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	put := func(in *pb.PutStateRequest) error { return apptest.Err(a.PutState(a.Ctx, in)) }
	transact := func(in *pb.TransactStateRequest) error { _, err := a.TransactState(a.Ctx, in); return err }
	change := func(in *pb.PutStateRequest) *pb.StateChange {
		return &pb.StateChange{Change: &pb.StateChange_Put{Put: in}}
	}
	ok := &pb.PutStateRequest{Key: "k", Value: text("x")}
	for _, c := range []struct {
		field string
		err   error
	}{
		{"value", put(&pb.PutStateRequest{Key: "k"})},
		{"value", put(&pb.PutStateRequest{Key: "k", Value: &pb.StateValue{}})},
		{"request_id", put(&pb.PutStateRequest{Key: "k", Value: text("x"), RequestId: "x"})},
		{"changes[1].put.key", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{change(ok), change(ok)}})},
		{"changes[0]", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{{}}})},
		{"changes[0].put.request_id", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{
			change(&pb.PutStateRequest{Key: "k", Value: text("x"), RequestId: "01890a5d-ac96-774b-bcce-b302099a8057"})}})},
		{"page_token", func() error { _, err := a.ListState(a.Ctx, &pb.ListStateRequest{PageToken: "x"}); return err }()},
		{"page_token", func() error {
			return apptest.Err(a.ListStateHistory(a.Ctx, &pb.ListStateHistoryRequest{Key: "k", PageToken: "x"}))
		}()},
	} {
		if fields := testkit.Fields(c.err); status.Code(c.err) != codes.InvalidArgument || len(fields) != 1 || fields[0] != c.field {
			t.Errorf("%s: %v names %v", c.field, c.err, fields)
		}
	}
	many := &pb.TransactStateRequest{}
	for i := range 4 {
		many.Changes = append(many.Changes, change(&pb.PutStateRequest{Key: strconv.Itoa(i), Value: text(strings.Repeat("x", 1<<20))}))
	}
	if err := transact(many); testkit.Fields(err)[0] != "changes" {
		t.Error(err)
	}
	write(a, &pb.PutStateRequest{Key: strings.Repeat("é", 256), Value: text(strings.Repeat("x", 1<<20))})
}
