package events_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaultSession is the row id of the session "default".
const defaultSession = 1

// A kit is a log with its service, in a folder that outlives it.
type kit struct {
	t        *testing.T
	dir      string
	clock    *clockwork.FakeClock
	store    *store.Store
	log      *events.Log
	people   *directory.Directory
	sessions *sessions.Registry
	api      pb.EventServiceClient
	stop     func()
}

func newKit(t *testing.T) *kit {
	t.Helper()
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	k.open()
	return k
}

func (k *kit) open() {
	k.t.Helper()
	k.store = testkit.Store(k.t, k.dir, k.clock,
		events.Migrations(), schema.Migrations(), idempotency.Migrations(), sessions.Migrations())
	k.log = events.New(k.store, k.clock, zap.NewNop())
	k.people = directory.New()
	k.sessions = sessions.New(k.store, k.log, k.people)
	conn, stop := testkit.Serve(k.t, func(r grpc.ServiceRegistrar) {
		pb.RegisterEventServiceServer(r, events.NewService(k.log, k.people, anybody{}, nobody{}))
	})
	k.api, k.stop = pb.NewEventServiceClient(conn), stop
}

// anybody may publish.
type anybody struct{}

func (anybody) Admit(context.Context, identity.Caller, int) error { return nil }

// nobody has a blocker.
type nobody struct{}

func (nobody) Report(*store.Tx, identity.Caller, events.Obstacle) (string, error) {
	return "", fault.Missing("blocker", "", "there is no blocker")
}

// reopen ends everything as a restart does.
func (k *kit) reopen() {
	k.t.Helper()
	k.log.Stop()
	k.stop()
	testkit.NoError(k.t, k.store.Close())
	k.open()
}

// append appends entries in one commit and returns the revision of the last. What is required and
// missing is filled in.
func (k *kit) append(entries ...events.Entry) int64 {
	k.t.Helper()
	var last int64
	err := k.store.Write(k.t.Context(), func(tx *store.Tx) (err error) {
		for _, e := range entries {
			if e.Category == 0 {
				e.Category = events.Message
			}
			if e.Source == "" {
				e.Source = "tester"
			}
			if e.Session == 0 {
				e.Session = defaultSession
			}
			if last, err = k.log.Append(tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.NoError(k.t, err)
	return last
}

// numbered returns n entries of a type; their summaries count from first.
func numbered(eventType string, first, n int) []events.Entry {
	entries := make([]events.Entry, n)
	for i := range entries {
		entries[i] = events.Entry{Type: eventType, Summary: fmt.Sprint(first + i)}
	}
	return entries
}

func (k *kit) list(in *pb.ListEventsRequest) *pb.ListEventsResponse {
	k.t.Helper()
	out, err := k.api.ListEvents(testkit.Operator(k.t.Context()), in)
	testkit.NoError(k.t, err)
	return out
}

func types(list []*pb.Event) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.GetType())
	}
	return out
}

func summaries(list []*pb.Event) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.GetSummary())
	}
	return out
}

func counted(first, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint(first+i))
	}
	return out
}

func TestAppend_RefusedChangeLeavesNoEventAndItsNumberIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	before := k.append(events.Entry{Type: "message.sent"})
	refused := errors.New("refused")
	var lost int64
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		var err error
		if lost, err = k.log.Append(tx, events.Entry{Session: defaultSession, Category: events.Message, Type: "message.lost", Source: "tester"}); err != nil {
			return err
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatalf("Write = %v", err)
	}
	after := k.append(events.Entry{Type: "message.sent"})
	if lost <= before || after <= lost {
		t.Errorf("revisions %d, %d (refused), %d: they must grow", before, lost, after)
	}
	if got := k.list(&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"message.lost"}}}); len(got.GetEvents()) != 0 {
		t.Errorf("the refused change left %v", got.GetEvents())
	}
}

func TestAppend_RevisionsGoOnGrowingAfterAReopen(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	before := k.append(numbered("message.sent", 1, 3)...)
	k.reopen()
	if after := k.append(events.Entry{Type: "message.sent"}); after <= before {
		t.Errorf("revision %d after %d", after, before)
	}
}

