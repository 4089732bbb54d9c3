package events_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// remove removes the events of the session "default" from one revision to another.
func (k *kit) remove(from, to int64) {
	k.t.Helper()
	err := k.store.Write(k.t.Context(), func(tx *store.Tx) error {
		var revisions []int64
		for r := from; r <= to; r++ {
			revisions = append(revisions, r)
		}
		return k.log.Remove(tx, defaultSession, revisions)
	})
	testkit.NoError(k.t, err)
}

// wantRemoved checks that an error tells of the oldest event that is kept.
func wantRemoved(t *testing.T, what string, err error, oldest int64) {
	t.Helper()
	if status.Code(err) != codes.OutOfRange || testkit.Reason(err) != "EVENTS_REMOVED" {
		t.Errorf("%s: got %v, want OUT_OF_RANGE, EVENTS_REMOVED", what, err)
		return
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetMetadata()["oldest"] != strconv.FormatInt(oldest, 10) {
			t.Errorf("%s: the metadata say %v, want oldest %d", what, info.GetMetadata(), oldest)
		}
	}
}

func TestFloor_ListRefusesPositionsBeforeWhatIsKept(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.append(numbered("message.sent", 1, 10)...) - 9
	page := k.list(&pb.ListEventsRequest{PageSize: 2})
	k.remove(first, first+5)
	for what, in := range map[string]*pb.ListEventsRequest{
		"after":      {AfterRevision: first + 4},
		"until":      {UntilRevision: first + 4},
		"next page":  {PageSize: 2, PageToken: page.GetNextPageToken()},
		"newest":     {AfterRevision: first, NewestFirst: true},
		"down until": {UntilRevision: first + 2, NewestFirst: true},
	} {
		_, err := k.api.ListEvents(k.operator(), in)
		wantRemoved(t, what, err, first+6)
	}
	for what, in := range map[string]*pb.ListEventsRequest{
		"from the beginning": {},
		"after the last one": {AfterRevision: first + 5},
	} {
		if diff := cmp.Diff(counted(7, 4), summaries(k.list(in).GetEvents())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	got := summaries(k.list(&pb.ListEventsRequest{NewestFirst: true}).GetEvents())
	if diff := cmp.Diff([]string{"10", "9", "8", "7"}, got); diff != "" {
		t.Errorf("newest first (-want +got):\n%s", diff)
	}
}

func TestFloor_IsOfOneSession(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.append(numbered("message.sent", 1, 10)...) - 9
	k.otherSession()
	k.remove(first, first+5)
	ctx := testkit.As(k.t.Context(), identity.Caller{Access: identity.Agent, Session: "other", Agent: "a"})
	if _, err := k.api.ListEvents(ctx, &pb.ListEventsRequest{AfterRevision: first}); err != nil {
		t.Errorf("a session without removed events: %v", err)
	}
}

func TestFloor_SubscriptionFromBeforeIsRefusedAndFromTheBeginningIsFromTheOldest(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.append(numbered("message.sent", 1, 10)...) - 9
	k.remove(first, first+5)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(first + 4)})
	_, err := s.stream.Recv()
	wantRemoved(t, "before", err, first+6)
	for _, from := range []int64{0, first + 5} {
		s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(from)})
		s.mark(first + 5)
		if got, _ := s.take(4); !cmp.Equal(got, counted(7, 4)) {
			t.Errorf("after %d: got %v", from, got)
		}
	}
}

// A subscriber that stops reading gets the error when it goes on, and no gap.
func TestFloor_SubscriberThatLagsBehindIsToldSo(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	large := numbered("message.sent", 1, 200)
	for i := range large {
		large[i].Details = fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 32<<10)) // more than lies on the way
	}
	first := k.append(large...) - 199
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(0)})
	s.mark(0)
	k.remove(first, first+198)
	next := first
	for {
		page, err := s.stream.Recv()
		if err != nil {
			wantRemoved(t, "behind", err, first+199)
			return
		}
		for _, e := range page.GetEvents() {
			if e.GetRevision() != next {
				t.Fatalf("revision %d after %d: a gap", e.GetRevision(), next-1)
			}
			next++
		}
		if next > first+199 {
			t.Fatal("all events came, the removed ones included")
		}
	}
}

func TestFloor_CursorFromBeforeIsRefusedUntilAPositionIsGiven(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.append(numbered("message.sent", 1, 10)...) - 9
	k.keepCursor("overseer", first)
	k.remove(first, first+5)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "overseer"})
	_, err := s.stream.Recv()
	wantRemoved(t, "the cursor", err, first+6)
	s = k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "overseer", AfterRevision: at(0)})
	s.mark(first + 5)
	if got := k.cursor("system", "events", "overseer"); got < first+5 {
		t.Errorf("the cursor is at %d, want %d or later", got, first+5)
	}
}

// keepCursor keeps a position for the operator.
func (k *kit) keepCursor(name string, revision int64) {
	k.t.Helper()
	err := k.store.Write(k.t.Context(), func(tx *store.Tx) error {
		return events.SaveCursor(tx, defaultSession, "system", "events", name, revision)
	})
	testkit.NoError(k.t, err)
}
