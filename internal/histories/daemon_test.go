package histories_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
)

// A daemon is a brokerd process, and a connection that outlives it: calls wait until it is there again.
type daemon struct {
	*processtest.Daemon
	conn *grpc.ClientConn
}

func newDaemon(t *testing.T, program string) *daemon {
	t.Helper()
	d := &daemon{Daemon: processtest.New(t, program)}
	var err error
	d.conn, err = grpc.NewClient(d.Address(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: patience,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.conn.Close() })
	return d
}

// liveAndDie kills the daemon and starts it again, until ctx ends. The daemon lives at least as long as its start took.
func (d *daemon) liveAndDie(ctx context.Context, t *trial, random *rand.Rand) {
	var start time.Duration
	for {
		pause(ctx, start+time.Duration(100+random.IntN(500))*time.Millisecond)
		if ctx.Err() != nil {
			return
		}
		d.Kill()
		t.kills.Add(1)
		began := time.Now()
		if err := d.Start(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
			return
		}
		start = time.Since(began)
	}
}

// verify has the broker check its database, and checks it again once the daemon has ended.
func (d *daemon) verify(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := pb.NewAdminServiceClient(d.conn).CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	if err != nil {
		t.Error(err)
	}
	if len(found.GetProblems()) > 0 {
		t.Errorf("the database is not sound: %q", found.GetProblems())
	}
	if err := d.Terminate(); err != nil {
		t.Errorf("the daemon did not stop in order: %v\n%s", err, d.Stderr())
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}

// pause waits for as long as d, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
