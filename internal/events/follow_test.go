package events_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/testkit"
)

// A subscription is an open stream.
type subscription struct {
	t      *testing.T
	stream interface {
		Recv() (*pb.SubscribeEventsResponse, error)
	}
	end func()
}

func (k *kit) subscribe(ctx context.Context, in *pb.SubscribeEventsRequest) *subscription {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	k.t.Cleanup(cancel)
	stream, err := k.api.SubscribeEvents(ctx, in)
	testkit.NoError(k.t, err)
	return &subscription{t: k.t, stream: stream, end: cancel}
}

func (k *kit) operator() context.Context { return testkit.Operator(k.t.Context()) }

// recv returns the next page.
func (s *subscription) recv() *pb.SubscribeEventsResponse {
	s.t.Helper()
	page, err := s.stream.Recv()
	testkit.NoError(s.t, err)
	return page
}

// mark wants a progress mark at a revision.
func (s *subscription) mark(revision int64) {
	s.t.Helper()
	if page := s.recv(); len(page.GetEvents()) != 0 || page.GetRevision() != revision {
		s.t.Fatalf("got %v; want a mark at %d", page, revision)
	}
}

// take wants n events, over any number of pages and marks, and returns their summaries and the position.
func (s *subscription) take(n int) (got []string, position int64) {
	s.t.Helper()
	for len(got) < n {
		page := s.recv()
		got = append(got, summaries(page.GetEvents())...)
		if page.GetRevision() < position {
			s.t.Fatalf("position %d after %d", page.GetRevision(), position)
		}
		position = page.GetRevision()
	}
	return got, position
}

// idle waits until a follower has put something off, and waits for the clock.
func (k *kit) idle() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), testkit.Patience)
	defer cancel()
	if err := k.clock.BlockUntilContext(ctx, 1); err != nil {
		k.t.Fatal("nothing waits for the clock: ", err)
	}
}

func at(revision int64) *int64 { return &revision }

func TestSubscribe_SendsWhatIsThereThenWhatComes(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(numbered("message.sent", 1, 600)...)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(0)})
	s.mark(0)
	got, position := s.take(600)
	if position != k.store.Revision() {
		t.Errorf("position %d, want %d", position, k.store.Revision())
	}
	for i := range 3 {
		k.append(numbered("message.sent", 601+i, 1)...)
		more, _ := s.take(1)
		got = append(got, more...)
	}
	if diff := cmp.Diff(counted(1, 603), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSubscribe_WithoutAPositionBeginsNow(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	last := k.append(numbered("message.sent", 1, 5)...)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{})
	s.mark(last)
	k.append(numbered("message.sent", 6, 1)...)
	if got, _ := s.take(1); got[0] != "6" {
		t.Errorf("got %v", got)
	}
}

func TestSubscribe_ResumesOverReopensWithoutLossOrDouble(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	const total, rounds = 3000, 6
	var got []string
	var position int64
	for round := range rounds {
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range total / rounds / 10 {
				k.append(numbered("message.sent", 1+round*total/rounds+i*10, 10)...)
			}
		}()
		s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: &position})
		s.mark(position)
		for len(got) < total/rounds*round+137*round/2 { // somewhere in the middle
			page := s.recv()
			got = append(got, summaries(page.GetEvents())...)
			position = page.GetRevision()
		}
		<-sent
		k.reopen()
	}
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: &position})
	rest, _ := s.take(total - len(got))
	if diff := cmp.Diff(counted(1, total), append(got, rest...)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSubscribe_PutsProgressMarksOffToOneASecond(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"agent.*"}}})
	s.mark(0)
	for i := range 50 { // commits of their own; a mark for any would come before the match
		k.append(numbered("message.sent", i, 1)...)
	}
	match := k.append(events.Entry{Type: "agent.status", Summary: "match"})
	if page := s.recv(); len(page.GetEvents()) != 1 || page.GetRevision() != match {
		t.Fatalf("got %v; want the match alone", page)
	}
	last := k.append(numbered("message.sent", 51, 1)...)
	k.idle()
	k.clock.Advance(time.Second)
	s.mark(last)
}

func TestSubscribe_MarksEveryTenThousandRevisionsWithoutAMatch(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"agent.*"}}})
	s.mark(0)
	last := k.append(numbered("message.sent", 1, 10_000)...)
	s.mark(last)
}

func TestSubscribe_MarksTheWayThroughALongLog(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	last := k.append(numbered("message.sent", 1, 45_000)...)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(0), Filter: &pb.EventFilter{TaskId: "none"}})
	s.mark(0)
	s.mark(20_000)
	s.mark(40_000)
	k.idle() // the rest is put off
	k.clock.Advance(time.Second)
	s.mark(last)
}

func TestSubscribe_NewCursorBeginsNowAndIsKeptAtOnce(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	last := k.append(numbered("message.sent", 1, 5)...)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit"})
	s.mark(last)
	k.reopen()
	k.append(numbered("message.sent", 6, 2)...)
	s = k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit"})
	s.mark(last)
	if got, _ := s.take(2); cmp.Diff(counted(6, 2), got) != "" {
		t.Errorf("got %v", got)
	}
}

