package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// WatchOptions say which keys to watch, and from where.
type WatchOptions struct {
	// Namespace chooses one; empty = all but "global".
	Namespace string
	// Prefix chooses keys that begin with it.
	Prefix string
	// After resumes after this revision, such as that of a GetState or ListState; 0 = from the beginning.
	After int64
	// FromNow begins with what comes; After then does not count.
	FromNow bool
	// OnProgress, if set, is told that everything up to the revision has been yielded: a position to resume after, also
	// where nothing matched.
	OnProgress func(revision int64)
}

// WatchState yields the changes of keys: all those of one revision at a time, in order, first what was, then what comes. When the stream
// breaks it reconnects and resumes after the last revision, so that nothing is missed or yielded twice.
//
// The iteration ends without an error when ctx ends, and after yielding an error that trying again does not heal, such as
// OUT_OF_RANGE (STATE_COMPACTED) where the changes are no longer kept from there on: list the keys then, and watch after the
// revision of that.
func (c *Client) WatchState(ctx context.Context, o WatchOptions) iter.Seq2[[]*pb.StateEntry, error] {
	return func(yield func([]*pb.StateEntry, error) bool) {
		w := &stateWatcher{client: c, o: o, last: o.After, known: !o.FromNow}
		follow(ctx, c.link, w.read, yield)
	}
}

// stateWatcher is the position of one WatchState.
type stateWatcher struct {
	client *Client
	o      WatchOptions
	last   int64 // everything up to here has been yielded
	known  bool  // last is a position; false until the broker named one
}

// read watches one stream until it ends.
func (w *stateWatcher) read(ctx context.Context, worked func(), yield func([]*pb.StateEntry) bool) error {
	request := &pb.WatchStateRequest{Namespace: w.o.Namespace, KeyPrefix: w.o.Prefix}
	if w.known {
		request.AfterRevision = proto.Int64(w.last)
	}
	stream, err := w.client.State().WatchState(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		worked()
		for changes := frame.GetChanges(); len(changes) > 0; {
			n := 1
			for n < len(changes) && changes[n].GetRevision() == changes[0].GetRevision() {
				n++
			}
			w.last, w.known = changes[0].GetRevision(), true
			if !yield(changes[:n]) {
				return errEnough
			}
			changes = changes[n:]
		}
		w.last, w.known = max(w.last, frame.GetRevision()), true
		if w.o.OnProgress != nil {
			w.o.OnProgress(w.last)
		}
	}
}
