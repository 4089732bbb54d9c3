package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
)

// drain winds up after ctx ended and the stream is closed, with unary calls: on a stream the broker would go on handing
// out work to it. What was not begun goes back at once; handlers may go on until DrainTimeout is over.
func (w *worker) drain() error {
	w.mu.Lock()
	w.returnReady()
	w.mu.Unlock()

	ctx, cancel := context.WithTimeout(w.base, w.o.DrainTimeout+stopGrace)
	defer cancel()
	timeout := time.AfterFunc(w.o.DrainTimeout, func() { w.cancelHandlers(ErrStopped) })
	defer timeout.Stop()
	claimFor := w.o.ClaimFor
	if claimFor <= 0 {
		claimFor = defaultClaimFor
	}
	extend := time.NewTicker(claimFor / 3)
	defer extend.Stop()
	for {
		if err := w.settleAll(ctx); err != nil {
			w.cancelHandlers(ErrStopped)
			return fmt.Errorf("stop working: settle what was done: %w", err)
		}
		if w.idle() {
			return nil
		}
		select {
		case <-w.changed:
		case <-extend.C:
			w.extendAll(ctx)
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			return fmt.Errorf("stop working: %d handlers did not return within %v; their claims run out", w.running, w.o.DrainTimeout+stopGrace)
		}
	}
}

// abandon winds up after an error that trying again does not heal: handlers are stopped, and nothing more is
// settled, because nothing would be accepted.
func (w *worker) abandon(cause error) error {
	w.mu.Lock()
	w.paused = true
	w.mu.Unlock()
	w.cancelHandlers(fmt.Errorf("%w: %w", ErrClaimLost, cause))
	timeout := time.NewTimer(w.o.DrainTimeout)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		running := w.running
		w.mu.Unlock()
		if running == 0 {
			return cause
		}
		select {
		case <-w.changed:
		case <-timeout.C:
			return fmt.Errorf("%w (%d handlers did not return within %v)", cause, running, w.o.DrainTimeout)
		}
	}
}

// cancelHandlers cancels the contexts of all that run.
func (w *worker) cancelHandlers(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if j.cancel != nil {
			j.cancel(why)
		}
	}
}

// idle reports whether nothing runs and nothing is to be settled.
func (w *worker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running == 0 && len(w.outbox) == 0
}

// settleAll settles what is in the outbox, each kind in one call. It returns an error only if ctx ended or the broker
// could not be reached.
func (w *worker) settleAll(ctx context.Context) error {
	w.mu.Lock()
	taken := w.outbox
	w.outbox = nil
	w.mu.Unlock()
	for _, kind := range []settlementKind{ack, nack, release} {
		var some []settlement
		for _, s := range taken {
			if s.kind == kind {
				some = append(some, s)
			}
		}
		if err := w.settleTogether(ctx, kind, some); err != nil {
			return err
		}
	}
	return nil
}

// settleTogether settles claims in one call, and each by itself if that was refused: calls are all or nothing.
func (w *worker) settleTogether(ctx context.Context, kind settlementKind, some []settlement) error {
	if len(some) == 0 {
		return nil
	}
	err := w.settleOnce(ctx, kind, some)
	for err != nil && transient(err) {
		if !w.retry.wait(ctx, err) {
			return err
		}
		err = w.settleOnce(ctx, kind, some)
	}
	if ctx.Err() != nil && err != nil {
		return err
	}
	if err != nil && len(some) > 1 {
		for i := range some {
			if err := w.settleTogether(ctx, kind, some[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	w.close(some)
	for _, s := range some {
		w.report(s, err)
	}
	return nil
}

func (w *worker) settleOnce(ctx context.Context, kind settlementKind, some []settlement) error {
	ids := make([]string, len(some))
	nacks := make([]*pb.Nack, len(some))
	for i, s := range some {
		ids[i], nacks[i] = s.job.claim.ID, s.nack
	}
	messages, wait := w.client.Messages(), grpc.WaitForReady(true)
	var err error
	switch kind {
	case ack:
		_, err = messages.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids}, wait)
	case nack:
		_, err = messages.NackMessages(ctx, &pb.NackMessagesRequest{Nacks: nacks}, wait)
	case release:
		_, err = messages.ReleaseClaims(ctx, &pb.ReleaseClaimsRequest{Ids: ids}, wait)
	}
	return err
}

// extendAll gives what is still being handled more time, now that no stream does; a claim that cannot be extended is lost.
func (w *worker) extendAll(ctx context.Context) {
	w.mu.Lock()
	var running []*job
	for _, j := range w.jobs {
		if j.cancel != nil && j.lost == nil {
			running = append(running, j)
		}
	}
	w.mu.Unlock()
	for _, j := range running {
		_, err := w.client.Messages().ExtendClaims(ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: j.claim.ID}}})
		if err == nil || transient(err) || ctx.Err() != nil {
			continue
		}
		w.mu.Lock()
		w.lose(j, fmt.Errorf("%w: %w", ErrClaimLost, err))
		w.mu.Unlock()
	}
}
