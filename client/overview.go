package client

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
)

// FollowOverview yields the frames of the client's session, or of all that the request names: the
// newest one at once, and each further one after a change. It leaves out frames that are no longer
// the newest when the loop body returns. When the stream breaks it reconnects and continues with the
// newest frame. For operators and observers.
//
// The iteration ends without an error when ctx ends, after a frame that says that the session is
// closed, and after the last frame of a request with once. It also ends after it has yielded an error
// that another attempt does not heal.
func (c *Client) FollowOverview(
	ctx context.Context, in *pb.WatchOverviewRequest,
) iter.Seq2[*pb.WatchOverviewResponse, error] {
	return func(yield func(*pb.WatchOverviewResponse, error) bool) {
		read := func(ctx context.Context, worked func(), yield func(*pb.WatchOverviewResponse) bool) error {
			stream, err := c.Admin().WatchOverview(ctx, in, grpc.WaitForReady(true))
			for err == nil {
				var frame *pb.WatchOverviewResponse
				if frame, err = stream.Recv(); err != nil {
					break
				}
				worked()
				if !yield(frame) {
					return errEnough
				}
			}
			if errors.Is(err, io.EOF) { // the broker has ended the stream
				return errEnough
			}
			return err
		}
		follow(ctx, c.link, read, yield)
	}
}
