package apptest

import (
	"context"
	"errors"
	"os"
	"testing"

	"brokerd/internal/app"
)

// ReplicasVariable is the environment variable that has each broker of a test be two replicas, on the server that
// postgrestest.Variable names. The clients of the test connect to the one that follows.
const ReplicasVariable = "BROKERD_TEST_REPLICAS"

// WithoutReplicas skips a test that replicas cannot pass, for a reason.
func WithoutReplicas(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(ReplicasVariable) != "" {
		t.Skip("not with replicas: " + reason)
	}
}

// errEnd is why replicas stop.
var errEnd = errors.New("the test stops it")

// A daemon is what Broker needs of the broker that it runs.
type daemon interface {
	Addresses() []string
	Metrics() string
	Stop(ctx context.Context) error
	Failed() <-chan error
	SleepingMailboxes(ctx context.Context) ([]string, error)
}

// run starts the broker of a test.
func (b *Broker) run() (daemon, error) {
	if b.replicas {
		p, err := runPair(b.config)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	a, err := app.Start(context.Background(), b.config)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// A Replica is one that runs in the process of a test.
type Replica struct {
	app.Daemon
	end   context.CancelCauseFunc
	ended chan error // gets what Run returns
}

// RunReplica starts a replica and returns once one leads.
func RunReplica(c app.Config) (*Replica, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &Replica{end: cancel, ended: make(chan error, 1)}
	ready := make(chan app.Daemon, 1)
	go func() { r.ended <- app.Run(ctx, c, func(d app.Daemon) { ready <- d }) }()
	select {
	case r.Daemon = <-ready:
		return r, nil
	case err := <-r.ended:
		cancel(nil)
		return nil, err
	}
}

// Stop stops the replica and returns with what it ended. Further calls return nil.
func (r *Replica) Stop() error {
	r.end(errEnd)
	err := <-r.ended
	r.ended <- nil
	return err
}

// A pair is a replica that leads, with a data folder that the test does not know, and one that follows.
type pair struct {
	leader, follower *Replica
	dir              string // of the leader
}

func runPair(c app.Config) (*pair, error) {
	dir, err := os.MkdirTemp("", "leader") // its path must be short: the socket lies there
	if err != nil {
		return nil, err
	}
	p := &pair{dir: dir}
	c.Replica = "127.0.0.1:0"
	leads := c
	leads.Dir, leads.Listen = dir, nil
	if p.leader, err = RunReplica(leads); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.Metrics, c.Pprof, c.Traces = "", "", "" // which the leader has
	if p.follower, err = RunReplica(c); err != nil {
		return nil, errors.Join(err, p.leader.Stop(), os.RemoveAll(dir))
	}
	return p, nil
}

// Addresses implements daemon.
func (p *pair) Addresses() []string { return p.follower.Addresses() }

// Metrics implements daemon.
func (p *pair) Metrics() string { return p.leader.Metrics() }

// Stop implements daemon. The leader takes its time whatever the context says.
func (p *pair) Stop(context.Context) error {
	return errors.Join(p.follower.Stop(), p.leader.Stop(), os.RemoveAll(p.dir))
}

// Failed implements daemon: Stop returns why a replica has failed.
func (*pair) Failed() <-chan error { return nil }

// SleepingMailboxes implements daemon. Only a broker without replicas is examined.
func (*pair) SleepingMailboxes(context.Context) ([]string, error) { return nil, nil }
