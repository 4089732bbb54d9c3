package events_test

import (
	"context"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/testkit"
)

// follow follows the log in the background and returns the pages.
func (k *kit) follow(f events.Filter) <-chan events.Page {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	pages, ended := make(chan events.Page), make(chan struct{})
	k.t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		defer close(pages)
		sub := events.Subscription{Scope: events.Scope{Session: "default"}, Filter: f, Owner: "a"}
		err := events.NewReader(k.log, k.people).Follow(ctx, sub, func(p events.Page) error {
			select {
			case pages <- p:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		if err != nil && ctx.Err() == nil {
			k.t.Error(err)
		}
	}()
	return pages
}

func TestSubscribe_CommitsThatCannotMatchCostNoRead(t *testing.T) {
	t.Parallel()
	for name, filter := range map[string]events.Filter{
		"type":     {Types: []string{"wanted.event"}},
		"prefix":   {Types: []string{"wanted.*"}},
		"category": {Categories: []events.Category{events.Work}},
		"severity": {LowestSeverity: events.Error},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t)
			before := k.store.Stats().Reads
			pages := k.follow(filter)
			<-pages // the first mark
			for range 300 {
				k.append(numbered("message.sent", 1, 1)...)
			}
			last := k.append(events.Entry{Category: events.Work, Severity: events.Error, Type: "wanted.event", Source: "system"})
			for p := range pages {
				if len(p.Events) == 1 && p.Looked == last {
					break
				}
			}
			if n := k.store.Stats().Reads - before; n > 4 { // the first position, the first page, the event, and one to spare
				t.Errorf("%d reads", n)
			}
		})
	}
}

func TestSubscribe_MarksPassOverCommitsThatCannotMatch(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"none"}}})
	s.mark(0)
	k.append(numbered("message.sent", 1, 1)...)
	k.idle()
	last := k.append(numbered("message.sent", 2, 1)...)
	k.clock.Advance(time.Second)
	s.mark(last)
}

func TestSubscribe_RemovalOfEventsThatCannotMatchLeavesNoGap(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	s := k.subscribe(k.operator(), &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"wanted"}}})
	s.mark(0)
	last := k.append(numbered("message.sent", 1, 10)...)
	k.remove(1, last)
	k.append(numbered("wanted", 11, 1)...)
	s.take(1)
}
