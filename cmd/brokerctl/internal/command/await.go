package command

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// mostWait is how long one call of the API waits at most.
const mostWait = time.Hour

// AwaitOutcome calls ask until it reports the outcome, or the wait ends. It asks again if the broker
// restarts in the meantime.
func (c *Caller) AwaitOutcome(ctx context.Context, what string, wait time.Duration, ask func(left *durationpb.Duration) (bool, error)) (bool, error) {
	defer c.Progress(wait, what)()
	const pause = 200 * time.Millisecond
	end := time.Now().Add(wait)
	for left := wait; ; left = max(time.Until(end), 0) {
		done, err := ask(durationpb.New(min(left, mostWait)))
		switch {
		case done || left == 0:
			return done, err
		case err != nil && status.Code(err) != codes.Unavailable:
			return false, err
		}
		again := time.NewTimer(min(pause, max(time.Until(end), 0))) // a call that ended early would at once end again
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return false, ctx.Err()
		}
	}
}
