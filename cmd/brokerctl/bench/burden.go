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
	fillBatch        = 500
	fillAhead        = 4  // batches not yet confirmed
	joining          = 16 // idle agents that connect at the same time
)

// burden creates the load that the broker carries beside the workloads.
func (b *bench) burden(ctx context.Context) error {
	for _, part := range []struct {
		size         int
		name, report string // the report has the size
		create       func(context.Context) error
	}{
		{b.o.Finished, "finished messages", "", b.finish}, // it reports as it goes
		{b.o.Preload, "preload", fmt.Sprintf("preload: %%d messages in %d mailboxes", preloadMailboxes), b.preload},
		{b.o.Idle, "idle agents", "idle: %d agents", b.idle},
		{b.o.Subscribers, "event subscribers", "subscribers: %d that do not read", b.subscribers},
		{b.o.Watchers, "dashboards", "watchers: %d dashboards", b.dashboards},
	} {
		if part.size <= 0 {
			continue
		}
		if part.report != "" {
			b.progress(part.report, part.size)
		}
		if err := part.create(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// preload sends messages to roles that no agent has, where they wait.
func (b *bench) preload(ctx context.Context) error {
	return b.fill(ctx, "preloader", b.o.Preload, func(i int) *pb.Target {
		return toRole(fmt.Sprintf("waiting-%d", i%preloadMailboxes))
	})
}

// fill registers a sender and sends count messages. target returns the receiver of the i-th
// message.
func (b *bench) fill(ctx context.Context, sender string, count int, target func(i int) *pb.Target) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := b.join(ctx, sender, "filler")
	if err != nil {
		return err
	}
	defer c.Close()
	stream, err := c.Messages().Send(ctx)
	if err != nil {
		return err
	}
	ahead := make(chan struct{}, fillAhead)
	confirmed := make(chan error, 1)
	go func() { confirmed <- b.filled(stream, count, ahead) }()
	kind, payload := b.o.content()
	for sent := 0; sent < count; {
		request := &pb.SendRequest{}
		for range min(fillBatch, count-sent) {
			to := target(sent)
			m := &pb.Message{Target: to, Type: kind, Payload: payload(0)}
			if to.GetRole() != "" {
				m.Reach = pb.Reach_REACH_ONE
			}
			request.Messages = append(request.Messages, m)
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

// filled reads the confirmations of fill.
func (b *bench) filled(stream pb.MessageService_SendClient, count int, ahead chan struct{}) error {
	batch := 0
	for confirmed := 0; confirmed < count; {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the stream ended after %d of %d confirmations", confirmed, count)
		}
		if err != nil {
			return err
		}
		for _, r := range answer.GetResults() {
			if e := r.GetError(); e != nil {
				return fmt.Errorf("%w: %s", errRefused, e.GetMessage())
			}
			if confirmed++; confirmed%(count/10+1) == 0 {
				b.progress("%d of %d", confirmed, count)
			}
			if batch++; batch == fillBatch {
				batch = 0
				<-ahead
			}
		}
	}
	return nil
}

// finish sends messages until so many have been acknowledged.
func (b *bench) finish(ctx context.Context) error {
	t := traffic{senders: 4, batch: 256, consumers: 4, claims: 256}
	for done, round := 0, 0; done < b.o.Finished; round++ {
		r, err := t.measure(ctx, b, fmt.Sprintf("finished-%d", round))
		if err != nil {
			return err
		}
		done += r.Count
		b.progress("finished: %d of %d", done, b.o.Finished)
	}
	return nil
}

// idle connects agents that wait for work which never comes.
func (b *bench) idle(ctx context.Context) error {
	var mu sync.Mutex
	var first error
	var running sync.WaitGroup
	slots := make(chan struct{}, joining)
	for i := range b.o.Idle {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
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
