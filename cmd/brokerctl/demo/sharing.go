package demo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

const (
	// shortLease is the shortest that there is, so that nobody has to wait long to see one end.
	shortLease = time.Second
	beatEvery  = shortLease / 3

	file, folder = "auth/login.go", "auth/"
	tokenType    = "deploy"
	tokenScope   = "staging"

	sharers = 3
)

// sharing is the second act: two builders and a reviewer share files and a turn, and one of them crashes. Each has a
// connection of its own, as programs have.
type sharing struct {
	address string
	t       *transcript
	pace    pace
}

// sharer is one of them.
type sharer struct {
	*client.Client
	name string
	stop context.CancelFunc // of its heartbeats
}

// join connects and registers an agent, and lets its heart beat.
func (s *sharing) join(ctx context.Context, name, role string) (*sharer, error) {
	c, err := client.Dial(ctx, client.WithAddress(s.address), client.WithAgent(name))
	if err != nil {
		return nil, err
	}
	answer, err := c.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(shortLease)})
	if err != nil {
		c.Close()
		return nil, err
	}
	a := &sharer{Client: c.AtIncarnation(answer.GetAgent().GetIncarnation()), name: name}
	var beating context.Context
	beating, a.stop = context.WithCancel(ctx)
	go a.beat(beating)
	s.t.say(name, plain, "joins", "as %s, with a lease of %s", role, shortLease)
	return a, nil
}

// beat tells the broker that the agent is alive, until it is stopped. An agent that fails to is believed dead.
func (a *sharer) beat(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_, _ = a.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
		case <-ctx.Done():
			return
		}
	}
}

// crash ends an agent as a kill does: its heart stops and its connection breaks.
func (a *sharer) crash() {
	a.stop()
	a.Close()
}

// leave ends an agent as it should.
func (a *sharer) leave(ctx context.Context) error {
	_, err := a.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{})
	return err
}

// run plays the act. What it starts has ended when it returns.
func (s *sharing) run(ctx context.Context) error {
	s.t.title("They share files and a turn, and one of them crashes")
	first, err := s.join(ctx, builder1, "builder")
	if err != nil {
		return err
	}
	defer first.crash()
	second, err := s.join(ctx, builder2, "builder")
	if err != nil {
		return err
	}
	defer second.crash()
	critic, err := s.join(ctx, reviewer, "reviewer")
	if err != nil {
		return err
	}
	defer critic.crash()

	fence, err := s.files(ctx, first, second)
	if err != nil {
		return err
	}
	if err := s.turn(ctx, critic, second); err != nil {
		return err
	}
	back, err := s.comeBack(ctx, first, fence)
	if err != nil {
		return err
	}
	defer back.Close()
	s.pace.take(ctx, 600*time.Millisecond)
	for _, a := range []*sharer{{Client: back}, second, critic} {
		if err := a.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}

// files lets the second builder wait for a folder in which the first holds a file, and get it because the first crashes. It returns
// the fence that is worth nothing any more.
func (s *sharing) files(ctx context.Context, first, second *sharer) (fence int64, err error) {
	held, err := first.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{file}, Reason: "the login form"})
	if err != nil {
		return 0, err
	}
	s.t.say(first.name, plain, "locks", "%s, fence %d", file, held.GetFence())
	s.pace.take(ctx, 700*time.Millisecond)
	request := &pb.AcquireLocksRequest{Paths: []string{folder}, Reason: "rename the package"}
	answer, err := second.Locks().AcquireLocks(ctx, request)
	if err != nil {
		return 0, err
	}
	for _, o := range answer.GetObstacles() {
		s.t.say(second.name, yellow, "waits", "for %s: %s holds %s (%s)", folder, o.GetAgent(), o.GetResource(), o.GetReason())
	}
	crashed := make(chan struct{})
	go func() {
		defer close(crashed)
		s.pace.take(ctx, 900*time.Millisecond)
		s.t.say(first.name, red, "crashes", "in the middle of %s", file)
		first.crash()
	}()
	defer func() { <-crashed }()
	request.Wait = durationpb.New(askTime)
	if answer, err = second.Locks().AcquireLocks(ctx, request); err != nil {
		return 0, err
	}
	if answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return 0, fmt.Errorf("%s has not got %s", second.name, folder)
	}
	s.t.say(second.name, green, "locks", "%s, fence %d: its turn has come", folder, answer.GetFence())
	s.pace.take(ctx, 700*time.Millisecond)
	s.t.say(second.name, plain, "releases", "%s", folder)
	_, err = second.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Fences: []int64{answer.GetFence()}})
	return held.GetFence(), err
}

// turn lets the reviewer hold the turn to deploy, and pass it to the builder who may.
func (s *sharing) turn(ctx context.Context, critic, builder *sharer) error {
	const note = "the tests are green"
	request := &pb.AcquireTokenRequest{Type: tokenType, Scope: tokenScope}
	if _, err := critic.Tokens().AcquireToken(ctx, request); err != nil {
		return err
	}
	s.t.say(critic.name, plain, "takes", "the token %s %s", tokenType, tokenScope)
	s.pace.take(ctx, 700*time.Millisecond)
	s.t.say(critic.name, plain, "passes", "it to %s: %s", builder.name, note)
	if _, err := critic.Tokens().PassToken(ctx, &pb.PassTokenRequest{
		Type: tokenType, Scope: tokenScope, To: &pb.PassTokenRequest_Agent{Agent: builder.name}, Note: note,
	}); err != nil {
		return err
	}
	told := client.FollowOptions{Filter: &pb.MessageFilter{Types: []string{"token_passed"}}, AutoAck: true, Limit: 1}
	for item, err := range builder.Follow(ctx, told) {
		if err != nil {
			return err
		}
		s.t.say(builder.name, plain, "hears", "%s", item.GetMessage().GetSubject())
	}
	answer, err := builder.Tokens().AcquireToken(ctx, request)
	if err != nil {
		return err
	}
	s.t.say(builder.name, green, "has", "the token, fence %d: %s", answer.GetFence(), answer.GetNote())
	s.pace.take(ctx, 700*time.Millisecond)
	return nil
}

// comeBack lets the builder that crashed return: what believes in its former life is refused, and it is told what it lost.
func (s *sharing) comeBack(ctx context.Context, crashed *sharer, fence int64) (*client.Client, error) {
	old := crashed.Identity().Incarnation
	back, err := client.Dial(ctx, client.WithAddress(s.address), client.WithAgent(crashed.name))
	if err != nil {
		return nil, err
	}
	_, err = back.AtIncarnation(old).Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
	if client.Reason(err) != "STALE_INCARNATION" {
		back.Close()
		return nil, fmt.Errorf("incarnation %d of %s is not refused: %w", old, crashed.name, err)
	}
	s.t.say(crashed.name, yellow, "refused", "incarnation %d is over", old)
	answer, err := back.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
	if err != nil {
		back.Close()
		return nil, err
	}
	for _, l := range answer.GetLosses() {
		s.t.say(crashed.name, plain, "returns", "as incarnation %d, and is told that it lost %s, fence %d", answer.GetIncarnation(), l.GetName(), l.GetRevision())
	}
	_, err = back.Fenced(fence).Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: reviewer}}, Subject: file + " is done",
	}}})
	if client.Reason(err) != "FENCE_LOST" {
		back.Close()
		return nil, fmt.Errorf("a send with fence %d is not refused: %w", fence, err)
	}
	s.t.say(crashed.name, yellow, "refused", "a message under fence %d, which it does not hold any more", fence)
	return back, nil
}
