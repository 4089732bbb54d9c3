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
	w := newWorld(t)
	a := w.agent("a")
	a.write(&pb.PutStateRequest{Key: "n", Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{}}})
	const clients, turns = 8, 25
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for done := 0; done < turns; {
				now, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "n"})
				if err != nil {
					t.Error(err)
					return
				}
				_, err = a.PutState(a.ctx, &pb.PutStateRequest{Key: "n", CompareRevision: &now.Entry.Revision,
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
	if n := a.get("n").Value.GetIntegerValue(); n != clients*turns {
		t.Errorf("counted %d, want %d", n, clients*turns)
	}
}

func TestPut_OnlyTheOwnerAndOperatorsWriteWhatIsOwned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.session("other")
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	namesake := w.member("other", "a")
	for _, namespace := range []string{"default", "global"} {
		put := func(x *actor, own *bool) error {
			_, err := x.PutState(x.ctx, &pb.PutStateRequest{Namespace: namespace, Key: "k", Value: text(x.name), Own: own})
			return err
		}
		denied := func(err error) {
			t.Helper()
			refused(t, err, codes.PermissionDenied, "NOT_THE_OWNER")
		}
		must(t, put(a, ptr(true)))
		denied(put(b, nil))
		denied(put(b, ptr(true)))
		denied(put(b, ptr(false)))
		if namespace == "global" {
			denied(put(namesake, nil))
		}
		_, err := b.DeleteState(b.ctx, &pb.DeleteStateRequest{Namespace: namespace, Key: "k"})
		denied(err)
		_, err = b.TransactState(b.ctx, &pb.TransactStateRequest{Changes: []*pb.StateChange{
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "free", Value: text("x")}}},
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Namespace: namespace, Key: "k"}}},
		}})
		denied(err)
		if b.value("free") != "" {
			t.Error("half of a transaction was made")
		}
		must(t, put(o, nil))
		must(t, put(a, nil))
		out, err := b.ListState(b.ctx, &pb.ListStateRequest{Namespace: namespace, Owner: "a"})
		must(t, err)
		if len(out.Entries) != 1 || out.Entries[0].Owner != "a" {
			t.Errorf("owned by a: %v", out.Entries)
		}
		must(t, put(a, ptr(false)))
		must(t, put(b, ptr(true)))
		must(t, put(o, ptr(false)))
		must(t, put(a, ptr(true)))
	}
	refused(t, func() error {
		_, err := o.PutState(o.ctx, &pb.PutStateRequest{Key: "o", Value: text(""), Own: ptr(true)})
		return err
	}(), codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	if e := b.get("k"); e.Owner != "" {
		t.Errorf("after its owner has gone: %v", e)
	}
	b.put("k", "b")
}

func TestPut_TimeToLiveEndsInADeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	put := func(key string, ttl time.Duration) {
		a.write(&pb.PutStateRequest{Key: key, Value: text("x"), Ttl: durationpb.New(ttl), Own: ptr(true)})
	}
	put("short", 10*time.Second)
	put("long", 30*time.Second)
	put("renewed", 10*time.Second)
	put("kept", 10*time.Second)
	put("renewed", 30*time.Second)
	a.put("kept", "x") // each put sets it anew, here to none
	if e := a.get("short"); !e.ExpiresAt.AsTime().Equal(w.Clock.Now().Add(10 * time.Second)) {
		t.Errorf("expires at %v", e.ExpiresAt.AsTime())
	}
	w.Clock.Advance(10 * time.Second)
	if a.value("short") != "" || a.value("long") == "" || a.value("renewed") == "" || a.value("kept") == "" {
		t.Error("others are there than should be")
	}
	gone := a.awaitEvents("state.expired", 1)[0]
	if e := a.history("short")[0]; !e.Deleted || e.Version != 2 || e.Revision != gone.Revision || e.Author != "system" || e.Owner != "" {
		t.Errorf("its newest version is %v, the event %v", e, gone)
	}
	w.Restart()
	a.put("other", "x") // it is running
	w.Clock.Advance(20 * time.Second)
	a.awaitEvents("state.expired", 3)
	if a.value("long") != "" || a.value("renewed") != "" || a.value("kept") == "" {
		t.Error("after the restart others are there than should be")
	}
}

func TestPut_FindsWhatHasExpiredGoneBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	for i := range 20 { // the put and the expiry race: whoever comes first, the outcome is the same
		key := strconv.Itoa(i)
		a.write(&pb.PutStateRequest{Key: key, Value: text("x"), Ttl: durationpb.New(time.Second)})
		w.Clock.Advance(time.Second)
		e := a.write(&pb.PutStateRequest{Key: key, Value: text("y"), CompareRevision: ptr[int64](0)})
		if e.Version != 3 {
			t.Fatalf("version %d, want the put, the expiry, the put", e.Version)
		}
	}
}

