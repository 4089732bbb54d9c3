package mcp

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// api has the calls of the API that the tools make.
type api struct {
	pb.AdminServiceClient
	pb.AgentServiceClient
	pb.ArtifactServiceClient
	pb.BlockerServiceClient
	pb.DecisionServiceClient
	pb.HandoffServiceClient
	pb.LockServiceClient
	pb.MessageServiceClient
	pb.StateServiceClient
	pb.TaskServiceClient
	pb.VoteServiceClient
}

func newAPI(conn grpc.ClientConnInterface) api {
	return api{
		pb.NewAdminServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewArtifactServiceClient(conn),
		pb.NewBlockerServiceClient(conn), pb.NewDecisionServiceClient(conn), pb.NewHandoffServiceClient(conn),
		pb.NewLockServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewStateServiceClient(conn),
		pb.NewTaskServiceClient(conn), pb.NewVoteServiceClient(conn),
	}
}

// A call is one call of a tool. One goroutine uses it.
type call struct {
	server    *toolServer
	ctx       context.Context
	agent     Agent
	to        shownTo
	name      string // of the agent
	w         *prompt.Writer
	out       *strings.Builder // to which w writes
	voice     prompt.Voice
	row       *row
	args      values
	raw       given
	requestID string // of the change that the call makes
	mark      string // of the frames in the result, and of what it offers
	offer     offerState
	api       api
	work      workCache
}

// A workCache has the unfinished work that concerns the agent, from its first use in a call.
type workCache struct {
	items []*pb.WorkItem
	known bool
}

// set notes the work, which the call has read otherwise.
func (w *workCache) set(items []*pb.WorkItem) { *w = workCache{items, true} }

// load reads the work unless it is known. Without the work, the text names only the calls for the message.
func (w *workCache) load(ctx context.Context, agents pb.AgentServiceClient) {
	if !w.known {
		items, _ := workOf(ctx, agents)
		w.set(items)
	}
}

// carryOut writes the result of a call of a tool, and reports whether it has failed.
func (c *call) carryOut(t *tool, args given) (failed bool) {
	id, err := uuid.NewV7()
	if err == nil {
		c.requestID = id.String()
		if t.name == "settle" && args["id"] == nil {
			if task := onlyTask(c); task != "" {
				args["id"] = task
			}
		}
		if c.row, c.args, err = t.row(args); err == nil {
			c.raw = args
			err = c.row.run(c)
		}
	}
	_ = c.w.Flush() // to memory
	return c.explain(err)
}

// arg returns an argument; "" if it is not given.
func (c *call) arg(name string) string { return strings.Join(c.args[name], " ") }

// has reports whether an argument is given.
func (c *call) has(name string) bool { return c.args[name] != nil }

// optional returns an argument; nil if it is not given.
func (c *call) optional(name string) *string {
	if !c.has(name) {
		return nil
	}
	s := c.arg(name)
	return &s
}

// wait returns how long a call waits.
func (c *call) wait() time.Duration {
	d, _ := time.ParseDuration(c.arg("wait")) // the server has written it
	return d
}

// span reads a duration such as 30m or 7d; nil if the argument is not given.
func (c *call) span(name string) (*durationpb.Duration, error) {
	if !c.has(name) {
		return nil, nil
	}
	s := c.arg(name)
	if days, err := strconv.ParseInt(strings.TrimSuffix(s, "d"), 10, 16); err == nil && strings.HasSuffix(s, "d") {
		s = strconv.FormatInt(24*days, 10) + "h"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return nil, argumentf("%s %s is no duration such as 90s, 30m or 2d", name, quote(c.arg(name)))
	}
	return durationpb.New(d), nil
}

// duration converts a wait; 0 is absent.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// say writes a line of the program itself.
func (c *call) say(format string, args ...any) error {
	c.w.Say(prompt.OneLine(fmt.Sprintf(format, args...)))
	return nil
}

// then names the call that comes next.
func (c *call) then(why string, request proto.Message, missing ...string) {
	c.w.Say("Next: " + do(request, missing...) + " " + why)
}

// voice names next steps as calls of tools.
func (s *toolServer) voice(c *call) prompt.Voice {
	return prompt.Voice{
		Command: toolCall, Also: toolCall, Shorten: alternatives,
		Proposed: func(call *pb.Call) string { return proposed(call, c.name) },
		When: func(t *timestamppb.Timestamp) string {
			if t == nil {
				return ""
			}
			return prompt.Relative(t.AsTime().Sub(s.Clock.Now()))
		},
		Since: func(t *timestamppb.Timestamp) string {
			return "for " + prompt.Rough(max(s.Clock.Since(t.AsTime()), 0))
		},
		Work: func(again bool) []*pb.WorkItem {
			if !again {
				c.work.load(c.ctx, c.api)
			}
			return c.work.items
		},
	}
}

// workOf returns the unfinished work that concerns the calling agent.
func workOf(ctx context.Context, agents pb.AgentServiceClient) ([]*pb.WorkItem, error) {
	answer, err := agents.GetAgent(ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	return answer.GetHoldings().GetWork(), err
}

// await calls ask until it reports the outcome, or the wait ends.
func (c *call) await(wait time.Duration, ask func(left *durationpb.Duration) (bool, error)) (bool, error) {
	const pause = 200 * time.Millisecond
	end := c.server.Clock.Now().Add(wait)
	for {
		left := end.Sub(c.server.Clock.Now())
		done, err := ask(duration(max(left, 0)))
		if done || err != nil || left <= 0 {
			return done, err
		}
		again := c.server.Clock.NewTimer(min(pause, left)) // a call that ended early would at once end again
		select {
		case <-again.Chan():
		case <-c.ctx.Done():
			again.Stop()
			return false, c.ctx.Err()
		}
	}
}

// details writes what is known of an object, one field a line.
func (c *call) details(m proto.Message, leftOut ...string) {
	prompt.Fields(c.w, m, c.voice.When, leftOut...)
}

// line writes one line of a list, from names and values in turn. It leaves out empty values.
func (c *call) line(pairs ...string) {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+" "+prompt.OneLine(pairs[i+1]))
		}
	}
	fmt.Fprintln(c.w, strings.Join(parts, ", "))
}

// none says that a list is empty, or that it has more than its page.
func (c *call) none(n int, what, more string) error {
	switch {
	case n == 0:
		return c.say("no %s", what)
	case more != "":
		return c.say("there are more %s", what)
	}
	return nil
}
