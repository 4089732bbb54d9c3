package hostile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

const (
	attemptGap    = 5 * time.Millisecond  // between two attempts
	largeGap      = 75 * time.Millisecond // between two requests that are too large: 9 MiB on a network of 1 Gbit/s
	measuredTurns = 5                     // of a quiet and an attacked part each
	doubtfulTurns = 20                    // if the first turns exceed the bound
	mostSlower    = 2                     // times the quiet p99 that another client's may be under attack
	single        = 200
	mostRefusal   = 10 * time.Millisecond // for a request that is too large
	waiting       = 10                    // clients of an assault that wait at the same time
	processors    = 16                    // of Go's scheduler
)

// A bound is how large the p99 of another client may be under attack: a number of times the quiet p99, or
// least if that is more.
type bound struct {
	times int
	least time.Duration
}

func (b bound) exceeded(quiet, attacked []time.Duration) bool {
	return percentile(attacked, 99) > max(b.least, time.Duration(b.times)*percentile(quiet, 99))
}

// fromEnvironment returns the duration in an environment variable.
func fromEnvironment(t testing.TB, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(name, err)
	}
	return d
}

// TestMeasure_ABystanderKeepsItsLatency is a measurement, which make hostile runs.
func TestMeasure_ABystanderKeepsItsLatency(t *testing.T) {
	part := fromEnvironment(t, "HOSTILE_ROUND", 0)
	if part == 0 {
		t.Skip("this measurement takes minutes: make hostile")
	}
	// The bystander must not wait for a processor of Go's scheduler that a thread of low priority has.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
	// Nor for such a thread to stop for a garbage collection, which rounds makes between the parts.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	w := newWorld(t)
	m := measurement{target: w.target, t: t, part: part, bystander: w.bystander(), bound: bound{times: mostSlower}}
	t.Logf("an attacker repeats each attempt every %v, those of a large request every %v", attemptGap, largeGap)
	t.Logf("meanwhile a bystander sends, claims and acknowledges one message at a time")
	t.Logf("%9s %9s %9s %9s %6s %9s", "quiet p50", "p99", "attack p50", "p99", "ratio", "attempts/s")
	for _, a := range w.abuses() {
		if a.code == codes.OK {
			continue // another daemon refuses to start: this one has no part in it
		}
		t.Run(a.attempt+"/"+a.variant, func(t *testing.T) {
			m.t = t
			gap := attemptGap
			if a.attempt == tooLarge {
				gap = largeGap
			}
			m.beside(gap, func(ctx context.Context) {
				err := a.try(ctx)
				if ctx.Err() == nil && a.want(err) != nil && testkit.Reason(err) != "TOO_MANY_FAILED_ATTEMPTS" {
					t.Error(a.want(err))
				}
			})
			if a.attempt == tooLarge {
				m.alone(&a)
			}
		})
	}
	for _, a := range w.webAbuses() {
		t.Run("HTTP/"+a.name, func(t *testing.T) {
			m.t = t
			gap := attemptGap
			if a.large {
				gap = largeGap
			}
			m.beside(gap, func(ctx context.Context) {
				if err := a.want(a.try(ctx)); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		})
	}
	subscribe, err := proto.Marshal(&pb.SubscribeEventsRequest{AfterRevision: new(int64)})
	apptest.NoError(t, err)
	for _, a := range assaults(pb.EventService_SubscribeEvents_FullMethodName, subscribe) {
		for _, p := range w.transports() {
			t.Run(a.name+"/"+p.name, func(t *testing.T) {
				m.t = t
				m.beside(attemptGap, func(ctx context.Context) { m.assault(ctx, &a, p) })
			})
		}
	}
	for name, beginnings := range map[string][]string{"gRPC": {halfPreface(nil)}, "HTTP/1.1": halfRequests()} {
		t.Run(name+" 1,000 half-open connections", func(t *testing.T) {
			m.t = t
			m.beside(attemptGap, func(ctx context.Context) {
				open, err := m.openHalf("", beginnings...)
				defer open.close()
				if err != nil {
					t.Error(err)
				}
				<-ctx.Done()
			})
		})
	}
	w.fuzz(t, &m)
}

// assault makes an assault. If its client waits, further clients begin the same, one after each dripGap.
func (m *measurement) assault(ctx context.Context, a *assault, p transport) {
	do := func() {
		if err := a.run(ctx, p); err != nil {
			m.t.Error(err)
		}
	}
	if !a.waits {
		do()
		return
	}
	var all sync.WaitGroup
	pace := time.NewTicker(dripGap)
	defer pace.Stop()
	for range waiting {
		all.Go(do)
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
}

// fuzz measures random requests of an agent.
func (w *world) fuzz(t *testing.T, m *measurement) {
	t.Helper()
	_, secret := w.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "alice")
	as := party{secret: secret}
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	f, routes := fuzzer{Rand: rand.New(rand.NewPCG(seed, 0))}, w.routes()
	c, b := w.tcpClient(as), w.browser(w.transports()[1], as)
	for name, try := range map[string]func() error{
		"random calls": func() error {
			method := pick(f, methods()...)
			if err := f.call(c.conn, method); broken(err) {
				return fmt.Errorf("%s: %w", method.FullName(), err)
			}
			return nil
		},
		"HTTP/random requests": func() error {
			if status, what := f.visit(b, pick(f, routes...)); failed(status) {
				return fmt.Errorf("%s: %d", what, status)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			m.t = t
			m.beside(attemptGap, func(context.Context) {
				if err := try(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A measurement compares the latency of a bystander with and without an attacker.
type measurement struct {
	*target
	t         *testing.T
	part      time.Duration
	bystander *bystander
	bound     bound
}

// beside measures quiet and attacked parts in turn, so that other work of the machine affects both.
func (m *measurement) beside(gap time.Duration, try func(context.Context)) {
	var quiet, attacked []time.Duration
	var attempts atomic.Int64
	var took time.Duration
	ratio := func() float64 { return float64(percentile(attacked, 99)) / float64(percentile(quiet, 99)) }
	for turn := 0; turn < measuredTurns || turn < doubtfulTurns && m.bound.exceeded(quiet, attacked); turn++ {
		quiet = append(quiet, m.rounds()...)
		ctx, cancel := context.WithCancel(patient(m.t))
		var attacking sync.WaitGroup
		attacking.Go(func() {
			if err := yieldProcessor(); err != nil {
				m.t.Error(err)
			}
			pace := time.NewTicker(gap)
			defer pace.Stop()
			for ctx.Err() == nil {
				try(ctx)
				attempts.Add(1)
				<-pace.C
			}
		})
		began := time.Now()
		attacked = append(attacked, m.rounds()...)
		took += time.Since(began)
		cancel()
		attacking.Wait()
	}
	m.t.Logf("%9s %9s %9s %9s %6.2f %9.0f", ms(percentile(quiet, 50)), ms(percentile(quiet, 99)),
		ms(percentile(attacked, 50)), ms(percentile(attacked, 99)), ratio(), float64(attempts.Load())/took.Seconds())
	if m.bound.exceeded(quiet, attacked) {
		m.t.Errorf("the bystander's p99 is %s, which is %.2f times its quiet value; the bound is %d times, or %s",
			ms(percentile(attacked, 99)), ratio(), m.bound.times, ms(m.bound.least))
	}
}

// yieldProcessor gives the thread of the calling goroutine the lowest priority until the goroutine ends. The
// attacker stands for a program on another machine: only the work that it causes in the daemon may slow the
// bystander. On Linux, 0 is the calling thread.
func yieldProcessor() error {
	runtime.LockOSThread()
	return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
}

// rounds returns how long the bystander's rounds take in one part.
func (m *measurement) rounds() []time.Duration {
	m.bystander.took = nil
	runtime.GC()
	for end := time.Now().Add(m.part); time.Now().Before(end); {
		apptest.NoError(m.t, m.bystander.round(patient(m.t)))
	}
	return m.bystander.took
}

// alone measures how long the broker takes to refuse one request that is too large.
func (m *measurement) alone(a *abuse) {
	var took []time.Duration
	for range single {
		began := time.Now()
		if err := a.want(a.try(patient(m.t))); err != nil {
			m.t.Error(err)
		}
		took = append(took, time.Since(began))
	}
	m.t.Logf("%s: answered within %s (p50), %s (p99)", a.variant, ms(percentile(took, 50)), ms(percentile(took, 99)))
	if percentile(took, 50) > mostRefusal {
		m.t.Errorf("%s: the bound is %s", a.variant, mostRefusal)
	}
}

// percentile returns the p-th percentile; 0 of nothing.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*p/100]
}

func ms(d time.Duration) string {
	return strings.TrimSuffix(d.Round(10*time.Microsecond).String(), "0s")
}