func TestTransact_IsOneEventAndOneRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	first := a.put("a", "1")
	in := &pb.TransactStateRequest{
		Compares: []*pb.StateCompare{{Key: "a", Revision: first}, {Key: "b"}, {Namespace: "global", Key: "g"}},
		Changes: []*pb.StateChange{
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Key: "a"}}},
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "b", Value: text("2")}}},
			{Change: &pb.StateChange_Delete{Delete: &pb.DeleteStateRequest{Key: "never"}}},
			{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("3"), CompareRevision: ptr[int64](0)}}},
		},
	}
	out, err := a.TransactState(a.ctx, in)
	must(t, err)
	at := func(e *pb.StateEntry) [3]any { return [3]any{e.Key, e.Version, e.Revision} }
	r := out.Revision
	var got [][3]any
	for _, e := range out.Entries {
		got = append(got, at(e))
	}
	if diff := cmp.Diff([][3]any{{"a", int64(2), r}, {"b", int64(1), r}, {"never", int64(0), int64(0)}, {"g", int64(1), r}}, got); diff != "" {
		t.Error(diff)
	}
	if a.value("a") != "" || a.value("b") != "2" {
		t.Error("the values are others")
	}
	events := a.listed("state.transacted")
	if len(events) != 1 || events[0].Revision != r || !strings.Contains(events[0].Details, `"count":4`) {
		t.Errorf("events: %v", events)
	}
	again, err := a.TransactState(a.ctx, in)
	refused(t, err, codes.Aborted, "STATE_CHANGED")
	if again != nil || len(a.history("b")) != 1 {
		t.Error("a refused transaction changed something")
	}
	none, err := a.TransactState(a.ctx, &pb.TransactStateRequest{Changes: in.Changes[2:3]})
	must(t, err)
	if none.Revision != 0 {
		t.Errorf("nothing changed at revision %d", none.Revision)
	}
}

func TestChange_TheSameRequestChangesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	for name, call := range map[string]func() (any, error){
		"put": func() (any, error) {
			return a.PutState(a.ctx, &pb.PutStateRequest{RequestId: id, Key: "p", Value: text("x")})
		},
		"append": func() (any, error) {
			return a.AppendState(a.ctx, &pb.AppendStateRequest{RequestId: id, Key: "d", Text: "x"})
		},
		"delete": func() (any, error) { return a.DeleteState(a.ctx, &pb.DeleteStateRequest{RequestId: id, Key: "gone"}) },
		"transact": func() (any, error) {
			return a.TransactState(a.ctx, &pb.TransactStateRequest{RequestId: id, Changes: []*pb.StateChange{
				{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Key: "t", Value: text("x")}}},
			}})
		},
	} {
		a.put("gone", "x")
		first, err := call()
		must(t, err)
		again, err := call()
		must(t, err)
		if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, key := range []string{"p", "d", "t"} {
		if n := len(a.history(key)); n != 1 {
			t.Errorf("%s has %d versions", key, n)
		}
	}
	_, err := a.PutState(a.ctx, &pb.PutStateRequest{RequestId: id, Key: "p", Value: text("y")})
	refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestState_BelongsToItsSessionUnlessItIsGlobal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.session("other")
	a, b := w.agent("a"), w.member("other", "b")
	a.put("k", "of a")
	if v := b.value("k"); v != "" {
		t.Errorf("another session reads %q", v)
	}
	put, err := b.PutState(b.ctx, &pb.PutStateRequest{Namespace: "global", Key: "k", Value: text("of b")})
	must(t, err)
	out, err := a.GetState(a.ctx, &pb.GetStateRequest{Namespace: "global", Key: "k"})
	must(t, err)
	if out.Entry.Value.GetStringValue() != "of b" || out.Entry.Revision != put.Entry.Revision {
		t.Errorf("the global key is %v", out.Entry)
	}
	if got := b.listed("state.*"); len(got) != 1 || got[0].Revision != put.Entry.Revision {
		t.Errorf("events of the writer's session: %v", got)
	}
	if got := a.listed("state.*"); len(got) != 1 {
		t.Errorf("events of the other session: %v", got)
	}
}

func TestState_StaysAsItIsInAClosedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.session("s")
	a, b, o := w.member("s", "a"), w.agent("b"), w.in("s", "")
	a.write(&pb.PutStateRequest{Key: "k", Value: text("x"), Ttl: durationpb.New(time.Minute)})
	_, err := a.PutState(a.ctx, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("x"), Own: ptr(true)})
	must(t, err)
	_, err = o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "s"})
	must(t, err)
	newest := o.listed()
	for _, namespace := range []string{"", "global"} {
		_, err = o.PutState(o.ctx, &pb.PutStateRequest{Namespace: namespace, Key: "k", Value: text("y")})
		refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
		_, err = o.DeleteState(o.ctx, &pb.DeleteStateRequest{Namespace: namespace, Key: "k"})
		refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
		_, err = o.AppendState(o.ctx, &pb.AppendStateRequest{Namespace: namespace, Key: "d", Text: "y"})
		refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	}
	w.Clock.Advance(time.Minute)
	b.put("k", "x") // the calendar had its turn, if it has one
	if a.value("k") != "x" || len(o.listed()) != len(newest) {
		t.Error("something has changed in a closed session")
	}
	out, err := b.GetState(b.ctx, &pb.GetStateRequest{Namespace: "global", Key: "g"})
	must(t, err)
	if out.Entry.Value.GetStringValue() != "x" {
		t.Error("the global key has gone with the session of its author")
	}
	def := w.operator()
	_, err = def.sessions.DeleteSession(def.ctx, &pb.DeleteSessionRequest{Name: "s"})
	must(t, err)
	_, err = b.PutState(b.ctx, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("y")})
	must(t, err)
}

