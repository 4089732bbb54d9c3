package replica_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/replica"
	"brokerd/internal/rpc"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

var seeds = flag.Int("seeds", 100, "simulations of replicas that lose the lead; make sim runs 10,000")

// The simulation runs the election of replicas as it is, with a model of the server and of brokers that commit, in the
// time of testing/synctest. Replicas are killed, stopped, frozen and cut off, the server restarts and ends connections.
const (
	simReplicas = 3
	simTime     = 40 * time.Second
	simFaults   = 12

	// simGap is the longest time without a commit while a replica works and reaches the server: the lease, two looks, and
	// the pause after an attempt that failed.
	simGap = postgres.Lease + 2*time.Second
	// simStale is how long a replica that runs may believe to lead after another one does.
	simStale = 2*postgres.Lease + 3*time.Second
)

// A simProcess is one run of a replica.
type simProcess struct {
	of      *sim
	address string
	replica *replica.Replica
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	rng     *rand.Rand
	dead    bool
	barrier chan struct{} // closed when it is neither frozen nor cut off any more; nil if it is neither
	frozen  bool
	epoch   int64 // under which it last began to lead
	stale   time.Time
}

// A sim is one simulation.
type sim struct {
	server simServer
	mu     sync.Mutex
	now    []*simProcess // by the number of the replica; nil while it does not run
}

