package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// beatTimeout is how long a heartbeat waits for its answer.
const beatTimeout = 10 * time.Second

// registration returns the client of the registration, which it makes if there is none.
func (m *Member) registration(ctx context.Context) (*Client, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-m.turn }()
	c, answer, err := m.register(ctx)
	if answer != nil && m.o.OnRegistered != nil {
		m.o.OnRegistered(answer)
	}
	return c, err
}

// register returns the answer as well if it has registered the agent. The caller has the turn.
func (m *Member) register(ctx context.Context) (*Client, *pb.RegisterAgentResponse, error) {
	m.mu.Lock()
	c, registered, err := m.client, m.registered, m.ended
	m.mu.Unlock()
	if registered || err != nil {
		return c, nil, err
	}
	if m.requested == nil {
		c, r, err := m.prepare(ctx)
		if err != nil {
			return nil, nil, err
		}
		if c.identity.Incarnation != 0 {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.client, m.registered, m.adopted = c, true, true
			return c, nil, nil
		}
		m.requester, m.requested = c.As(c.identity.Agent), &pb.RegisterAgentRequest{}
		proto.Merge(m.requested, r)
		m.requested.RequestId = requestID()
	}
	answer, err := m.requester.Agents().RegisterAgent(ctx, m.requested)
	if err != nil {
		if !transient(err) && ctx.Err() == nil {
			m.requested = nil // otherwise the broker may have registered it: the same request has the same answer
		}
		return nil, nil, err
	}
	m.requested = nil
	a := answer.GetAgent()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client, m.registered = m.requester.AtIncarnation(a.GetIncarnation()), true
	m.since, m.lease = a.GetRegisteredAt().AsTime(), a.GetLease().AsDuration()
	return m.client, answer, nil
}

// renew handles the refusal of a call with a client. It returns nil if the member has or can have another
// registration.
func (m *Member) renew(ctx context.Context, used *Client, refusal error) error {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return refusal
	}
	m.mu.Lock()
	current, since, final := m.registered && m.client == used, m.since, m.adopted || m.o.Once
	m.mu.Unlock()
	switch {
	case !current:
		return m.Err()
	case final:
		return m.lose(fmt.Errorf("%w: %w", ErrAgentLost, refusal))
	}
	// Only the time of the registration tells an expired lease, which also increments the incarnation, from
	// another process.
	name := used.identity.Agent
	answer, err := used.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: name})
	a := answer.GetAgent()
	switch {
	case status.Code(err) == codes.NotFound: // it was deregistered, or the database is another one
	case err != nil, a.GetIncarnation() == used.identity.Incarnation: // it is registered: something else was refused
		return refusal
	case !a.GetRegisteredAt().AsTime().Equal(since):
		return m.lose(&TakenOverError{Agent: name, At: a.GetRegisteredAt().AsTime(), Err: refusal})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = false
	return nil
}

// lose ends the member with an ErrAgentLost, which it returns, unless the member has ended before.
func (m *Member) lose(why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = false
	if m.ended == nil {
		m.ended = why
		close(m.lost)
	}
	return m.ended
}

// beat sends the heartbeats until the member ends. It is the goroutine of the member.
func (m *Member) beat() {
	again := retry{}
	for pause := m.interval(); ; {
		expired, stop := m.o.timer(pause)
		select {
		case <-expired:
		case <-m.lost:
			stop()
			return
		case <-m.ctx.Done():
			stop()
			return
		}
		err := m.heartbeat()
		switch {
		case err == nil:
			again.worked()
			pause = m.interval()
			continue
		case m.ctx.Err() != nil || m.disconnected():
			return
		case transient(err) || status.Code(err) == codes.DeadlineExceeded:
			pause = again.pause(err)
			if interval := m.interval(); interval > 0 {
				pause = min(pause, interval)
			}
		default:
			pause = max(m.interval(), longestDelay)
		}
		if m.o.OnError != nil && m.Err() == nil {
			m.o.OnError(err)
		}
	}
}

// interval returns the time between heartbeats; 0 if the member knows no lease yet.
func (m *Member) interval() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease / 3
}

func (m *Member) heartbeat() error {
	ctx, cancel := context.WithTimeout(m.ctx, beatTimeout)
	defer cancel()
	return m.Do(ctx, func(c *Client) error {
		answer, err := c.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.lease = answer.GetLease().AsDuration()
		m.mu.Unlock()
		if m.o.OnHeartbeat != nil {
			m.o.OnHeartbeat(answer)
		}
		return nil
	})
}

// disconnected reports whether Client.Close has closed the connection.
func (m *Member) disconnected() bool {
	c := m.Client()
	return c != nil && c.link.conn.GetState() == connectivity.Shutdown
}

// registrationEnded reports whether the broker has refused a call because the registration of its client has ended.
func registrationEnded(err error) bool {
	switch Reason(err) {
	case "STALE_INCARNATION", "AGENT_NOT_REGISTERED":
		return true
	}
	return false
}

func unlessEnded(err error) error {
	if registrationEnded(err) {
		return nil
	}
	return err
}
