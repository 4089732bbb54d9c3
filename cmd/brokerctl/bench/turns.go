package bench

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const (
	lockers    = 32
	contenders = 8
	keepers    = 8  // agents that hold the locks which are held meanwhile
	fewHeld    = 10 // locks, in workload locks
	turnWait   = time.Minute
)

func lockOwn(ctx context.Context, b *bench, prefix string) (Result, error) {
	return b.lockAmong(ctx, prefix, fewHeld)
}

func lockOwnAmongMany(ctx context.Context, b *bench, prefix string) (Result, error) {
	return b.lockAmong(ctx, prefix, b.o.Held)
}

// lockAmong has clients take and release locks of their own, while others hold so many: half of them files, half directories.
func (b *bench) lockAmong(ctx context.Context, prefix string, held int) (Result, error) {
	keeping, err := b.joinMany(ctx, keepers, prefix+"-keeper-%d", "keeper")
	defer closeAll(keeping)
	if err != nil {
		return Result{}, err
	}
	err = atOnce(keeping, func(i int, c *client.Client) error {
		l := c.NewLocker()
		defer l.Close()
		for n := i; n < held; n += keepers {
			path := fmt.Sprintf("held/%d/%s-%d%s", n%100, prefix, n, prompt.Either(n%2 == 1, "/", ".go"))
			if _, err := b.acquire(ctx, l, path, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Result{}, fmt.Errorf("hold locks: %w", err)
	}
	r, err := b.lockAndRelease(ctx, lockers, prefix, func(i int) string { return fmt.Sprintf("src/%s/main.go", name(prefix, i)) }, 0)
	r.LeastShare, r.MostShare = 0, 0 // they share nothing
	if err != nil {
		return r, err
	}
	return r, atOnce(keeping, func(_ int, c *client.Client) error {
		_, err := c.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{All: true})
		return err
	})
}

// contended: all take and release the same lock.
func contended(ctx context.Context, b *bench, prefix string) (Result, error) {
	return b.lockAndRelease(ctx, contenders, prefix, func(int) string { return "src/shared.go" }, turnWait)
}

// lockAndRelease has clients lock a path and release it at once. What is measured is both calls together.
func (b *bench) lockAndRelease(ctx context.Context, clients int, prefix string, path func(i int) string, wait time.Duration) (Result, error) {
	locking, err := b.joinMany(ctx, clients, prefix+"-%d", "locker")
	defer closeAll(locking)
	if err != nil {
		return Result{}, err
	}
	lockers := make([]*client.Locker, clients)
	for i, c := range locking {
		lockers[i] = c.NewLocker()
		defer lockers[i].Close()
	}
	return b.loop(ctx, locking, func(ctx context.Context, i int, _ *client.Client) (time.Duration, error) {
		began := time.Now()
		fence, err := b.acquire(ctx, lockers[i], path(i), wait)
		if err != nil {
			return 0, err
		}
		released, err := lockers[i].Release(ctx, &pb.ReleaseLocksRequest{RequestId: b.requestID(), Fences: []int64{fence}})
		if err == nil && released.GetReleased() != 1 {
			err = fmt.Errorf("the lock on %s was lost", path(i))
		}
		return time.Since(began), err
	})
}

// acquire locks a path and returns the fence.
func (b *bench) acquire(ctx context.Context, l *client.Locker, path string, wait time.Duration) (int64, error) {
	r, err := l.Acquire(ctx, &pb.AcquireLocksRequest{RequestId: b.requestID(), Paths: []string{path}, Wait: durationpb.New(wait)})
	if err == nil && r.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = fmt.Errorf("%s was not locked: %v", path, r)
	}
	return r.GetFence(), err
}

// tokens: two agents pass a token to each other and wait to get it back. What is measured is the way there and back.
func tokens(ctx context.Context, b *bench, prefix string) (Result, error) {
	two, err := b.joinMany(ctx, 2, prefix+"-%d", "player")
	defer closeAll(two)
	if err != nil {
		return Result{}, err
	}
	p := &players{b: b, scope: prefix}
	if err := p.take(ctx, two[0]); err != nil {
		return Result{}, err
	}
	answering, stop := context.WithCancel(ctx)
	defer stop()
	answered := make(chan error, 1)
	go func() {
		for answering.Err() == nil {
			err := p.take(answering, two[1])
			if err == nil {
				err = p.pass(answering, two[1], two[0])
			}
			if err != nil && answering.Err() == nil {
				answered <- err
				stop()
			}
		}
		close(answered)
	}()
	r, err := b.loop(answering, two[:1], func(ctx context.Context, _ int, c *client.Client) (time.Duration, error) {
		began := time.Now()
		err := p.pass(ctx, c, two[1])
		if err == nil {
			err = p.take(ctx, c)
		}
		return time.Since(began), err
	})
	stop()
	if failed := <-answered; failed != nil {
		return Result{}, failed
	}
	r.LeastShare, r.MostShare = 0, 0
	if err != nil {
		return r, err
	}
	return r, atOnce(two, func(_ int, c *client.Client) error { return p.tidy(ctx, c) })
}

// players have a token.
type players struct {
	b     *bench
	scope string
}

const tokenType = "bench"

// take waits for the token.
func (p *players) take(ctx context.Context, c *client.Client) error {
	r, err := c.Tokens().AcquireToken(ctx, &pb.AcquireTokenRequest{RequestId: p.b.requestID(), Type: tokenType, Scope: p.scope, Wait: durationpb.New(turnWait)})
	if err == nil && r.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = fmt.Errorf("the token did not come: %v", r)
	}
	return err
}

// pass gives the token to the other.
func (p *players) pass(ctx context.Context, c, other *client.Client) error {
	_, err := c.Tokens().PassToken(ctx, &pb.PassTokenRequest{RequestId: p.b.requestID(), Type: tokenType, Scope: p.scope,
		To: &pb.PassTokenRequest_Agent{Agent: other.Identity().Agent}})
	return err
}

// tidy gives the token or the place in its queue back, and acknowledges the notices of tokens that came while nobody waited.
func (p *players) tidy(ctx context.Context, c *client.Client) error {
	if _, err := c.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: tokenType, Scope: p.scope}); err != nil {
		return err
	}
	for {
		notices, err := c.Messages().ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1000})
		if err != nil || len(notices.GetClaims()) == 0 {
			return err
		}
		acks := &pb.AckMessagesRequest{}
		for _, n := range notices.GetClaims() {
			acks.Ids = append(acks.Ids, n.GetClaimId())
		}
		if _, err := c.Messages().AckMessages(ctx, acks); err != nil {
			return err
		}
	}
}
