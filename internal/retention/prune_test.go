package retention_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/identity"
	"brokerd/internal/retention"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// hour is the age of the data that the tests prune.
const hour = time.Hour

// prune prunes as an operator. The clock moves meanwhile, because the turn that the prune waits for
// may be at rest. A call before each step keeps the clock slow, so that no read takes 10 s.
func (w *world) prune(in *pb.PruneDataRequest) *pb.PruneDataResponse {
	w.Helper()
	if in.OlderThan == nil {
		in.OlderThan = durationpb.New(hour)
	}
	type answer struct {
		out *pb.PruneDataResponse
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := w.Root().PruneData(w.ctx, in)
		done <- answer{out, err}
	}()
	for {
		select {
		case got := <-done:
			apptest.NoError(w, got.err)
			return got.out
		default:
			apptest.Must(w, w.Root().GetSession, &pb.GetSessionRequest{Name: w.session})
			w.Clock.Advance(time.Millisecond)
		}
	}
}

// kept are settings under which retention removes nothing.
func kept() *pb.SessionSettings {
	never := durationpb.New(0)
	return &pb.SessionSettings{MessageRetention: never, EventRetention: never, DeadLetterRetention: never}
}

// eventCount returns how many events the database has of the session. An agent does not see those
// of the broker itself.
func (w *world) eventCount() (n int64) {
	w.Helper()
	asAgent := w.Actor(w.session, "lead")
	for after := int64(0); ; {
		page := apptest.Must(w, asAgent.ListEvents, &pb.ListEventsRequest{AfterRevision: after})
		if len(page.GetEvents()) == 0 {
			return n
		}
		n += int64(len(page.GetEvents()))
		after = page.GetEvents()[len(page.GetEvents())-1].GetRevision()
	}
}

func TestPrune_RemovesFinishedDataAndNothingThatIsLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(kept())
	var finished []*pb.SendResult
	for range 3 {
		finished = append(finished, w.finish(&pb.Message{Subject: "finished"}))
	}
	dead := w.die(&pb.Message{Subject: "dead"})
	waiting := w.send(&pb.Message{Subject: "waiting", Target: &pb.Target{To: &pb.Target_Role{Role: "reviewer"}}})
	claimed := w.send(&pb.Message{Subject: "claimed"})
	apptest.Must(t, w.as("lead").AcquireLocks, &pb.AcquireLocksRequest{
		Paths: []string{"a.go"}, MaxHold: durationpb.New(7 * 24 * time.Hour)})
	old := w.eventCount()
	w.Clock.Advance(hour + time.Minute)
	claim := w.claim()
	young := w.finish(&pb.Message{Subject: "young"})
	total := w.eventCount()

	dry := w.prune(&pb.PruneDataRequest{Session: w.session, DryRun: true})
	if got := w.eventCount(); got != total || !w.there(finished[0]) || len(w.archived()) != 0 {
		t.Fatalf("a dry run has left %d events of %d, and %v in the archive", got, total, w.archived())
	}
	if dry.GetMessages() != 3 || dry.GetDeadLetters() != 0 || dry.GetEvents() < old {
		t.Errorf("the dry run counts %v, want 3 messages, no dead letter and %d events or more", dry, old)
	}
	done := w.prune(&pb.PruneDataRequest{Session: w.session})
	ignored := protocmp.IgnoreFields(&pb.PruneDataResponse{}, "revision", "free_bytes")
	if d := cmp.Diff(dry, done, protocmp.Transform(), ignored); d != "" {
		t.Errorf("counted (-) and removed (+): %s", d)
	}
	for _, sent := range finished {
		if w.there(sent) || w.archived()[sent.GetRevision()] != 1 {
			t.Errorf("the finished message %d is in the database: %v; archive: %v", sent.GetRevision(), w.there(sent), w.archived())
		}
	}
	live := map[string]*pb.SendResult{"claimed": claimed, "waiting": waiting, "dead": dead, "young": young}
	for name, sent := range live {
		if !w.there(sent) || w.archived()[sent.GetRevision()] != 0 {
			t.Errorf("the %s message is in the database: %v; in the archive: %v", name, w.there(sent), w.archived())
		}
	}
	if lines, _ := w.lines("events"); int64(len(lines)) != done.GetEvents() {
		t.Errorf("the archive has %d events of %d", len(lines), done.GetEvents())
	}
	locks := apptest.Must(t, w.as("lead").ListLocks, &pb.ListLocksRequest{})
	if len(locks.GetLocks()) != 1 {
		t.Errorf("the lock is gone: %v", locks)
	}
	pruned := &pb.EventFilter{Types: []string{"data.pruned"}}
	page := apptest.Must(t, w.as("").ListEvents, &pb.ListEventsRequest{Filter: pruned})
	if len(page.GetEvents()) != 1 || page.GetEvents()[0].GetRevision() != done.GetRevision() {
		t.Errorf("the event of revision %d is not in the log: %v", done.GetRevision(), page)
	}
	w.ack(claim.GetClaimId())
	w.Check()
}

func TestPrune_DeadLettersGoOnlyIfTheirKindIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(kept())
	acked, dead := w.finish(&pb.Message{}), w.die(&pb.Message{})
	w.Clock.Advance(hour + time.Minute)
	out := w.prune(&pb.PruneDataRequest{Kinds: []pb.DataKind{pb.DataKind_DATA_KIND_DEAD_LETTERS}})
	if out.GetDeadLetters() != 1 || out.GetMessages() != 0 || out.GetEvents() != 0 {
		t.Errorf("removed %v, want one dead letter", out)
	}
	if w.there(dead) || !w.there(acked) || w.archived()[dead.GetRevision()] != 1 {
		t.Errorf("dead letter there: %v; other message there: %v; archive: %v", w.there(dead), w.there(acked), w.archived())
	}
}

