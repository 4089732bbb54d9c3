package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// ErrAgentLost says that the registration of an agent has ended, and that its program must not renew it.
var ErrAgentLost = errors.New("the agent was lost")

// ErrMemberClosed is what a Member answers after Close, Leave, Deregister or Abandon.
var ErrMemberClosed = errors.New("the member is closed")

// A TakenOverError is an ErrAgentLost: another process has registered the agent, and acts as it now.
// It unwraps to the refusal of the call that has shown it.
type TakenOverError struct {
	Agent string
	At    time.Time // when the other process has registered the agent, by the broker's clock
	Err   error
}

// Error names the agent and the time.
func (e *TakenOverError) Error() string {
	return fmt.Sprintf("%v: another process has registered as %s at %s and acts as this agent",
		ErrAgentLost, e.Agent, e.At.UTC().Format(time.RFC3339))
}

// Is reports whether the target is ErrAgentLost.
func (e *TakenOverError) Is(target error) bool { return target == ErrAgentLost }

// Unwrap returns the refusal.
func (e *TakenOverError) Unwrap() error { return e.Err }

// JoinOptions say how to keep a registration. The functions must return quickly. They may be called
// concurrently, and must not call the methods of the member.
type JoinOptions struct {
	// Once ends the member when its registration ends for whatever reason. Otherwise the member registers the
	// agent again after its lease has expired (the machine slept, the network was away) and after the broker
	// has forgotten the agent (it was deregistered, the database is another one).
	Once bool
	// OnRegistered, if set, receives the answer to each registration, the first included: the agent, and
	// what it has lost. It ends before a Do makes its first call as this registration.
	OnRegistered func(*pb.RegisterAgentResponse)
	// OnHeartbeat, if set, receives the answer to each heartbeat of the member: losses, directives, and how
	// much mail waits.
	OnHeartbeat func(*pb.HeartbeatResponse)
	// OnError, if set, receives the errors of heartbeats and of registrations in the background. The member
	// tries again.
	OnError func(error)

	timer func(time.Duration) (expired <-chan time.Time, stop func() bool) // nil: time.NewTimer
}

// A Member is an agent that this program has registered. Its goroutine keeps the lease with a heartbeat
// every third of it, until the registration is lost or Close, Leave, Deregister, Abandon or Client.Close ends
// it. A Member is safe for concurrent use.
type Member struct {
	prepare func(context.Context) (*Client, *pb.RegisterAgentRequest, error)
	o       JoinOptions
	stop    context.CancelFunc
	ctx     context.Context // of the goroutine; stop ends it
	beating sync.WaitGroup
	lost    chan struct{} // closed when the registration is lost

	turn      chan struct{}            // buffered: held during a registration and during the look at a loss
	requested *pb.RegisterAgentRequest // not answered yet; guarded by turn, as is requester
	requester *Client

	mu         sync.Mutex    // guards the fields below
	client     *Client       // of the newest registration; nil before the first
	registered bool          // the broker has not refused client since
	adopted    bool          // another process has made the registration of client
	since      time.Time     // when the broker took the registration, which tells it from that of another process
	lease      time.Duration // 0 = unknown
	ended      error         // why it is a member no longer
}

// Join registers the agent of the client, in place of an earlier registration, and keeps it registered:
// see Member and RegisterAgentRequest; the member chooses the request_id. Join ignores the fence of the client.
//
// If the client names an incarnation (BROKERD_INCARNATION), another process such as brokerctl agent run has
// registered the agent. Then Join registers nothing: the member sends heartbeats, ends with the registration,
// and reports no end at Close.
//
// Errors are those of RegisterAgent. The context bounds only Join. The member needs Close.
func (c *Client) Join(ctx context.Context, r *pb.RegisterAgentRequest, o JoinOptions) (*Member, error) {
	m := newMember(func(context.Context) (*Client, *pb.RegisterAgentRequest, error) { return c, r, nil }, o)
	if _, err := m.registration(ctx); err != nil {
		m.stop()
		return nil, err
	}
	m.beating.Go(m.beat)
	return m, nil
}

