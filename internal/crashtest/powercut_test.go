package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/crashtest/faultvfs"
	"brokerd/internal/testkit"
)

const (
	mostCuts   = 25  // of one data folder
	cutSenders = 8   // of which each waits for the confirmation of one message
	cutWithin  = 400 // operations after which the power is cut, at most
)

// cutPlan returns a power cut at a random operation.
func cutPlan(random *rand.Rand, n int, first, last int64) faultvfs.Plan {
	keep := []faultvfs.Keep{faultvfs.KeepNone, faultvfs.KeepSome, faultvfs.KeepTorn}[n%3]
	return faultvfs.Plan{Fault: faultvfs.PowerCut, At: first + random.Int64N(last-first+1), Keep: keep, Seed: random.Uint64()}
}

// awaitCut waits until the power is cut, which the plan has.
func (f *faulty) awaitCut(ctx context.Context) {
	f.t.Helper()
	err := f.ended(ctx)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 { // -1 stands for a signal
		f.t.Fatalf("the daemon ended with %v before the power cut: %s", err, f.Stderr())
	}
}

// The load and the comparison are those of the crash test. Power cuts also hit the start of the
// daemon, when it copies the log into the database.
func TestPowerCut_NothingConfirmedIsLostWithSyncFull(t *testing.T) {
	t.Parallel()
	cuts := int(fromEnvironment(t, "POWER_CUTS", 3))
	seed := fromEnvironment(t, "CRASH_SEED", 1)
	program := buildFaultd(t)
	atStart := 0
	for round := 0; round*mostCuts < cuts && !t.Failed(); round++ {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			t.Logf("CRASH_SEED=%d repeats the choices", seed)
			f := newFaulty(t, program, "full")
			s := newStage(t, f.daemon, uint64(seed))
			s.die = func(ctx context.Context, n int, flowing func()) {
				if n%4 != 3 { // otherwise it may end while they make up
					flowing()
				}
				f.cut(cutPlan(s.random, n, 1, cutWithin))
				f.awaitCut(ctx)
			}
			n := 0
			f.begin = func(ctx context.Context) error {
				if n++; n%3 == 2 && f.cutAtStart(ctx, cutPlan(s.random, n/3, 1, 30)) {
					atStart++
				}
				return f.launch(ctx, "full", faultvfs.Plan{})
			}
			s.play(min(cuts-round*mostCuts, mostCuts))
		})
		seed++
	}
	t.Logf("%d power cuts under load and %d at the start of the daemon; with --sync full nothing confirmed was lost", cuts, atStart)
}

// cutAtStart starts the process with a plan, and reports whether the power was cut before it answered calls.
func (f *faulty) cutAtStart(ctx context.Context, p faultvfs.Plan) bool {
	f.t.Helper()
	err := f.launch(ctx, "full", p)
	f.kill()
	return err != nil
}

func TestPowerCut_SyncNormalLosesTheLastConfirmedMessagesAndSyncFullNone(t *testing.T) {
	t.Parallel()
	cuts := int(fromEnvironment(t, "POWER_CUTS", 3))
	seed := fromEnvironment(t, "CRASH_SEED", 1)
	t.Logf("CRASH_SEED=%d repeats the choices", seed)
	program := buildFaultd(t)
	for _, mode := range []string{"full", "normal"} {
		t.Run(mode, func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			f := newFaulty(t, program, mode)
			before := prepare(t, f)
			confirmed, lost := 0, 0
			for n := range cuts {
				testkit.NoError(t, f.start(t.Context()))
				f.cut(cutPlan(random, n, cutWithin/2, cutWithin))
				sent := slices.Concat(before, sendUntilCut(t, f))
				f.awaitCut(t.Context())
				testkit.NoError(t, f.start(t.Context()))
				confirmed += len(sent) - len(before)
				lost += lostOf(t.Context(), t, f.daemon, sent)
				if err := f.terminate(); err != nil { // the next cut finds all this in the database
					t.Fatal(err)
				}
				testkit.NoError(t, f.Check(t.Context()))
			}
			t.Logf("--sync %s: %d power cuts, %d messages confirmed, %d of them lost", mode, cuts, confirmed, lost)
			if confirmed == 0 || lost > confirmed || (lost > 0) != (mode == "normal") {
				t.Errorf("with --sync %s, %d of %d confirmed messages were lost", mode, lost, confirmed)
			}
		})
	}
}

// prepare registers the agents, sends messages and stops the daemon, so that all this is in the
// database and no later power cut loses it.
func prepare(t *testing.T, f *faulty) []*pb.SendResult {
	t.Helper()
	testkit.NoError(t, f.start(t.Context()))
	testkit.NoError(t, register(t.Context(), f.daemon))
	m := &pb.Message{Target: toAgent("reader"), Subject: "before", Type: "work"}
	answer, err := f.messages.SendMessages(as(t.Context(), "writer-1"), &pb.SendMessagesRequest{Messages: []*pb.Message{m, m, m}})
	testkit.NoError(t, err)
	testkit.NoError(t, f.terminate())
	return answer.GetResults()
}

// sendUntilCut sends messages until the connection breaks, and returns the confirmed ones.
func sendUntilCut(t *testing.T, f *faulty) []*pb.SendResult {
	t.Helper()
	var mu sync.Mutex // guards sent
	var sent []*pb.SendResult
	var senders sync.WaitGroup
	for range cutSenders {
		senders.Go(func() {
			for {
				answer, err := f.messages.SendMessages(as(t.Context(), "writer-1"), &pb.SendMessagesRequest{Messages: []*pb.Message{
					{Target: toAgent("reader"), Subject: "x", Type: "work"}}})
				if cut(err) {
					return
				}
				if err != nil {
					t.Errorf("send: %v", err)
					return
				}
				mu.Lock()
				sent = append(sent, answer.GetResults()...)
				mu.Unlock()
			}
		})
	}
	senders.Wait()
	return sent
}

// lostOf returns how many of the confirmed messages are missing. These must be the last ones.
func lostOf(ctx context.Context, t *testing.T, d *daemon, sent []*pb.SendResult) int {
	t.Helper()
	slices.SortFunc(sent, func(a, b *pb.SendResult) int { return int(a.GetRevision() - b.GetRevision()) })
	lost := 0
	for _, m := range sent {
		got, err := d.messages.GetMessage(ctx, &pb.GetMessageRequest{Id: m.GetId()})
		switch {
		case status.Code(err) == codes.NotFound:
			lost++
		case err != nil:
			t.Fatal(err)
		case lost > 0 || got.GetMessage().GetRevision() != m.GetRevision():
			t.Errorf("%v is there as %v, after %d lost messages that were confirmed before", m, got, lost)
		}
	}
	return lost
}
