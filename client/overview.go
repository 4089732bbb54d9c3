package client

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
)

// FollowOverview yields the frames of the client's session, or with all those of every open session:
// the newest one at once, and each further one after a change. It yields no frame that is no longer
// the newest when the loop body returns. When the stream breaks it reconnects and continues with the
// newest frame. For operators and observers.
//
// The iteration ends without an error when ctx ends and after a frame that says that the session is
// closed, and after yielding an error that trying again does not heal.
func (c *Client) FollowOverview(ctx context.Context, all bool) iter.Seq2[*pb.WatchOverviewResponse, error] {
	return func(yield func(*pb.WatchOverviewResponse, error) bool) {
		read := func(ctx context.Context, worked func(), yield func(*pb.WatchOverviewResponse) bool) error {
			stream, err := c.Admin().WatchOverview(ctx, &pb.WatchOverviewRequest{AllSessions: all}, grpc.WaitForReady(true))
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
			if errors.Is(err, io.EOF) { // the session is closed
				return errEnough
			}
			return err
		}
		follow(ctx, c.link, read, yield)
	}
}
