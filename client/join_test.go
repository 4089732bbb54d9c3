package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// joinLease is the lease of the agents that join here.
const joinLease = 30 * time.Second

// A pulse has the pauses of a member between its heartbeats, which end when the test ends them.
type pulse chan breather

// A breather is one pause.
type breather struct {
	lasts time.Duration
	end   chan<- time.Time
}

func (p pulse) timer(d time.Duration) (<-chan time.Time, func() bool) {
	end := make(chan time.Time, 1)
	p <- breather{d, end}
	return end, func() bool { return true }
}

// beat ends the present pause and returns the next, which begins after a heartbeat or an attempt at one.
func (p pulse) beat(t *testing.T, now breather) breather {
	t.Helper()
	now.end <- time.Time{}
	return next(t, p)
}

// A joined is a member with what it has reported.
type joined struct {
	*client.Member
	pulse      pulse
	first      breather
	registered chan *pb.RegisterAgentResponse
	heartbeats chan *pb.HeartbeatResponse
	errors     chan error
}

// joining returns options that report to j.
func (j *joined) joining(o client.JoinOptions) client.JoinOptions {
	j.pulse = make(pulse, 64)
	j.registered = make(chan *pb.RegisterAgentResponse, 64)
	j.heartbeats = make(chan *pb.HeartbeatResponse, 64)
	j.errors = make(chan error, 64)
	o.OnRegistered = func(answer *pb.RegisterAgentResponse) { j.registered <- answer }
	o.OnHeartbeat = func(answer *pb.HeartbeatResponse) { j.heartbeats <- answer }
	o.OnError = func(err error) { j.errors <- err }
	return o.WithTimer(j.pulse.timer)
}

// join joins as the client's agent.
func join(t *testing.T, c *client.Client, o client.JoinOptions) *joined {
	t.Helper()
	j := &joined{}
	var err error
	request := &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(joinLease)}
	if j.Member, err = c.Join(t.Context(), request, j.joining(o)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Abandon)
	j.first = next(t, j.pulse)
	return j
}

// dial returns a client of its own for an agent that is not registered; "" = an operator.
func (d *daemon) dial(t *testing.T, name string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.WithAddress(d.app.Addresses()[0]), client.WithAgent(name))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// agentOf returns what an operator sees of an agent.
func (d *daemon) agentOf(t *testing.T, name string) *pb.Agent {
	t.Helper()
	answer, err := d.dial(t, "").Agents().GetAgent(t.Context(), &pb.GetAgentRequest{Name: name})
	apptest.NoError(t, err)
	return answer.GetAgent()
}

