package mcp

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func raiseBlocker(c *call) error {
	r := &pb.RaiseBlockerRequest{
		RequestId: c.requestID, Reason: c.arg("text"), Awaited: ParseAwaited(c.arg("on")), TaskId: c.arg("task"),
	}
	if c.has("to") {
		agent, role, err := ParseAgentOrRole(c.arg("to"))
		if err != nil {
			return err
		}
		to := &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: agent}}
		if role != "" {
			to.Recipient = &pb.BlockerRecipient_Role{Role: role}
		}
		r.Recipients = append(r.Recipients, to)
	}
	answer, err := c.api.RaiseBlocker(c.ctx, r)
	if err != nil {
		return err
	}
	b := answer.GetBlocker()
	if c.wait() > 0 {
		return awaitBlocker(c, b.GetId())
	}
	line := "raised " + b.GetId()
	if b.GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED {
		_ = c.say("%s, and resolved", line)
		if b.GetResolution() != "" {
			c.w.Frame("the resolution of "+b.GetId(), b.GetResolution())
		}
		return nil
	}
	var names []string
	for _, to := range b.GetRecipients() {
		name := to.GetAgent()
		if role := to.GetRole(); role != "" {
			name = "role:" + role
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		line += ", notified " + prompt.Names(names, len(names))
	} else {
		line += "; no role of escalate_to has an agent to notify"
	}
	if b.GetTaskBlocked() {
		line += ", blocked task " + b.GetTaskId()
	}
	_ = c.say("%s", line)
	c.then("to wait for its resolution", &pb.GetBlockerRequest{Id: b.GetId(), Wait: outcomeWait()})
	return nil
}

func acknowledgeBlocker(c *call) error {
	answer, err := c.api.AcknowledgeBlocker(c.ctx, &pb.AcknowledgeBlockerRequest{
		RequestId: c.requestID, Id: c.arg("id"),
	})
	if err != nil {
		return err
	}
	_ = c.say("acknowledged %s", answer.GetBlocker().GetId())
	c.then("when the obstacle is removed", &pb.ResolveBlockerRequest{Id: answer.GetBlocker().GetId()}, "resolution")
	return nil
}

func resolveBlocker(c *call) error {
	answer, err := c.api.ResolveBlocker(c.ctx, &pb.ResolveBlockerRequest{
		RequestId: c.requestID, Id: c.arg("id"), Resolution: c.arg("text"),
	})
	if err != nil {
		return err
	}
	b := answer.GetBlocker()
	return c.say("resolved %s after %s",
		b.GetId(), prompt.Duration(b.GetTimeBlocked().AsDuration().Truncate(time.Second)))
}

func showBlocker(c *call) error { return awaitBlocker(c, c.arg("id")) }

// awaitBlocker shows a blocker with its timeline, after the wait of the call for its resolution.
func awaitBlocker(c *call, id string) error {
	var b *pb.Blocker
	wait := c.wait()
	resolved, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := c.api.GetBlocker(c.ctx, &pb.GetBlockerRequest{Id: id, Wait: left})
		b = answer.GetBlocker()
		return b.GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED, err
	})
	if err != nil {
		return err
	}
	c.details(b)
	switch {
	case !resolved && wait > 0:
		return nothingf("blocker %s is not resolved after %s", b.GetId(), prompt.Duration(wait))
	case !resolved:
		c.then("when the obstacle is removed", &pb.ResolveBlockerRequest{Id: b.GetId()}, "resolution")
	}
	return nil
}