func TestChange_RefusesWhoIsNotRegistered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.in("default", "stranger")
	_, err := x.PutState(x.ctx, &pb.PutStateRequest{Key: "k", Value: text("x")})
	refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestPut_IsRefusedWhenTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return 0.96, nil }
	}))
	a := (&world{b, t}).agent("a")
	_, err := a.PutState(a.ctx, &pb.PutStateRequest{Key: "k", Value: text("x")})
	refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	_, err = a.AppendState(a.ctx, &pb.AppendStateRequest{Key: "k", Text: "x"})
	refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	_, err = a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: "k"})
	must(t, err)
}

func TestState_RefusalsNameTheField(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	long := strings.Repeat("x", 513)
	put := func(in *pb.PutStateRequest) error { _, err := a.PutState(a.ctx, in); return err }
	transact := func(in *pb.TransactStateRequest) error { _, err := a.TransactState(a.ctx, in); return err }
	change := func(in *pb.PutStateRequest) *pb.StateChange {
		return &pb.StateChange{Change: &pb.StateChange_Put{Put: in}}
	}
	ok := &pb.PutStateRequest{Key: "k", Value: text("x")}
	for _, c := range []struct {
		field string
		err   error
	}{
		{"key", put(&pb.PutStateRequest{Value: text("x")})},
		{"key", put(&pb.PutStateRequest{Key: long, Value: text("x")})},
		{"key", put(&pb.PutStateRequest{Key: "a\nb", Value: text("x")})},
		{"key", put(&pb.PutStateRequest{Key: "a\x00b", Value: text("x")})},
		{"namespace", put(&pb.PutStateRequest{Namespace: "a b", Key: "k", Value: text("x")})},
		{"value", put(&pb.PutStateRequest{Key: "k"})},
		{"value", put(&pb.PutStateRequest{Key: "k", Value: &pb.StateValue{}})},
		{"value.string_value", put(&pb.PutStateRequest{Key: "k", Value: text(strings.Repeat("x", 1<<20+1))})},
		{"value.json_value", put(&pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: "{"}}})},
		{"value.json_value", put(&pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{}}})},
		{"ttl", put(&pb.PutStateRequest{Key: "k", Value: text("x"), Ttl: durationpb.New(time.Millisecond)})},
		{"ttl", put(&pb.PutStateRequest{Key: "k", Value: text("x"), Ttl: durationpb.New(366 * 24 * time.Hour)})},
		{"compare_revision", put(&pb.PutStateRequest{Key: "k", Value: text("x"), CompareRevision: ptr[int64](-1)})},
		{"request_id", put(&pb.PutStateRequest{Key: "k", Value: text("x"), RequestId: "x"})},
		{"text", func() error {
			_, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Key: "k", Text: " \n"})
			return err
		}()},
		{"text", func() error {
			_, err := a.AppendState(a.ctx, &pb.AppendStateRequest{Key: "k", Text: strings.Repeat("x", 256<<10+1)})
			return err
		}()},
		{"changes", transact(&pb.TransactStateRequest{})},
		{"changes[1].put.key", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{change(ok), change(ok)}})},
		{"changes[0]", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{{}}})},
		{"changes[0].put.request_id", transact(&pb.TransactStateRequest{Changes: []*pb.StateChange{
			change(&pb.PutStateRequest{Key: "k", Value: text("x"), RequestId: "01890a5d-ac96-774b-bcce-b302099a8057"})}})},
		{"compares[0].revision", transact(&pb.TransactStateRequest{Compares: []*pb.StateCompare{{Key: "k", Revision: -1}}, Changes: []*pb.StateChange{change(ok)}})},
		{"page_size", func() error { _, err := a.ListState(a.ctx, &pb.ListStateRequest{PageSize: 1001}); return err }()},
		{"page_token", func() error { _, err := a.ListState(a.ctx, &pb.ListStateRequest{PageToken: "x"}); return err }()},
		{"page_token", func() error {
			_, err := a.ListStateHistory(a.ctx, &pb.ListStateHistoryRequest{Key: "k", PageToken: "x"})
			return err
		}()},
		{"at_revision", func() error { _, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "k", AtRevision: -1}); return err }()},
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
	a.write(&pb.PutStateRequest{Key: strings.Repeat("é", 256), Value: text(strings.Repeat("x", 1<<20))})
}
