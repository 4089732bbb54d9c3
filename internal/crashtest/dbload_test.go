package crashtest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

// A load is agents that send, claim and acknowledge messages while the database fails. They repeat each call under its
// request id until it succeeds. Its methods may be called concurrently, after start.
type load struct {
	t       *testing.T
	daemons []*daemon // which agents use in turn
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	sent   map[string]int64
	acked  map[int64]bool
	failed map[string]int // calls, by reason
	calls  []int          // that have succeeded, by agent: half of them send to a role, half claim what was sent
	moved  chan struct{}  // closed after the next call
	last   time.Time      // when a call succeeded
	gap    time.Duration  // the longest time without such a call
}

func newLoad(t *testing.T, daemons ...*daemon) *load {
	return &load{t: t, daemons: daemons, sent: map[string]int64{}, acked: map[int64]bool{}, failed: map[string]int{},
		calls: make([]int, fromEnvironment(t, "LOAD_AGENTS", 8)/2*2), moved: make(chan struct{})}
}

func (l *load) start(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	l.t.Cleanup(l.end)
	half := len(l.calls) / 2
	for i := range half {
		for name, role := range map[string]string{fmt.Sprint("sends-", i): "lead", fmt.Sprint("works-", i): "worker"} {
			_, err := l.of(i).agents.RegisterAgent(as(ctx, name), &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(time.Hour)})
			testkit.NoError(l.t, err)
		}
		l.running.Go(func() { l.send(as(ctx, fmt.Sprint("sends-", i)), i) })
		l.running.Go(func() { l.work(as(ctx, fmt.Sprint("works-", i)), half+i) })
	}
}

// of returns the daemon that an agent uses.
func (l *load) of(who int) *daemon { return l.daemons[who%len(l.daemons)] }

// end ends the load.
func (l *load) end() {
	l.stop()
	l.running.Wait()
}

// send sends one message after the other.
func (l *load) send(ctx context.Context, who int) {
	for n := 0; ctx.Err() == nil; n++ {
		m := &pb.Message{Subject: fmt.Sprintf("%d/%d", who, n), Type: "work", Body: strings.Repeat("text ", 800),
			Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}}
		request := &pb.SendMessagesRequest{RequestId: requestID(), Messages: []*pb.Message{m}}
		l.repeat(ctx, who, func() error {
			answer, err := l.of(who).messages.SendMessages(ctx, request)
			if err == nil {
				l.mu.Lock()
				l.sent[m.Subject] = answer.GetResults()[0].GetRevision()
				l.mu.Unlock()
			}
			return err
		})
	}
}

// work claims and acknowledges messages.
func (l *load) work(ctx context.Context, who int) {
	for ctx.Err() == nil {
		var claims []*pb.ClaimedMessage
		l.repeat(ctx, who, func() error {
			answer, err := l.of(who).messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 10, Wait: durationpb.New(50 * time.Millisecond)})
			claims = answer.GetClaims()
			return err
		})
		acks := &pb.AckMessagesRequest{RequestId: requestID()}
		l.mu.Lock()
		for _, c := range claims {
			acks.Ids = append(acks.Ids, c.GetClaimId())
			if l.acked[c.GetMessage().GetRevision()] {
				l.t.Errorf("%s was claimed after its ack was confirmed", c.GetClaimId())
			}
		}
		l.mu.Unlock()
		if len(claims) == 0 {
			continue
		}
		l.repeat(ctx, who, func() error {
			_, err := l.of(who).messages.AckMessages(ctx, acks)
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, c := range claims {
				l.acked[c.GetMessage().GetRevision()] = l.acked[c.GetMessage().GetRevision()] || err == nil
			}
			return err
		})
	}
}