func TestSubscribe_CursorGoesOnWhereTheLastStreamStopped(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(numbered("message.sent", 1, 300)...)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit", AfterRevision: at(0)})
	s.mark(0)
	got, position := s.take(300)
	k.append(numbered("message.sent", 301, 1)...)
	_, last := s.take(1) // so the stream knows that it has sent the page before
	k.reopen()
	kept := k.cursor(identity.System, "events", "audit")
	if kept != position && kept != last {
		t.Errorf("cursor at %d after the end of the stream, want %d or %d", kept, position, last)
	}
	k.append(numbered("message.sent", 302, 2)...)
	s = k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit", AfterRevision: at(0)}) // the cursor wins
	s.mark(kept)
	if kept == last {
		got = append(got, counted(301, 1)...)
	}
	more, _ := s.take(303 - len(got))
	if diff := cmp.Diff(counted(1, 303), append(got, more...)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	own := k.subscribe(testkit.Agent(t.Context(), "lead"), &pb.SubscribeEventsRequest{Cursor: "audit", AfterRevision: at(0)})
	own.mark(0) // another caller's cursor of the same name is another cursor
}

func TestSubscribe_SavesACursorOnceASecond(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit"})
	s.mark(0)
	first := k.append(numbered("message.sent", 1, 1)...)
	s.take(1)
	for i := range 20 {
		k.append(numbered("message.sent", 2+i, 1)...)
		s.take(1)
	}
	if kept := k.cursor(identity.System, "events", "audit"); kept != first {
		t.Errorf("cursor at %d within the first second, want %d", kept, first)
	}
	before := k.store.Stats().Commits
	k.clock.Advance(time.Second)
	for i := range 2 { // the second comes after the save that the first one's page was followed by
		k.append(numbered("message.sent", 30+i, 1)...)
		s.take(1)
	}
	if kept := k.cursor(identity.System, "events", "audit"); kept < first+20 {
		t.Errorf("cursor at %d after a second, want %d or more", kept, first+20)
	}
	if commits := k.store.Stats().Commits - before; commits > 3 {
		t.Errorf("%d commits for two events and one save", commits)
	}
}

func TestSubscribe_SavesTheCursorOfAQuietStreamAfterASecond(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Cursor: "audit"})
	s.mark(0)
	for i := range 2 { // the second within a second of the first one's save
		k.append(numbered("message.sent", 1+i, 1)...)
		s.take(1)
	}
	k.idle()
	position := k.store.Revision()
	k.clock.Advance(time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for k.cursor(identity.System, "events", "audit") != position {
		if ctx.Err() != nil {
			t.Fatalf("cursor at %d, want %d", k.cursor(identity.System, "events", "audit"), position)
		}
	}
}

func TestFollow_WhatCouldNotBeWrittenIsNotCountedAsRead(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.append(numbered("message.sent", 1, 256)...) // a page
	k.append(numbered("message.sent", 257, 10)...)
	broken := errors.New("connection lost")
	pages := 0
	sub := events.Subscription{Scope: events.Scope{Session: "default"}, After: at(0), Owner: "lead", Cursor: "audit"}
	err := events.NewReader(k.log, k.people).Follow(t.Context(), sub, func(p events.Page) error {
		if pages++; pages == 3 { // a mark, a page, and this
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("Follow = %v", err)
	}
	if kept := k.cursor("lead", "events", "audit"); kept != first {
		t.Errorf("cursor at %d, want %d", kept, first)
	}
}

func TestSubscribe_EndsWhenTheLogStops(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{})
	s.mark(0)
	k.log.Stop()
	k.log.Stop()
	_, err := s.stream.Recv()
	if status.Code(err) != codes.Unavailable || testkit.Reason(err) != "SHUTTING_DOWN" {
		t.Errorf("got %v (%s)", err, testkit.Reason(err))
	}
	k.append(events.Entry{Type: "broker.stopping"}) // the log itself goes on
}

func TestSubscribe_SessionThatDoesNotExistIsNotFound(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(testkit.As(t.Context(), identity.Caller{Access: identity.Agent, Session: "nowhere", Agent: "a"}), &pb.SubscribeEventsRequest{})
	if _, err := s.stream.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestSubscribe_OneThatStopsReadingCostsNobodyAnythingAndLosesNothing(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	var stuck []*subscription
	for range 20 {
		stuck = append(stuck, k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(0)}))
	}
	for _, s := range stuck {
		s.mark(0)
	}
	reader := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{AfterRevision: at(0)})
	filler := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 16<<10))
	const total = 300 // about 5 MB, far more than a stream buffers
	var got []string
	for i := range total {
		k.append(events.Entry{Type: "message.sent", Summary: fmt.Sprint(1 + i), Details: filler})
		one, _ := reader.take(1)
		got = append(got, one...)
	}
	if diff := cmp.Diff(counted(1, total), got); diff != "" {
		t.Errorf("the reader (-want +got):\n%s", diff)
	}
	late, _ := stuck[0].take(total)
	if diff := cmp.Diff(counted(1, total), late); diff != "" {
		t.Errorf("the one that was stuck (-want +got):\n%s", diff)
	}
}
