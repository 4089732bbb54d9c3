package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	pb "brokerd/gen/brokerd/v1"
)

const (
	preloadMailboxes = 100
	preloadBatch     = 500
	preloadAhead     = 4  // batches not yet confirmed
	joining          = 16 // idle agents that connect at the same time
)

// burden brings about what the broker is to carry beside the workloads.
func (b *bench) burden(ctx context.Context) error {
	if b.o.Preload > 0 {
		b.progress("preload: %d messages in %d mailboxes", b.o.Preload, preloadMailboxes)
		if err := b.preload(ctx); err != nil {
			return fmt.Errorf("preload: %w", err)
		}
	}
	if b.o.Idle > 0 {
		b.progress("idle: %d agents", b.o.Idle)
		if err := b.idle(ctx); err != nil {
			return fmt.Errorf("idle agents: %w", err)
		}
	}
	if b.o.Subscribers > 0 {
		b.progress("subscribers: %d that do not read", b.o.Subscribers)
		if err := b.subscribers(ctx); err != nil {
			return fmt.Errorf("event subscribers: %w", err)
		}
	}
	return nil
}

// preload sends messages to roles that nobody has, where they wait.
func (b *bench) preload(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := b.join(ctx, "preloader", "preloader")
	if err != nil {
		return err
	}
	defer c.Close()
	stream, err := c.Messages().Send(ctx)
	if err != nil {
		return err
	}
	ahead := make(chan struct{}, preloadAhead)
	confirmed := make(chan error, 1)
	go func() { confirmed <- b.preloadConfirmed(stream, ahead) }()
	pad := padding(b.o.Size)
	for sent := 0; sent < b.o.Preload; {
		request := &pb.SendRequest{}
		for range min(preloadBatch, b.o.Preload-sent) {
			role := fmt.Sprintf("waiting-%d", sent%preloadMailboxes)
			request.Messages = append(request.Messages, &pb.Message{
				Target: &pb.Target{To: &pb.Target_Role{Role: role}}, Reach: pb.Reach_REACH_ONE, Type: "bench", Payload: payload(0, pad)})
			sent++
		}
		select {
		case ahead <- struct{}{}:
		case err := <-confirmed:
			return err
		}
		if stream.Send(request) != nil {
			break // the answers say why
		}
	}
	_ = stream.CloseSend() // never fails
	return <-confirmed
}

// preloadConfirmed reads the confirmations of a preload.
func (b *bench) preloadConfirmed(stream pb.MessageService_SendClient, ahead chan struct{}) error {
	batch := 0
	for confirmed := 0; confirmed < b.o.Preload; {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the stream ended after %d of %d confirmations", confirmed, b.o.Preload)
		}
		if err != nil {
			return err
		}
		for _, r := range answer.GetResults() {
			if e := r.GetError(); e != nil {
				return fmt.Errorf("%w: %s", errRefused, e.GetMessage())
			}
			if confirmed++; confirmed%(b.o.Preload/10+1) == 0 {
				b.progress("preload: %d of %d", confirmed, b.o.Preload)
			}
			if batch++; batch == preloadBatch {
				batch = 0
				<-ahead
			}
		}
	}
	return nil
}

// idle connects agents that wait for work which never comes.
func (b *bench) idle(ctx context.Context) error {
	var mu sync.Mutex
	var first error
	var running sync.WaitGroup
	room := make(chan struct{}, joining)
	for i := range b.o.Idle {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			c, err := b.join(ctx, fmt.Sprintf("idle-%d", i), "idle")
			if err == nil {
				_, err = openClaims(ctx, c, &pb.ClaimOpen{})
			}
			mu.Lock()
			defer mu.Unlock()
			if c != nil {
				b.burdens = append(b.burdens, c)
			}
			if err != nil && first == nil {
				first = err
			}
		})
	}
	running.Wait()
	return first
}

// subscribers opens subscriptions that read their first progress mark and nothing more.
func (b *bench) subscribers(ctx context.Context) error {
	for range b.o.Subscribers {
		c, err := b.connect(ctx)
		if err != nil {
			return err
		}
		b.burdens = append(b.burdens, c)
		stream, err := c.In(b.session).As("").Events().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{})
		if err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}
