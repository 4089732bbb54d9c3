package client

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
)

// FollowOptions say what of the agent's own mailbox to read, and from where.
type FollowOptions struct {
	// After resumes after this revision, such as the arrival of the last item handled; 0 = everything unfinished that is there.
	After int64
	// Cursor lets the broker keep the position, under this name; then After must be 0. What the broker wrote to a
	// process that died before it handled it is not shown again.
	Cursor string
	// Filter chooses messages; nil = all.
	Filter *pb.MessageFilter
	// AutoAck finishes what is shown before it is written to the stream: it is delivered at most once, and what was on its
	// way when the stream broke is not shown again. So is what the loop body left unread: use Limit to read only some.
	AutoAck bool
	// KeepNotices leaves the broker's notices unread until the caller acknowledges them. Otherwise the broker finishes a
	// notice when it writes it to the stream.
	KeepNotices bool
	// Limit ends the iteration after this many items; 0 = no limit.
	Limit int32
	// OnProgress, if set, is told that everything that arrived up to the revision has been yielded: a position to
	// resume after, also where the filter left everything out.
	OnProgress func(revision int64)
}

// Follow reads the agent's mailbox in order of arrival: what is there, then what comes. It takes nothing; see Work for that. When
// the stream breaks it reconnects and resumes after the last item, so that nothing is missed or yielded twice.
//
// The iteration ends without an error when ctx ends, and after yielding an error that trying again does not heal.
func (c *Client) Follow(ctx context.Context, o FollowOptions) iter.Seq2[*pb.InboxItem, error] {
	return func(yield func(*pb.InboxItem, error) bool) {
		f := &mailFollower{client: c, o: o, last: o.After}
		follow(ctx, c.link, f.read, yield)
	}
}

// follow calls read again and again, with waits between the failures, and yields what it finds until read fails for
// good or the loop body has enough.
func follow[T any](ctx context.Context, l *link, read func(ctx context.Context, worked func(), yield func(T) bool) error, yield func(T, error) bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := retry{link: l}
	for {
		err := read(ctx, r.worked, func(item T) bool { return yield(item, nil) })
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil:
			return
		case !transient(err):
			var none T
			yield(none, err)
			return
		case !r.wait(ctx, err):
			return
		}
	}
}

// errEnough ends a read because the loop body ended.
var errEnough = errors.New("the loop ended")

// mailFollower is the position of one Follow.
type mailFollower struct {
	client *Client
	o      FollowOptions
	last   int64 // everything that arrived up to here has been yielded
	caught int64 // up to here catchUp has yielded what the cursor may show again
	count  int32 // items yielded
	cut    bool  // a stream that used the cursor broke
}

// read follows one stream until it ends.
func (f *mailFollower) read(ctx context.Context, worked func(), yield func(*pb.InboxItem) bool) error {
	request := &pb.ReceiveRequest{AfterRevision: f.last, Follow: true, Filter: f.o.Filter, AutoAck: f.o.AutoAck,
		KeepNotices: f.o.KeepNotices}
	if f.o.Cursor != "" {
		// The broker's cursor counts what it wrote, and some of that may have been lost with the stream.
		if f.cut {
			if err := f.catchUp(ctx, worked, yield); err != nil {
				return err
			}
		}
		request.AfterRevision, request.Cursor, f.cut = 0, f.o.Cursor, true
	}
	return f.stream(ctx, request, worked, yield)
}

// catchUp reads, beside the cursor, what arrived after the last item.
func (f *mailFollower) catchUp(ctx context.Context, worked func(), yield func(*pb.InboxItem) bool) error {
	if f.last == 0 {
		return nil // nothing was ever received, and so where the cursor stood before is not known
	}
	err := f.stream(ctx, &pb.ReceiveRequest{AfterRevision: f.last, Filter: f.o.Filter, AutoAck: f.o.AutoAck,
		KeepNotices: f.o.KeepNotices}, worked, yield)
	if !errors.Is(err, io.EOF) {
		return err
	}
	f.caught = f.last
	return nil
}

// stream reads one call to its end and yields what catchUp has not.
func (f *mailFollower) stream(ctx context.Context, request *pb.ReceiveRequest, worked func(), yield func(*pb.InboxItem) bool) error {
	if f.o.Limit > 0 {
		request.Limit = f.o.Limit - f.count
	}
	stream, err := f.client.Messages().Receive(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		page, err := stream.Recv()
		if f.o.Limit > 0 && f.count >= f.o.Limit {
			return errEnough // the broker has ended the stream, and before that noted how far the cursor is
		}
		if err != nil {
			return err
		}
		worked()
		for _, item := range page.GetItems() {
			if arrival := item.GetDelivery().GetArrival(); arrival > f.caught {
				if f.count++; !yield(item) {
					return errEnough
				}
			}
		}
		f.last = max(f.last, page.GetRevision())
		if f.o.OnProgress != nil {
			f.o.OnProgress(f.last)
		}
	}
}
