package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

const (
	flooders      = 8  // agents, beside the operator
	floodBatch    = 64 // messages confirmed together
	unreadStreams = 95 // of each agent that reads nothing
	unreadMost    = 20_000
	unreadValue   = 64 << 10 // bytes of a key that watchers do not read
)

// flood: agents and an operator send as fast as flow control permits and wait for no confirmation.
// Three further agents have streams that read nothing.
func flood(ctx context.Context, b *bench, prefix string) (Result, error) {
	s, err := b.bystand(ctx, prefix)
	if err != nil {
		return Result{}, err
	}
	defer s.c.Close()
	silent, err := b.unread(ctx, prefix)
	defer closeAll(silent)
	if err != nil {
		return Result{}, fmt.Errorf("streams that read nothing: %w", err)
	}
	senders, err := b.joinMany(ctx, flooders, prefix+"-%d", "flooder")
	defer closeAll(senders)
	if err != nil {
		return Result{}, err
	}
	operator, err := b.connect(ctx)
	if err != nil {
		return Result{}, err
	}
	defer operator.Close()
	senders = append(senders[:flooders:flooders], operator.In(b.session).As(""))
	return b.beside(ctx, s, func(ctx context.Context) (int, error) {
		var confirmed atomic.Int64
		err := atOnce(senders, func(_ int, c *client.Client) error { return b.pour(ctx, c, prefix, &confirmed) })
		return int(confirmed.Load()), err
	})
}

// pour sends until the context ends, and counts the confirmed messages.
func (b *bench) pour(ctx context.Context, c *client.Client, role string, confirmed *atomic.Int64) error {
	stream, err := c.Messages().Send(ctx)
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		pad := padding(b.o.Size)
		for {
			request := &pb.SendRequest{}
			for range floodBatch {
				request.Messages = append(request.Messages, &pb.Message{
					Target: toRole(role), Reach: pb.Reach_REACH_ONE, Type: "bench", Payload: payload(0, pad)})
			}
			if stream.Send(request) != nil {
				return // Recv says why
			}
		}
	})
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, r := range answer.GetResults() {
			if e := r.GetError(); e != nil {
				return fmt.Errorf("%w: %s", errRefused, e.GetMessage())
			}
		}
		confirmed.Add(int64(len(answer.GetResults())))
	}
}

// unread opens streams of each kind from their beginning, with much to read, and reads nothing.
func (b *bench) unread(ctx context.Context, prefix string) ([]*client.Client, error) {
	silent, err := b.joinMany(ctx, 3, prefix+"-silent-%d", "silent")
	if err != nil {
		return silent, err
	}
	messages := min(b.o.Waiting, unreadMost)
	err = b.fill(ctx, prefix+"-filler", messages, func(int) *pb.Target {
		return &pb.Target{To: &pb.Target_Agent{Agent: silent[0].Identity().Agent}}
	})
	if err != nil {
		return silent, err
	}
	value := jsonValue(`"` + strings.Repeat("x", unreadValue) + `"`)
	for i := range messages * b.o.Size / unreadValue {
		_, err := silent[2].State().PutState(ctx, &pb.PutStateRequest{Key: name(prefix+"-unread", i), Value: value})
		if err != nil {
			return silent, err
		}
	}
	for range unreadStreams {
		_, received := silent[0].Messages().Receive(ctx, &pb.ReceiveRequest{Follow: true})
		_, subscribed := silent[1].Events().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64)})
		_, watched := silent[2].State().WatchState(ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
		if err := errors.Join(received, subscribed, watched); err != nil {
			return silent, err
		}
	}
	return silent, nil
}