// expire lets the lease of an agent run out.
func (d *daemon) expire(t *testing.T, clock *clockwork.FakeClock, name string) {
	t.Helper()
	operator := d.dial(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	clock.Advance(joinLease + time.Second)
	failures := client.EventOptions{Filter: &pb.EventFilter{Types: []string{"agent.failed"}}}
	for e, err := range operator.FollowEvents(ctx, failures) {
		apptest.NoError(t, err)
		if slices.Contains(e.GetRelated(), name) {
			return
		}
	}
	t.Fatalf("the lease of %s does not end", name)
}

func newClock() *clockwork.FakeClock {
	return clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
}

// ownHeartbeat returns a call that the broker refuses to a client whose agent is not registered.
func ownHeartbeat(ctx context.Context) func(*client.Client) error {
	return func(c *client.Client) error {
		_, err := c.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
		return err
	}
}

// wantLost wants the end of a member by a loss.
func wantLost(t *testing.T, j *joined) error {
	t.Helper()
	next(t, j.Lost())
	err := j.Err()
	wantIs(t, err, client.ErrAgentLost)
	if again := j.Do(t.Context(), func(*client.Client) error { return nil }); !errors.Is(again, err) {
		t.Errorf("a call afterwards: %v", again)
	}
	return err
}

func TestJoin_RegistersTheAgentAndBindsItsClient(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	j := join(t, d.dial(t, "a"), client.JoinOptions{})
	a := next(t, j.registered).GetAgent()
	if a.GetRole() != "builder" || a.GetIncarnation() != 1 || !proto.Equal(a.GetLease(), durationpb.New(joinLease)) {
		t.Errorf("registered %v", a)
	}
	if id := j.Client().Identity(); id != (client.Identity{Agent: "a", Incarnation: 1}) || j.Err() != nil {
		t.Errorf("the client is %+v, %v", id, j.Err())
	}
	_, err := d.dial(t, "all").Join(t.Context(), nil, client.JoinOptions{})
	wantCode(t, err, codes.InvalidArgument)
}

func TestJoin_RenewsTheLeaseEveryThirdOfIt(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d := newDaemonWith(t, clock)
	j := join(t, d.dial(t, "a"), client.JoinOptions{})
	pause := j.first
	for range 5 { // much longer than the lease
		if pause.lasts != joinLease/3 {
			t.Fatalf("a heartbeat after %v", pause.lasts)
		}
		clock.Advance(pause.lasts)
		pause = j.pulse.beat(t, pause)
		if seen := d.agentOf(t, "a").GetLastSeen().AsTime(); !seen.Equal(clock.Now()) {
			t.Fatalf("the broker has heard of it at %v, and it is %v", seen, clock.Now())
		}
		next(t, j.heartbeats)
	}
	if a := d.agentOf(t, "a"); a.GetIncarnation() != 1 || a.GetHealth() != pb.Health_HEALTH_OK {
		t.Errorf("%v", a)
	}
}

func TestJoin_RegistersAgainAfterItsLeaseHasExpired(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d := newDaemonWith(t, clock)
	j := join(t, d.dial(t, "a"), client.JoinOptions{})
	next(t, j.registered)
	before := j.Client()
	apptest.NoError(t, apptest.Err(before.Locks().AcquireLocks(t.Context(), lockOf("x"))))
	d.expire(t, clock, "a")
	j.pulse.beat(t, j.first)
	if lost := next(t, j.registered).GetLosses(); len(lost) != 1 || lost[0].GetName() != "x" {
		t.Errorf("it has lost %v", lost)
	}
	if err := ownHeartbeat(t.Context())(before); client.Reason(err) != "STALE_INCARNATION" {
		t.Errorf("the client of the first registration: %v", err)
	}
	if err := ownHeartbeat(t.Context())(j.Client()); err != nil || j.Err() != nil {
		t.Errorf("the client of the second registration: %v, %v", err, j.Err())
	}
	// The broker may learn of the end of AcquireLocks only after the lease has ended, and brings the agent back. A call of
	// the old registration must not do so after the second one.
	page, err := d.dial(t, "").Events().ListEvents(t.Context(), &pb.ListEventsRequest{
		Filter: &pb.EventFilter{Types: []string{"agent.registered", "agent.revived"}},
	})
	if n := len(page.GetEvents()); err != nil || n < 2 || page.GetEvents()[n-1].GetType() != "agent.registered" {
		t.Errorf("%v, %v", page, err)
	}
	a := d.agentOf(t, "a")
	if a.GetFailedAt() != nil || a.GetRole() != "builder" || a.GetIncarnation() != j.Client().Identity().Incarnation {
		t.Errorf("%v", a)
	}
}

func TestJoin_RegistersAgainAfterTheBrokerHasForgottenIt(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*testing.T, *daemon){
		"deregistered": func(t *testing.T, d *daemon) {
			if _, err := d.dial(t, "a").Agents().DeregisterAgent(t.Context(), &pb.DeregisterAgentRequest{}); err != nil {
				t.Fatal(err)
			}
		},
		"another database": func(t *testing.T, d *daemon) {
			d.stop(t)
			files, err := filepath.Glob(filepath.Join(d.dir, "*"))
			for _, file := range files {
				err = errors.Join(err, os.RemoveAll(file))
			}
			apptest.NoError(t, err)
			d.start(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			j := join(t, d.dial(t, "a"), client.JoinOptions{})
			next(t, j.registered)
			forget(t, d)
			calls := 0
			err := j.Do(t.Context(), func(c *client.Client) error {
				calls++
				_, err := c.Agents().Heartbeat(t.Context(), &pb.HeartbeatRequest{}, grpc.WaitForReady(true))
				return err
			})
			if err != nil || calls != 2 || j.Err() != nil {
				t.Errorf("after %d calls: %v, %v", calls, err, j.Err())
			}
			a := next(t, j.registered).GetAgent()
			if a.GetRole() != "builder" || d.agentOf(t, "a").GetIncarnation() != a.GetIncarnation() {
				t.Errorf("registered %v", a)
			}
		})
	}
}

func TestJoin_EndsWhenAnotherProcessHasRegisteredTheAgent(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]func(*testing.T, *joined){
		"by a heartbeat": func(_ *testing.T, j *joined) { j.first.end <- time.Time{} },
		"by a call": func(t *testing.T, j *joined) {
			wantIs(t, j.Do(t.Context(), ownHeartbeat(t.Context())), client.ErrAgentLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			j := join(t, d.dial(t, "a"), client.JoinOptions{})
			d.agent(t, "a", "")
			notice(t, j)
			var taken *client.TakenOverError
			err := wantLost(t, j)
			if !errors.As(err, &taken) || client.Reason(err) != "STALE_INCARNATION" {
				t.Fatalf("%v", err)
			}
			a := d.agentOf(t, "a")
			if taken.Agent != "a" || !taken.At.Equal(a.GetRegisteredAt().AsTime()) {
				t.Errorf("%+v, and %v", taken, a)
			}
			if err := j.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if a := d.agentOf(t, "a"); a.GetIncarnation() != 2 || a.GetStoppedAt() != nil {
				t.Errorf("the other registration is disturbed: %v", a)
			}
			if len(j.registered) != 1 || len(j.errors) != 0 {
				t.Errorf("it was registered %d times, and reported %d errors", len(j.registered), len(j.errors))
			}
		})
	}
}

func TestJoin_OnceEndsWithItsLease(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d := newDaemonWith(t, clock)
	j := join(t, d.dial(t, "a"), client.JoinOptions{Once: true})
	d.expire(t, clock, "a")
	j.first.end <- time.Time{}
	if err := wantLost(t, j); client.Reason(err) != "STALE_INCARNATION" || errors.As(err, new(*client.TakenOverError)) {
		t.Errorf("%v", err)
	}
	if a := d.agentOf(t, "a"); a.GetFailedAt() == nil || len(j.registered) != 1 {
		t.Errorf("%v", a)
	}
}

func TestJoin_TheRefusalOfAnotherAgentIsNoLoss(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	j, other := join(t, d.dial(t, "a"), client.JoinOptions{}), d.dial(t, "b")
	calls := 0
	err := j.Do(t.Context(), func(*client.Client) error {
		if calls++; calls > 1 {
			return nil
		}
		return ownHeartbeat(t.Context())(other)
	})
	if client.Reason(err) != "AGENT_NOT_REGISTERED" || j.Err() != nil || len(j.registered) != 1 {
		t.Errorf("%v, %v; it was registered %d times", err, j.Err(), len(j.registered))
	}
}
