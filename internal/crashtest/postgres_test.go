package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// serverEnds is after how many ends of the daemon the next end is that of the server.
const serverEnds = 4

// The daemon keeps its data on a PostgreSQL server. For every four times that the daemon is killed, the server is killed
// once, and started again. The daemon then recovers by itself, or ends so that it is started again.
func TestCrash_NothingConfirmedIsLostOrDoneTwiceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	kills := int(fromEnvironment(t, "CRASH_KILLS", 4))
	kills += kills / serverEnds
	seed := fromEnvironment(t, "CRASH_SEED", rand.Int64())
	program := processtest.Build(t)
	ends, recovered := 0, 0
	for round := 0; kills > 0 && !t.Failed(); round++ {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			t.Logf("CRASH_SEED=%d repeats it", seed)
			server := postgrestest.Own(t)
			d := newDaemon(t, program)
			d.Store = server.URL("postgres")
			s := newStage(t, d, uint64(seed))
			s.server = server
			s.die = func(ctx context.Context, n int, flowing func()) {
				if n%(serverEnds+1) < serverEnds {
					s.kill(ctx, n, flowing)
					return
				}
				ends++
				if s.killServer(ctx, flowing) {
					recovered++
				}
			}
			s.play(min(kills, mostKills))
		})
		kills -= mostKills
		seed++
	}
	t.Logf("the server was killed %d times, and the daemon recovered by itself %d times", ends, recovered)
}

// killServer kills the server of the database after a random time and starts it again. It reports whether the daemon
// goes on, which writes again when killServer returns.
func (s *stage) killServer(ctx context.Context, flowing func()) (alive bool) {
	flowing()
	pause(ctx, time.Duration(20+s.random.IntN(380))*time.Millisecond)
	s.server.Kill()
	pause(ctx, time.Duration(s.random.IntN(300))*time.Millisecond)
	testkit.NoError(s, s.server.Restart())
	for ctx.Err() == nil {
		_, err := s.daemon.sessions.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{}})
		if err == nil {
			s.recovered = true
			return true
		}
		looking, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err = s.daemon.Wait(looking)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			s.Logf("the daemon ended: %v\n%s", err, s.daemon.Stderr())
			s.daemon.disconnect()
			return false
		}
	}
	return false
}