// repeat makes a call until it succeeds.
func (l *load) repeat(ctx context.Context, who int, call func() error) {
	for ctx.Err() == nil {
		err := call()
		l.mu.Lock()
		if err == nil {
			l.calls[who]++
			now := time.Now()
			if !l.last.IsZero() {
				l.gap = max(l.gap, now.Sub(l.last))
			}
			l.last = now
		} else if ctx.Err() == nil {
			l.failed[reason(err)]++
			if !cut(err) {
				l.t.Errorf("a call failed: %v", err)
			}
			if text := fmt.Sprint(status.Convert(err).Proto()); strings.Contains(text, secret) {
				l.t.Errorf("the error has the password: %s", text)
			}
		}
		close(l.moved)
		l.moved = make(chan struct{})
		l.mu.Unlock()
		if err == nil {
			return
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// since forgets the longest time without a call that has succeeded, and returns what it is from now on.
func (l *load) since() (gap func() time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap = 0
	return func() time.Duration {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.gap
	}
}

// awaitProgress returns when each agent has made two more calls.
func (l *load) awaitProgress(ctx context.Context) {
	l.t.Helper()
	l.awaitProgressAt(ctx, l.daemons...)
}

// awaitProgressAt is awaitProgress of the agents that use some daemons.
func (l *load) awaitProgressAt(ctx context.Context, daemons ...*daemon) {
	l.t.Helper()
	l.mu.Lock()
	before := slices.Clone(l.calls)
	l.mu.Unlock()
	for waiting := true; waiting; {
		l.mu.Lock()
		calls, moved := slices.Clone(l.calls), l.moved
		l.mu.Unlock()
		waiting = false
		for i, n := range before {
			waiting = waiting || calls[i] < n+2 && slices.Contains(daemons, l.of(i))
		}
		if !waiting {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			l.t.Fatalf("the agents do not go on: %v, and %v before; failed: %v\n%s", calls, before, l.failed, l.daemons[0].Stderr())
		}
	}
}

// awaitFailure returns when a call has failed for one of some reasons.
func (l *load) awaitFailure(ctx context.Context, reasons ...string) {
	l.t.Helper()
	for {
		l.mu.Lock()
		moved := l.moved
		failed := slices.ContainsFunc(reasons, func(reason string) bool { return l.failed[reason] > 0 })
		l.mu.Unlock()
		if failed {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			l.t.Fatalf("no call fails with one of %q: %v, of %v that succeeded\n%s",
				reasons, l.failed, l.calls, l.daemons[0].Stderr())
		}
	}
}

// verify ends the load, and compares what the broker has with what it has confirmed.
func (l *load) verify(ctx context.Context) {
	l.t.Helper()
	l.end()
	all := map[string]int64{}
	truth, err := readTruth(ctx, l.daemons[0])
	testkit.NoError(l.t, err)
	for n, m := range truth.messages {
		if other, twice := all[m.GetSubject()]; twice {
			l.t.Errorf("%s is there as %d and as %d", m.GetSubject(), other, n)
		}
		all[m.GetSubject()] = n
	}
	for subject, n := range l.sent {
		if all[subject] != n {
			l.t.Errorf("%s was confirmed as %d, and is there as %d", subject, n, all[subject])
		}
	}
	for which, d := range truth.deliveries {
		if l.acked[which.message] && d.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED {
			l.t.Errorf("the ack of %d was confirmed, and it is %v", which.message, d)
		}
	}
	found, err := l.daemons[0].admin.CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	testkit.NoError(l.t, err)
	if len(found.GetProblems()) > 0 {
		l.t.Errorf("the database is not sound: %q", found.GetProblems())
	}
	l.t.Logf("%d messages sent, %d acknowledged, at most %v without a call that succeeded, failed: %v",
		len(l.sent), len(l.acked), l.gap.Round(time.Millisecond), l.failed)
}

// noQuotas takes the quotas of the session away.
func noQuotas(ctx context.Context, d *daemon) error {
	_, err := d.sessions.ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0), BreakerFailures: proto.Int32(0)}})
	return err
}
