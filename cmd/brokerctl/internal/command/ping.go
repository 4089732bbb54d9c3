package command

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
)

// pingEvery is the pause between two tries: the endpoint file of a broker that is not there yet may appear at
// any time, and there is nothing to be told of it by.
const pingEvery = 100 * time.Millisecond

// Ping makes a call until one succeeds, for at most wait, and returns how long that one took.
func Ping(c *Caller, ctx context.Context, wait time.Duration) (time.Duration, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		took, err := pingOnce(c, ctx)
		if err == nil {
			return took, nil
		}
		if code, _ := c.Explain(err); code != problem.ExitUnreachable || wait <= 0 {
			return 0, err
		}
		pause := time.NewTimer(pingEvery)
		select {
		case <-pause.C:
		case <-end.C:
			pause.Stop()
			return 0, err
		case <-ctx.Done():
			pause.Stop()
			return 0, ctx.Err()
		}
	}
}

// pingOnce bounds one try: something may take the connection and never answer.
func pingOnce(c *Caller, ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	broker, err := c.Connect(ctx, client.WithPatience(0))
	if err == nil {
		start := time.Now()
		if _, err = broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{}); err == nil {
			return time.Since(start), nil
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return 0, problem.Failf(problem.ExitUnreachable, "the broker does not answer within 5s")
	}
	return 0, err
}
