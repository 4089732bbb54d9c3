package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// EventOptions say which events to follow, and from where.
type EventOptions struct {
	// After resumes after this revision; 0 = from the beginning of the log.
	After int64
	// FromNow begins with what comes; After then does not count.
	FromNow bool
	// Cursor lets the broker keep the position, under this name; After or FromNow says where a new one begins. What
	// the broker wrote to a process that died before it handled it is not shown again.
	Cursor string
	// Filter chooses events; nil = all.
	Filter *pb.EventFilter
	// OnProgress, if set, is told that everything up to the revision has been yielded: a position to resume after, also
	// where nothing matched.
	OnProgress func(revision int64)
}

// FollowEvents reads the event log in order: what is there, then what comes. When the stream breaks it reconnects and
// resumes after the last event, so that nothing is missed or yielded twice.
//
// The iteration ends without an error when ctx ends, and after yielding an error that trying again does not heal, such as
// OUT_OF_RANGE where the log no longer reaches back that far.
func (c *Client) FollowEvents(ctx context.Context, o EventOptions) iter.Seq2[*pb.Event, error] {
	return func(yield func(*pb.Event, error) bool) {
		f := &eventFollower{client: c, o: o, last: o.After, known: o.Cursor == "" && !o.FromNow}
		follow(ctx, c.link, f.read, yield)
	}
}

// eventFollower is the position of one FollowEvents.
type eventFollower struct {
	client *Client
	o      EventOptions
	last   int64 // everything up to here has been yielded
	known  bool  // last is a position; false until the broker named one
}

// read follows one stream until it ends.
func (f *eventFollower) read(ctx context.Context, worked func(), yield func(*pb.Event) bool) error {
	request := &pb.SubscribeEventsRequest{Filter: f.o.Filter, Cursor: f.o.Cursor}
	switch {
	case f.known:
		request.AfterRevision = proto.Int64(f.last)
	case !f.o.FromNow:
		request.AfterRevision = proto.Int64(f.o.After)
	}
	stream, err := f.client.Events().SubscribeEvents(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	// A cursor counts what the broker wrote, and some of that may have been lost with the stream before.
	gap := f.o.Cursor != "" && f.known
	for {
		page, err := stream.Recv()
		if err != nil {
			return err
		}
		worked()
		if gap {
			if err := f.catchUp(ctx, page.GetRevision(), yield); err != nil {
				return err
			}
			gap = false
		}
		if !f.yieldNew(page.GetEvents(), yield) {
			return errEnough
		}
		f.passed(page.GetRevision())
	}
}

// catchUp reads, beside the cursor, what lies between the last event and until.
func (f *eventFollower) catchUp(ctx context.Context, until int64, yield func(*pb.Event) bool) error {
	if until <= f.last {
		return nil
	}
	request := &pb.ListEventsRequest{Filter: f.o.Filter, AfterRevision: f.last, UntilRevision: until}
	for {
		page, err := f.client.Events().ListEvents(ctx, request)
		if err != nil {
			return err
		}
		if !f.yieldNew(page.GetEvents(), yield) {
			return errEnough
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			f.passed(until)
			return nil
		}
	}
}

// yieldNew yields the events after the last one, and returns false once the loop body has enough.
func (f *eventFollower) yieldNew(events []*pb.Event, yield func(*pb.Event) bool) bool {
	for _, e := range events {
		if e.GetRevision() <= f.last && f.known {
			continue
		}
		if !yield(e) {
			return false
		}
		f.last, f.known = e.GetRevision(), true
	}
	return true
}

// passed notes that everything up to the revision has been yielded.
func (f *eventFollower) passed(revision int64) {
	f.last, f.known = max(f.last, revision), true
	if f.o.OnProgress != nil {
		f.o.OnProgress(f.last)
	}
}
