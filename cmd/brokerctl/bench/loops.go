package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"brokerd/client"
)

// A step is what a client does again and again, and how long the part of it took that is measured.
type step func(ctx context.Context, i int, c *client.Client) (time.Duration, error)

// loop has clients do steps, each one after the other, for as long as a workload lasts. The first error ends it.
func (b *bench) loop(ctx context.Context, clients []*client.Client, do step) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	usage, err := b.meter(ctx)
	if err != nil {
		return Result{}, err
	}
	defer usage.stop()
	took := make([][]time.Duration, len(clients))
	start := time.Now()
	end := start.Add(b.o.Duration)
	var running sync.WaitGroup
	for i, c := range clients {
		running.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				d, err := do(ctx, i, c)
				if err != nil {
					cancel(err)
					return
				}
				took[i] = append(took[i], d)
			}
		})
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	all := slices.Concat(took...)
	r := resultOf(len(all), time.Since(start), all)
	fair := float64(len(all)) / float64(len(clients))
	for i, own := range took {
		share := float64(len(own)) / fair
		if i == 0 {
			r.LeastShare = share
		}
		r.LeastShare, r.MostShare = min(r.LeastShare, share), max(r.MostShare, share)
	}
	return r, usage.into(ctx, &r)
}

// atOnce calls do for every client, all at the same time, and returns the first error.
func atOnce(clients []*client.Client, do func(i int, c *client.Client) error) error {
	errs := make([]error, len(clients))
	var running sync.WaitGroup
	for i, c := range clients {
		running.Go(func() { errs[i] = do(i, c) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// requestID returns the id of a change, empty unless they have one.
func (b *bench) requestID() string {
	if !b.o.Numbered {
		return ""
	}
	return uuid.Must(uuid.NewV7()).String()
}

// name is that of an agent or a file of a round.
func name(prefix string, i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