func TestAppend_EveryFieldComesBack(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	revision := k.append(events.Entry{
		Category: events.Work, Type: "task.done", Severity: events.Warning, Source: "builder-1", SourceRole: "builder",
		Summary: "läuft", Details: `{"a":1}`, Related: []string{"4711", `od"d\`, "ümlaut"}, TaskID: "t1",
	})
	got := k.list(&pb.ListEventsRequest{}).GetEvents()
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	e := got[0]
	if e.GetRevision() != revision || !e.GetTime().AsTime().Equal(k.clock.Now()) || e.GetCategory() != pb.EventCategory_EVENT_CATEGORY_WORK ||
		e.GetType() != "task.done" || e.GetSeverity() != pb.Severity_SEVERITY_WARNING || e.GetSource() != "builder-1" ||
		e.GetSourceRole() != "builder" || e.GetSummary() != "läuft" || e.GetDetails() != `{"a":1}` ||
		fmt.Sprint(e.GetRelated()) != `[4711 od"d\ ümlaut]` || e.GetTaskId() != "t1" || e.GetSession() != "default" {
		t.Errorf("got %v", e)
	}
}

func TestCursor_NeverGoesBack(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	save := func(revision int64) {
		t.Helper()
		err := k.store.Write(t.Context(), func(tx *store.Tx) error {
			return events.SaveCursor(tx, defaultSession, "lead", "messages", "main", revision)
		})
		testkit.NoError(t, err)
	}
	save(10)
	save(7)
	if got := k.cursor("lead", "messages", "main"); got != 10 {
		t.Errorf("cursor = %d, want 10", got)
	}
	if got := k.cursor("lead", "events", "main"); got != -1 {
		t.Errorf("a cursor of another kind = %d, want none", got)
	}
}

// cursor returns a kept position, -1 if there is none.
func (k *kit) cursor(owner, kind, name string) int64 {
	k.t.Helper()
	position := int64(-1)
	err := k.store.Read(k.t.Context(), func(snap *store.Snapshot) error {
		got, found, err := events.LoadCursor(snap, defaultSession, owner, kind, name)
		if found {
			position = got
		}
		return err
	})
	testkit.NoError(k.t, err)
	return position
}

// otherSession makes a second session and returns its row id.
func (k *kit) otherSession() int64 {
	k.t.Helper()
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	_, err := k.sessions.Create(k.t.Context(), who, idempotency.Request{}, "other", sessions.Change{})
	var id int64
	if err == nil {
		err = k.store.Read(k.t.Context(), func(snap *store.Snapshot) (err error) {
			id, err = directory.New().SessionID(snap, "other")
			return err
		})
	}
	testkit.NoError(k.t, err)
	return id
}

func TestCursor_AnOwnerAndASessionHaveSoMany(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	save := func(owner string, from, to int) error {
		return k.store.Write(t.Context(), func(tx *store.Tx) error {
			for i := from; i < to; i++ {
				if err := events.SaveCursor(tx, defaultSession, owner, "events", fmt.Sprint(i), 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	full := func(err error) {
		t.Helper()
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Exhausted || f.Reason != "TOO_MANY_CURSORS" {
			t.Error(err)
		}
	}
	testkit.NoError(t, save("a0", 0, 100))
	full(save("a0", 100, 101))
	if err := save("a0", 50, 51); err != nil { // it exists
		t.Error(err)
	}
	for i := 1; i < 100; i++ {
		testkit.NoError(t, save(fmt.Sprint("a", i), 0, 100))
	}
	full(save("another", 0, 1))
}

func TestSubscribe_ACursorThatHasEndedStaysAway(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(testkit.Agent(t.Context(), "lead"), &pb.SubscribeEventsRequest{Cursor: "audit"})
	s.mark(0)
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		events.EndCursors(tx, defaultSession, "lead")
		return nil
	})
	testkit.NoError(t, err)
	for i := range 3 { // a save follows the first page, and the second one after a second
		k.append(numbered("message.sent", i, 1)...)
		s.take(1)
		k.clock.Advance(time.Second)
	}
	if got := k.cursor("lead", "events", "audit"); got != -1 {
		t.Errorf("the cursor is at %d", got)
	}
}
