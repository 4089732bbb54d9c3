package client_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// items is a page of mail that arrived at these revisions.
func items(revision int64, arrivals ...int64) *pb.ReceiveResponse {
	page := &pb.ReceiveResponse{Revision: revision}
	for _, a := range arrivals {
		page.Items = append(page.Items, &pb.InboxItem{Delivery: &pb.Delivery{Arrival: a}})
	}
	return page
}

// eventPage is a page of events with these revisions.
func eventPage(revision int64, revisions ...int64) *pb.SubscribeEventsResponse {
	page := &pb.SubscribeEventsResponse{Revision: revision}
	for _, r := range revisions {
		page.Events = append(page.Events, &pb.Event{Revision: r})
	}
	return page
}

// seen is what an iteration in a goroutine came to.
type seen struct {
	revisions chan int64
	end       chan error // the error it yielded last, or nil
}

func followMail(ctx context.Context, c *client.Client, o client.FollowOptions) *seen {
	s := &seen{make(chan int64, 64), make(chan error, 1)}
	go func() {
		var last error
		for item, err := range c.Follow(ctx, o) {
			if last = err; err == nil {
				s.revisions <- item.GetDelivery().GetArrival()
			}
		}
		s.end <- last
	}()
	return s
}

func followEvents(ctx context.Context, c *client.Client, o client.EventOptions) *seen {
	s := &seen{make(chan int64, 64), make(chan error, 1)}
	go func() {
		var last error
		for e, err := range c.FollowEvents(ctx, o) {
			if last = err; err == nil {
				s.revisions <- e.GetRevision()
			}
		}
		s.end <- last
	}()
	return s
}

// want takes the next revisions and compares.
func (s *seen) want(t *testing.T, revisions ...int64) {
	t.Helper()
	var got []int64
	for range revisions {
		got = append(got, next(t, s.revisions))
	}
	if !slices.Equal(got, revisions) {
		t.Fatalf("got %v, want %v", got, revisions)
	}
}

func write[T any](t *testing.T, send func(T) error, page T) {
	t.Helper()
	apptest.NoError(t, send(page))
}

func TestFollow_ResumesAfterTheLastPage(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	progress := make(chan int64, 8)
	s := followMail(t.Context(), c, client.FollowOptions{After: 5, OnProgress: func(r int64) { progress <- r }})
	d := next(t, f.receives)
	if d.request.GetAfterRevision() != 5 || !d.request.GetFollow() {
		t.Fatalf("request: %v", d.request)
	}
	write(t, d.Send, items(8, 6, 7))
	write(t, d.Send, items(12)) // the filter left some out
	d.end <- errCut
	s.want(t, 6, 7)
	if next(t, progress) != 8 || next(t, progress) != 12 {
		t.Fatal("wrong progress")
	}
	d = next(t, f.receives)
	if d.request.GetAfterRevision() != 12 {
		t.Fatalf("resumed with %v", d.request)
	}
	write(t, d.Send, items(13, 13))
	s.want(t, 13)
}

func TestFollow_CursorLosesNothingThatWasWrittenToABrokenStream(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := followMail(t.Context(), c, client.FollowOptions{Cursor: "mine"})
	d := next(t, f.receives)
	if d.request.GetCursor() != "mine" || d.request.GetAfterRevision() != 0 {
		t.Fatalf("request: %v", d.request)
	}
	write(t, d.Send, items(3, 1, 3))
	d.end <- errCut // 4 was written, and the cursor moved, but it never came
	s.want(t, 1, 3)
	d = next(t, f.receives)
	if d.request.GetCursor() != "" || d.request.GetAfterRevision() != 3 || d.request.GetFollow() {
		t.Fatalf("catching up: %v", d.request)
	}
	write(t, d.Send, items(5, 4, 5))
	d.end <- nil
	d = next(t, f.receives)
	if d.request.GetCursor() != "mine" || !d.request.GetFollow() {
		t.Fatalf("going on: %v", d.request)
	}
	write(t, d.Send, items(6, 5, 6))
	s.want(t, 4, 5, 6)
}