// JoinLater is Join for a program that starts while the broker is away: it returns at once, and the member
// registers the agent in the background, or in the first Do. Before each registration it calls prepare, which
// returns the client and describes the agent. It calls prepare again after an error.
func JoinLater(prepare func(context.Context) (*Client, *pb.RegisterAgentRequest, error), o JoinOptions) *Member {
	m := newMember(prepare, o)
	m.beating.Go(m.beat)
	return m
}

func newMember(prepare func(context.Context) (*Client, *pb.RegisterAgentRequest, error), o JoinOptions) *Member {
	if o.timer == nil {
		o.timer = func(d time.Duration) (<-chan time.Time, func() bool) {
			t := time.NewTimer(d)
			return t.C, t.Stop
		}
	}
	m := &Member{prepare: prepare, o: o, lost: make(chan struct{}), turn: make(chan struct{}, 1)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Client returns a client whose calls the broker refuses once this registration has ended. After a new
// registration, Client returns another one. It is nil before the first registration of JoinLater.
func (m *Member) Client() *Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client
}

// Lost returns a channel that is closed when the registration is lost; Err says why.
func (m *Member) Lost() <-chan struct{} { return m.lost }

// Err returns nil for a member. Otherwise it returns ErrMemberClosed, or an ErrAgentLost, which is a
// *TakenOverError if another process has registered the agent, and wraps the broker's refusal.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// Do makes calls as the agent: it registers the agent if it is not registered, and calls again if the broker
// refuses because the registration has ended and the member has renewed it. So call may be Client.Work. The
// refusal also tells the member of a loss before its next heartbeat does. Errors are those of call, of
// RegisterAgent, and those of Err.
func (m *Member) Do(ctx context.Context, call func(*Client) error) error {
	for {
		c, err := m.registration(ctx)
		if err != nil {
			return err
		}
		if err = call(c); !registrationEnded(err) {
			return err
		}
		if err = m.renew(ctx, c, err); err != nil {
			return err
		}
	}
}

// Close ends the member and reports that the agent has stopped: the broker releases what it holds at once, and
// its mail waits for the next registration. Calls of the agent must have ended, because a later one brings the
// agent back. A registration whose answer is missing counts as made. If the broker is away, Close returns an
// error, and the lease ends by itself. A second call has no effect.
func (m *Member) Close(ctx context.Context) error {
	return m.Leave(ctx, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_STOPPED})
}

// Leave is Close with another last report, such as the status FAILED with its reason.
func (m *Member) Leave(ctx context.Context, last *pb.HeartbeatRequest) error {
	c, own := m.end()
	if !own {
		return nil
	}
	_, err := c.Agents().Heartbeat(ctx, last)
	return unlessEnded(err)
}

// Deregister ends the member and its registration, also one that another process has made: unfinished
// mail becomes dead letters.
func (m *Member) Deregister(ctx context.Context, reason string) error {
	c, _ := m.end()
	if c == nil {
		return nil
	}
	_, err := c.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{Reason: reason})
	return unlessEnded(err)
}

// Abandon ends the member and reports nothing: if no other call comes, the lease expires.
func (m *Member) Abandon() { m.end() }

// end ends the heartbeats. It returns the client of a registration that has not ended, and whether the
// member has made it. Of one whose answer is missing it returns the client that has asked for it.
func (m *Member) end() (c *Client, own bool) {
	m.mu.Lock()
	ended := m.ended != nil
	if !ended {
		m.ended = ErrMemberClosed
	}
	m.mu.Unlock()
	m.stop()
	m.beating.Wait()
	m.mu.Lock()
	c, own = m.client, !m.adopted
	registered := m.registered
	m.mu.Unlock()
	switch {
	case ended:
		return nil, false
	case registered:
		return c, own
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	default: // a call of the agent has not ended
		return nil, false
	}
	if m.requested == nil {
		return nil, false
	}
	return m.requester, true
}