// standBy is what a broker does until it leads.
func (p *simProcess) standBy(ctx context.Context) (replica.Term, error) {
	session := &simSession{}
	for {
		held := false
		err := p.ask(ctx, func(s *simServer, now time.Time) error {
			if s.holder == nil {
				s.holder, session.spoke, held = session, now, true
			}
			return nil
		})
		if err != nil {
			p.hangUp(session)
			return nil, err
		}
		if held {
			break
		}
		if wait(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	var epoch int64
	err := p.ask(ctx, func(s *simServer, now time.Time) error {
		if session.ended {
			return lost(errCut)
		}
		s.epoch++
		session.spoke, epoch = now, s.epoch
		return nil
	})
	var gone <-chan error
	if err == nil {
		gone, err = p.replica.Lead(ctx, rpc.NewPassage(), epoch)
	}
	if err != nil {
		p.hangUp(session)
		return nil, err
	}
	p.mu.Lock()
	p.epoch = epoch
	p.mu.Unlock()
	return func(ctx context.Context) error {
		defer p.hangUp(session)
		defer p.replica.Follow()
		for {
			pause := time.NewTimer(p.random(200 * time.Millisecond))
			select {
			case <-ctx.Done():
				return nil
			case err := <-gone:
				return fmt.Errorf("%w: %w", store.ErrUnknown, err)
			case <-pause.C:
			}
			if err := p.commit(ctx, session, epoch); err != nil {
				return fmt.Errorf("%w: %w", store.ErrUnknown, err)
			}
		}
	}, nil
}

// commit commits with the fence.
func (p *simProcess) commit(ctx context.Context, session *simSession, epoch int64) error {
	return p.ask(ctx, func(s *simServer, now time.Time) error {
		if session.ended || s.epoch != epoch {
			return errCut
		}
		session.spoke = now
		s.commits++
		return nil
	})
}

// hangUp closes a connection. The server does not notice that of a process which is cut off.
func (p *simProcess) hangUp(session *simSession) {
	p.mu.Lock()
	cut := p.barrier != nil
	p.mu.Unlock()
	if !cut {
		p.of.server.mu.Lock()
		p.of.server.end(session)
		p.of.server.mu.Unlock()
	}
}

// random returns a time from 1 ms to most.
func (p *simProcess) random(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Millisecond + time.Duration(p.rng.Int64N(int64(most)))
}

// wait waits in the time of the simulation.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A quiet is the listener of a replica to which no other one connects.
type quiet struct {
	at     net.Addr
	closed chan struct{}
	once   *sync.Once
}

// Accept implements net.Listener.
func (q quiet) Accept() (net.Conn, error) {
	<-q.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (q quiet) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q quiet) Addr() net.Addr { return q.at }

// launch starts a replica.
func (s *sim) launch(t *testing.T, n int, rng *rand.Rand) *simProcess {
	at := &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(n+1)), Port: 7423}
	p := &simProcess{of: s, address: at.String(), rng: rand.New(rand.NewPCG(rng.Uint64(), 0))}
	var err error
	p.replica, err = replica.NewOn(replica.Options{Address: at.String(), Roster: p, Log: zap.NewNop()},
		quiet{at, make(chan struct{}), new(sync.Once)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.stop = cancel
	p.replica.Start()
	p.done.Go(func() {
		// A replica that has never read the list ends with the error: its supervisor starts it again.
		for p.replica.Run(ctx, p.standBy) != nil && ctx.Err() == nil {
			wait(ctx, time.Second)
		}
		if err := p.replica.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// end ends a process: by itself, or as a crash does.
func (p *simProcess) end(crash bool) {
	p.mu.Lock()
	p.dead = crash
	p.mu.Unlock()
	p.hold(false, false)
	p.stop()
	p.done.Wait()
}

// hold freezes a process, cuts it off, or ends both.
func (p *simProcess) hold(frozen, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.barrier != nil {
		close(p.barrier)
		p.barrier = nil
	}
	if p.frozen = frozen; frozen || cut {
		p.barrier = make(chan struct{})
	}
}

// works reports whether a process runs and reaches the server.
func (p *simProcess) works() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.barrier == nil && !p.dead
}

// disturb lets one thing go wrong, for some time.
func (s *sim) disturb(t *testing.T, rng *rand.Rand, ctx context.Context) {
	n := rng.IntN(simReplicas)
	p := s.now[n] // which this goroutine alone changes
	become := func(p *simProcess) {
		s.mu.Lock()
		s.now[n] = p
		s.mu.Unlock()
	}
	span := time.Duration(rng.Int64N(int64(9 * time.Second)))
	switch kind := rng.IntN(6); {
	case kind <= 1: // stopped, or killed
		become(nil)
		p.end(kind == 1)
		wait(ctx, span/3)
		become(s.launch(t, n, rng))
	case kind <= 3:
		p.hold(kind == 2, kind == 3)
		wait(ctx, span)
		p.hold(false, false)
	default: // the server restarts, or ends the connection
		s.server.mu.Lock()
		if s.server.holder != nil {
			s.server.end(s.server.holder)
		}
		s.server.down = kind == 5
		s.server.mu.Unlock()
		wait(ctx, span/4)
		s.server.mu.Lock()
		s.server.down = false
		s.server.mu.Unlock()
	}
}

// watch looks for a replica that believes to lead for too long, and for a time without commits.
func (s *sim) watch(ctx context.Context, t *testing.T, seed int) {
	count, since := 0, time.Now()
	for wait(ctx, 50*time.Millisecond); ctx.Err() == nil; wait(ctx, 50*time.Millisecond) {
		s.server.mu.Lock()
		commits, down, epoch := s.server.commits, s.server.down, s.server.epoch
		s.server.mu.Unlock()
		s.mu.Lock()
		running := slices.Clone(s.now)
		s.mu.Unlock()
		if commits > count || down || !slices.ContainsFunc(running, (*simProcess).works) {
			count, since = commits, time.Now()
		}
		if gap := time.Since(since); gap > simGap {
			t.Errorf("seed %d: nothing was committed for %v", seed, gap)
			return
		}
		for _, p := range running {
			if p == nil {
				continue
			}
			leads := p.replica.Standing().Leads
			p.mu.Lock()
			if !leads || p.epoch == epoch || p.frozen {
				p.stale = time.Now()
			}
			if stale := time.Since(p.stale); stale > simStale {
				t.Errorf("seed %d: %s believes to lead for %v since another replica does", seed, p.address, stale)
			}
			p.mu.Unlock()
		}
	}
}

func simulate(t *testing.T, seed int) {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	s := &sim{server: simServer{rows: map[string]*simRow{}}}
	for n := range simReplicas {
		s.now = append(s.now, s.launch(t, n, rng))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx, t, seed) })
	for range simFaults {
		wait(ctx, time.Duration(rng.Int64N(int64(simTime/simFaults))))
		s.disturb(t, rng, ctx)
	}
	wait(ctx, simGap) // all is well again
	cancel()
	watching.Wait()
	leader := ""
	for _, p := range s.now {
		for _, one := range p.replica.Standing().Replicas {
			if one.Leading && leader != "" && one.Address != leader {
				t.Errorf("seed %d: the replicas follow both %s and %s", seed, leader, one.Address)
			}
			if one.Leading {
				leader = one.Address
			}
		}
	}
	if leader == "" {
		t.Errorf("seed %d: no replica leads", seed)
	}
	for _, p := range s.now {
		p.end(false)
	}
}

func TestSim_OneReplicaLeadsWhateverGoesWrong(t *testing.T) {
	t.Parallel()
	for shard := range 4 {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < *seeds && !t.Failed(); seed += 4 {
				synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
			}
		})
	}
}