func TestFollow_AsksTheBrokerForNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := followMail(t.Context(), c, client.FollowOptions{AutoAck: true, Limit: 3})
	d := next(t, f.receives)
	if !d.request.GetAutoAck() || d.request.GetLimit() != 3 {
		t.Fatalf("request: %v", d.request)
	}
	write(t, d.Send, items(2, 1, 2))
	d.end <- errCut
	s.want(t, 1, 2)
	d = next(t, f.receives)
	if !d.request.GetAutoAck() || d.request.GetLimit() != 1 {
		t.Fatalf("going on: %v", d.request)
	}
	write(t, d.Send, items(3, 3))
	d.end <- nil
	s.want(t, 3)
	apptest.NoError(t, next(t, s.end))
}

func TestFollow_EndsWithTheContextAndWithALastingError(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := followMail(ctx, c, client.FollowOptions{})
	next(t, f.receives)
	cancel()
	apptest.NoError(t, next(t, s.end))
	s = followMail(t.Context(), c, client.FollowOptions{})
	next(t, f.receives).end <- status.Error(codes.FailedPrecondition, "not registered")
	wantCode(t, next(t, s.end), codes.FailedPrecondition)
}

func TestFollow_EndsWhenTheLoopBodyBreaks(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, err := range c.Follow(t.Context(), client.FollowOptions{}) {
			if err != nil {
				t.Error(err)
			}
			break
		}
	}()
	d := next(t, f.receives)
	write(t, d.Send, items(2, 1, 2))
	next(t, done)
	next(t, d.Context().Done())
}

func TestFollowEvents_ResumesAfterTheLastEvent(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := followEvents(t.Context(), c, client.EventOptions{})
	d := next(t, f.events)
	if d.request.AfterRevision == nil || d.request.GetAfterRevision() != 0 {
		t.Fatalf("request: %v", d.request)
	}
	write(t, d.Send, eventPage(2, 1, 2))
	d.end <- errCut
	d = next(t, f.events)
	if d.request.GetAfterRevision() != 2 {
		t.Fatalf("resumed with %v", d.request)
	}
	write(t, d.Send, eventPage(9, 7))
	write(t, d.Send, eventPage(11))
	d.end <- errCut
	d = next(t, f.events)
	if d.request.GetAfterRevision() != 11 {
		t.Fatalf("resumed with %v", d.request)
	}
	s.want(t, 1, 2, 7)
}

func TestFollowEvents_FromNowResumesAtTheFirstMark(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := followEvents(t.Context(), c, client.EventOptions{FromNow: true})
	d := next(t, f.events)
	if d.request.AfterRevision != nil {
		t.Fatalf("request: %v", d.request)
	}
	write(t, d.Send, eventPage(40))
	d.end <- errCut
	d = next(t, f.events)
	if d.request.AfterRevision == nil || d.request.GetAfterRevision() != 40 {
		t.Fatalf("resumed with %v", d.request)
	}
	write(t, d.Send, eventPage(41, 41))
	s.want(t, 41)
}

func TestFollowEvents_CursorLosesNothingThatWasWrittenToABrokenStream(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := followEvents(t.Context(), c, client.EventOptions{Cursor: "mine"})
	d := next(t, f.events)
	write(t, d.Send, eventPage(2, 1, 2))
	d.end <- errCut // 3 and 4 were written, and the cursor moved, but they never came
	s.want(t, 1, 2)
	d = next(t, f.events)
	if d.request.GetCursor() != "mine" {
		t.Fatalf("resumed with %v", d.request)
	}
	write(t, d.Send, eventPage(5, 5))
	list := next(t, f.lists)
	if list.GetAfterRevision() != 2 || list.GetUntilRevision() != 5 {
		t.Fatalf("catching up: %v", list)
	}
	write(t, d.Send, eventPage(6, 6))
	s.want(t, 3, 4, 5, 6)
}
