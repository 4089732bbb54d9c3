package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// A crew is the team of the dashboard. It works until its context ends. A person may cancel, revoke,
// halt or terminate from the dashboard, so an error ends the shift of one member, and the next shift
// begins soon.
//
//	lead ──tasks, votes, blockers──► builder-1, builder-2 ──reviews, questions──► reviewer
//	  └──requests, some of which fail──►
//	scribe locks a file and fails, again and again
type crew struct {
	broker *client.Client
	pace   pace
	turns  [turnKinds]atomic.Int64

	mu  sync.Mutex // guards out
	out io.Writer  // gets a line for each shift that has ended with an error
}

// The kinds of work that do not always have the same outcome.
const (
	questions = iota
	requests
	reviews
	schemas
	turnKinds
)

// oneOf reports whether this piece of work is the first of n of its kind.
func (c *crew) oneOf(n int64, kind int) bool { return c.turns[kind].Add(1)%n == 1 }

// A loop is a part of the work of a member. It ends with its context or with an error.
type loop func(*shift, context.Context) error

// The scribe does not call for longer than its lease, and so fails.
const (
	crewLease   = 30 * time.Second
	scribeLease = 5 * time.Second
)

// crewMembers are the agents with their loops.
var crewMembers = []struct {
	name, role, purpose string
	lease               time.Duration
	loops               []loop
}{
	{leader, "lead", "plans the sprints", crewLease, []loop{(*shift).lead, (*shift).mail}},
	{builder1, "builder", "does tasks", crewLease, []loop{(*shift).build, (*shift).mail}},
	{builder2, "builder", "does tasks", crewLease, []loop{(*shift).build, (*shift).mail}},
	{reviewer, "reviewer", "reviews, and answers questions", crewLease, []loop{(*shift).mail}},
	{"scribe", "writer", "writes the guide, and fails", scribeLease, []loop{(*shift).falter}},
}

// Ends of a shift that are no errors.
var (
	errTerminated = errors.New("terminated")
	errFaltered   = errors.New("faltered")
)

// runCrew prints the link of the dashboard and runs a crew until ctx ends. It returns the cause of that
// end, or the error without which there is no link.
func runCrew(ctx context.Context, address string, o Options) error {
	broker, err := client.Dial(ctx, client.WithAddress(address))
	if err != nil {
		return err
	}
	defer broker.Close()
	link, err := o.Dashboard(ctx, broker)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "%s\nThe team works until Ctrl-C. For another link: brokerctl --addr %s dashboard\n",
		link, address)
	if err != nil {
		return err
	}
	// A team that never rests would only load the machine.
	c := &crew{broker: broker, pace: max(pace(o.Pace), 0.01), out: o.Out}
	var members sync.WaitGroup
	for i := range crewMembers {
		members.Go(func() { c.keep(ctx, i) })
	}
	members.Wait()
	return context.Cause(ctx)
}

// keep runs the shifts of a member, with a pause between two.
func (c *crew) keep(ctx context.Context, member int) {
	name := crewMembers[member].name
	for ctx.Err() == nil {
		err := c.shift(ctx, member)
		if ctx.Err() == nil && !errors.Is(err, errTerminated) && !errors.Is(err, errFaltered) {
			c.report(name, err)
		}
		c.pace.take(ctx, 10*time.Second)
	}
}

func (c *crew) report(member string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%s begins again: %v\n", member, err)
}

// A shift is the work of one member from its registration until an error or a directive ends it.
type shift struct {
	crew   *crew
	member *client.Member
	agent  *client.Client // of the member
	end    context.CancelCauseFunc
}

// shift registers a member and runs its loops. It returns the error that has ended the first of them.
func (c *crew) shift(ctx context.Context, member int) error {
	m := crewMembers[member]
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	request := &pb.RegisterAgentRequest{Role: m.role, Description: m.purpose, Lease: durationpb.New(m.lease)}
	joined, err := c.broker.As(m.name).Join(ctx, request, client.JoinOptions{Once: true})
	if err != nil {
		return err
	}
	defer joined.Abandon()
	s := &shift{crew: c, member: joined, agent: joined.Client(), end: end}
	var loops sync.WaitGroup
	for _, loop := range m.loops {
		loops.Go(func() { end(loop(s, ctx)) })
	}
	loops.Wait()
	err = context.Cause(ctx)
	if errors.Is(err, errTerminated) {
		err = errors.Join(err, joined.Deregister(context.WithoutCancel(ctx), ""))
	}
	return err
}

// rest waits for the time that a piece of work takes.
func (s *shift) rest(ctx context.Context, d time.Duration) { s.crew.pace.take(ctx, d) }

// say reports the activity of the member.
func (s *shift) say(ctx context.Context, status pb.AgentStatus, activity string) error {
	_, err := s.agent.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{Status: status, Activity: &activity})
	return err
}

// falter locks a file, works for a while, and then does not call for longer than its lease.
func (s *shift) falter(ctx context.Context) error {
	_, err := s.agent.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{
		Paths: []string{"docs/guide.md"}, Wait: durationpb.New(10 * time.Second), Reason: "write the guide",
	})
	if err != nil {
		return err
	}
	for _, chapter := range []string{"introduction", "installation", "first steps"} {
		if err := s.say(ctx, pb.AgentStatus_AGENT_STATUS_ACTIVE, "writes the chapter "+chapter); err != nil {
			return err
		}
		s.rest(ctx, 3*time.Second)
	}
	s.member.Abandon()
	pace(1).take(ctx, 2*scribeLease) // the broker's clock does not follow the pace of the demo
	s.rest(ctx, 20*time.Second)
	return errFaltered
}