func TestPrune_OtherSessionsAndTheSettingsOfChannelsDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(kept())
	apptest.Must(t, w.as("").ConfigureChannel, &pb.ConfigureChannelRequest{
		Channel: "news", MessageRetention: durationpb.New(1000 * time.Hour)})
	asBuilder := w.Actor(w.session, "builder")
	apptest.Must(t, asBuilder.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "news"})
	sent := w.finish(&pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "news"}}})
	w.Clock.Advance(hour + time.Minute)
	only := []pb.DataKind{pb.DataKind_DATA_KIND_MESSAGES}
	if out := w.prune(&pb.PruneDataRequest{Session: "default", Kinds: only}); out.GetMessages() != 0 || !w.there(sent) {
		t.Errorf("a prune of another session removed %v", out)
	}
	if out := w.prune(&pb.PruneDataRequest{Kinds: only}); out.GetMessages() != 1 || w.there(sent) {
		t.Errorf("removed %v, want the message of the channel", out)
	}
}

func TestPrune_FinishedWorkOfEachKindIsCountedAndArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(merged(kept(), &pb.SessionSettings{SendRate: proto.Float64(0)}))
	finished := map[string][]string{}
	for name, kind := range w.kindsOfWork() {
		for i := range 2 {
			id := kind.open(fmt.Sprintf("finished %d", i))
			kind.finish(id)
			finished[name] = append(finished[name], id)
		}
		kind.open("unfinished")
		slices.Sort(finished[name])
	}
	tasks := w.Actor(w.session, "lead")
	apptest.Must(t, tasks.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "schema", Title: "schema"}, {Id: "api", Title: "api", DependsOn: []string{"schema"}},
		{Id: "site", Title: "site"}, {Id: "page", Title: "page", Parent: "site"},
	}})
	w.complete("schema")
	w.complete("site")
	w.Clock.Advance(hour + time.Minute)
	only := []pb.DataKind{pb.DataKind_DATA_KIND_WORK}
	dry := w.prune(&pb.PruneDataRequest{Kinds: only, DryRun: true})
	done := w.prune(&pb.PruneDataRequest{Kinds: only})
	if dry.GetWork() != 10 || done.GetWork() != 10 || done.GetMessages() != 0 || done.GetEvents() != 0 {
		t.Errorf("counted %v and removed %v, want 10 pieces of work", dry, done)
	}
	for name, ids := range finished {
		if d := cmp.Diff(ids, w.archivedIDs(name)); d != "" {
			t.Errorf("finished (-) and archived (+) %s: %s", name, d)
		}
	}
	w.Check()
}

func TestPrune_RefusesWrongRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	age := durationpb.New(hour)
	for name, c := range map[string]struct {
		in     *pb.PruneDataRequest
		code   codes.Code
		reason string
	}{
		"no age":       {&pb.PruneDataRequest{}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"too young":    {&pb.PruneDataRequest{OlderThan: durationpb.New(1)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"unknown kind": {&pb.PruneDataRequest{OlderThan: age, Kinds: []pb.DataKind{99}}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"no session":   {&pb.PruneDataRequest{OlderThan: age, Session: "none"}, codes.NotFound, "SESSION_NOT_FOUND"},
	} {
		wantError(t, name, apptest.Err(w.Root().PruneData(w.ctx, c.in)), c.code, c.reason)
	}
}

// watchedSessions signals each call of All.
type watchedSessions struct {
	*stock
	asked chan struct{}
}

func (w watchedSessions) All(q store.Querier) ([]retention.Session, error) {
	select {
	case w.asked <- struct{}{}:
	default:
	}
	return w.stock.All(q)
}

func TestPrune_WaitsForATurnSoThatNothingIsArchivedTwice(t *testing.T) {
	t.Parallel()
	const n = 1200 // three pages
	s := newStock(t, n)
	watched := watchedSessions{s, make(chan struct{}, 1)}
	k := retention.New(retention.Options{Store: s.store, Sessions: watched, Messages: s.mail, Events: noEvents{},
		Dir: s.dir, Archive: filepath.Join(s.dir, retention.Folder), Clock: s.clock, Log: zap.NewNop()})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	type outcome struct {
		pruned retention.Pruned
		err    error
	}
	done := make(chan outcome, 1)
	var once sync.Once
	retention.SetSeam(k, func() error {
		once.Do(func() { // in the first page of the turn
			<-watched.asked // the turn's own call
			go func() {
				operator := identity.Caller{Access: identity.Operator}
				out, err := k.Prune(ctx, operator, retention.Selection{OlderThan: time.Minute, Messages: true})
				done <- outcome{out, err}
			}()
			select {
			case <-watched.asked:
			case <-ctx.Done():
			}
			for range 20 { // enough time for a prune that does not wait to read the page
				apptest.NoError(t, s.store.Write(ctx, func(*store.Tx) error { return nil }))
			}
		})
		return nil
	})
	apptest.NoError(t, k.Start(t.Context()))
	t.Cleanup(k.Stop)
	var got outcome
	select { // the clock stands, so the turn and the prune do not rest
	case got = <-done:
	case <-ctx.Done():
		t.Fatal("the prune does not end")
	}
	apptest.NoError(t, got.err)
	if got.pruned.Messages != 0 || s.left() != 0 {
		t.Errorf("the prune removed %d messages that the turn removed, and %d are left", got.pruned.Messages, s.left())
	}
	s.wantOnce(n)
}
