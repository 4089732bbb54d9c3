package vendortest

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// An eventLog has the events of the broker so far.
type eventLog struct {
	mu      sync.Mutex // guards the fields below
	all     []*pb.Event
	changed chan struct{} // closed and replaced with each event
}

// follow keeps the events of the broker, also of one that is restarted.
func (r *run) follow() {
	r.events = &eventLog{changed: make(chan struct{})}
	ctx := r.t.Context()
	ended := make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		for e, err := range r.broker.FollowEvents(ctx, client.EventOptions{Filter: &pb.EventFilter{LowestSeverity: pb.Severity_SEVERITY_DEBUG}}) {
			if err != nil {
				return
			}
			r.events.mu.Lock()
			r.events.all = append(r.events.all, e)
			close(r.events.changed)
			r.events.changed = make(chan struct{})
			r.events.mu.Unlock()
		}
	}()
	r.cleanup(func() { <-ended })
}

// cleanup runs f after the whole run, whose context has ended by then.
func (r *run) cleanup(f func()) { r.whole.Cleanup(f) }

// await returns as soon as an event from number begin on satisfies holds.
func (r *run) await(what string, begin int, holds func(e *pb.Event) bool) *pb.Event {
	r.t.Helper()
	late := time.After(patience)
	for {
		r.events.mu.Lock()
		all, changed := r.events.all, r.events.changed
		r.events.mu.Unlock()
		if i := slices.IndexFunc(all[begin:], holds); i >= 0 {
			return all[begin+i]
		}
		select {
		case <-changed:
		case <-late:
			for _, e := range all[begin:] {
				r.t.Log(e.GetType(), e.GetSummary(), e.GetRelated(), e.GetDetails())
			}
			r.t.Fatal("in vain: ", what)
		}
	}
}

// now returns the number of the next event.
func (r *run) now() int {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	return len(r.events.all)
}

// busy makes the agent busy, and returns a function that returns as soon as its turn has ended.
func (r *run) busy() (idle func()) {
	r.t.Helper()
	r.ctl("--agent", "builder-1", "agent", "heartbeat", "--status", "active")
	begin := r.now()
	return func() {
		r.t.Helper()
		r.await("the turn ends", begin, func(e *pb.Event) bool {
			return e.GetType() == "agent.status" && strings.Contains(e.GetDetails(), `"idle"`)
		})
	}
}

// accepted returns as soon as the message is accepted.
func (r *run) accepted(id string) {
	r.t.Helper()
	out, err := r.broker.Messages().GetMessage(r.t.Context(), &pb.GetMessageRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	number := strconv.FormatInt(out.GetMessage().GetRevision(), 10)
	r.await("the receipt of "+r.sent[id], 0, func(e *pb.Event) bool {
		return e.GetType() == "message.accepted" && slices.Contains(e.GetRelated(), number)
	})
}
