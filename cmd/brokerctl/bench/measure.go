package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// drainTime is how long consumers have, after the last send, to acknowledge everything.
const drainTime = 20 * time.Second

// A traffic says how hard, and in what shape, the queue of messages is driven.
type traffic struct {
	senders   int
	batch     int // messages confirmed together
	consumers int
	claims    int           // held at the same time by one consumer, each acknowledged by itself
	pace      time.Duration // wait between two sends of one sender; 0 = as fast as it can
	numbered  bool          // senders number their messages, as with Options.Numbered
	objects   bool          // payloads are JSON objects, not strings
	sendsPer  int           // Options.Waiting messages wait, and one is acknowledged for so many confirmed; 0 = none wait
}

// measurement is one round of a workload of messages.
type measurement struct {
	traffic
	o      Options
	role   string // whom the senders send to
	start  time.Time
	cancel context.CancelCauseFunc

	sent    atomic.Int64  // confirmed
	acked   atomic.Int64  // delivered, and their acknowledgement confirmed
	target  atomic.Int64  // messages to acknowledge; -1 while that is not known
	drained chan struct{} // closed when acked has reached target
	once    sync.Once
	permits *semaphore.Weighted // one for each acknowledgement that consumers may make; nil = any number

	mu        sync.Mutex
	latencies []time.Duration
}

// measure runs one round: everybody connects and registers, then the consumers open their streams, then the senders send.
func (t traffic) measure(ctx context.Context, b *bench, prefix string) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &measurement{
		traffic: t,
		o:       b.o,
		role:    prefix,
		cancel:  cancel,
		drained: make(chan struct{}),
	}
	m.target.Store(-1)
	m.o.Numbered, m.o.Objects = m.o.Numbered || t.numbered, m.o.Objects || t.objects
	if t.sendsPer > 0 {
		if err := b.fill(ctx, prefix+"-filler", b.o.Waiting, func(int) *pb.Target { return toRole(m.role) }); err != nil {
			return Result{}, fmt.Errorf("fill the mailbox: %w", err)
		}
		m.permits = semaphore.NewWeighted(math.MaxInt64)
		if err := m.permits.Acquire(ctx, math.MaxInt64); err != nil {
			return Result{}, err
		}
	}
	consumers, err := b.joinMany(ctx, t.consumers, m.role+"-consumer-%d", m.role)
	defer closeAll(consumers)
	if err != nil {
		return Result{}, err
	}
	senders, err := b.joinMany(ctx, t.senders, m.role+"-sender-%d", "sender")
	defer closeAll(senders)
	if err != nil {
		return Result{}, err
	}
	usage, err := b.meter(ctx)
	if err != nil {
		return Result{}, err
	}
	defer usage.stop()
	r, err := m.run(ctx, senders, consumers)
	if err != nil {
		return Result{}, err
	}
	return r, usage.into(ctx, &r)
}

// joinMany registers n agents, each on a connection of its own.
func (b *bench) joinMany(ctx context.Context, n int, name, role string) ([]*client.Client, error) {
	var agents []*client.Client
	for i := range n {
		c, err := b.join(ctx, fmt.Sprintf(name, i), role)
		if err != nil {
			return agents, err
		}
		agents = append(agents, c)
	}
	return agents, nil
}

func closeAll(clients []*client.Client) {
	for _, c := range clients {
		c.Close()
	}
}

// run sends and consumes, and waits until everything sent is acknowledged.
func (m *measurement) run(ctx context.Context, senders, consumers []*client.Client) (Result, error) {
	var consuming, sending sync.WaitGroup
	consumerCtx, stopConsumers := context.WithCancel(ctx)
	defer consuming.Wait()
	defer stopConsumers()
	var opened []*consumer
	for _, c := range consumers {
		con, err := m.openConsumer(consumerCtx, c)
		if err != nil {
			return Result{}, err
		}
		opened = append(opened, con)
	}
	var sources []*sender
	for i, c := range senders {
		s, err := m.openSender(ctx, c, i)
		if err != nil {
			return Result{}, err
		}
		sources = append(sources, s)
	}

	m.start = time.Now()
	end := m.start.Add(m.o.Duration)
	for _, c := range opened {
		consuming.Go(func() { m.check(consumerCtx, "consume", c.run()) })
	}
	for _, s := range sources {
		sending.Go(func() { m.check(ctx, "send", s.run(ctx, end)) })
	}
	sending.Wait()
	took, err := m.drain(ctx)
	stopConsumers()
	consuming.Wait()
	if err != nil {
		return Result{}, err
	}
	return m.result(took), nil
}

// check ends the round with the first error of a party, unless it was told to stop.
func (m *measurement) check(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		m.cancel(fmt.Errorf("%s: %w", what, err))
	}
}

// drain waits until everything that was confirmed is acknowledged, or the part of it that may be, and returns how long
// the round took.
func (m *measurement) drain(ctx context.Context) (time.Duration, error) {
	target := m.sent.Load()
	if m.permits != nil {
		target = max(0, target/int64(m.sendsPer)-int64(m.claims)) // the permits left may be too few for a frame of claims
	}
	m.target.Store(target)
	m.acknowledged(0)
	timeout := time.NewTimer(drainTime)
	defer timeout.Stop()
	select {
	case <-m.drained:
		return time.Since(m.start), context.Cause(ctx) // a party may have failed on its last message
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-timeout.C:
		return 0, fmt.Errorf("%d of %d messages not acknowledged %v after the last send",
			target-m.acked.Load(), target, drainTime)
	}
}

// confirmed counts n messages that were sent.
func (m *measurement) confirmed(n int) {
	sent, per := m.sent.Add(int64(n)), int64(m.sendsPer)
	if m.permits != nil {
		m.permits.Release(sent/per - (sent-int64(n))/per)
	}
}

// acknowledged counts n messages, and closes drained with the last.
func (m *measurement) acknowledged(n int) {
	if acked, target := m.acked.Add(int64(n)), m.target.Load(); target >= 0 && acked >= target {
		m.once.Do(func() { close(m.drained) })
	}
}

// add keeps the latencies of one consumer.
func (m *measurement) add(latencies []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latencies = append(m.latencies, latencies...)
}

func (m *measurement) result(took time.Duration) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.permits == nil {
		return resultOf(int(m.acked.Load()), took, m.latencies)
	}
	r := resultOf(int(m.sent.Load()), took, m.latencies)
	r.Backlog = m.o.Waiting + r.Count - int(m.acked.Load())
	return r
}

// resultOf counts what was done in a time; it sorts the latencies.
func resultOf(count int, took time.Duration, latencies []time.Duration) Result {
	r := Result{Count: count, Took: took, PerSecond: float64(count) / took.Seconds()}
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		r.P50, r.P95, r.P99 = latencies[n/2], latencies[n*95/100], latencies[n*99/100]
	}
	return r
}
