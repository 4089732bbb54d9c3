package mcp

import (
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// agentPage is how many agents a result lists.
const agentPage = 100

func listAgents(c *call) error {
	page, err := c.api.ListAgents(c.ctx, &pb.ListAgentsRequest{Role: c.arg("about"), PageSize: agentPage})
	if err != nil {
		return err
	}
	for _, a := range page.GetAgents() {
		c.line("agent", a.GetName(), "role", a.GetRole(), "state", agentState(a), "seen", c.voice.When(a.GetLastSeen()),
			"activity", a.GetActivity(), "capabilities", strings.Join(a.GetCapabilities(), " "),
			"description", strings.TrimSpace(a.GetDisplayName()+" "+a.GetDescription()))
	}
	return c.none(len(page.GetAgents()), "agents", page.GetNextPageToken())
}

// agentState returns the state of an agent, and what else keeps work from it.
func agentState(a *pb.Agent) string {
	state := a.GetState()
	for _, also := range []struct {
		holds bool
		word  string
	}{
		{a.GetHalted(), "halted"}, {a.GetDegraded(), "degraded"},
		{a.GetAsleepSince() != nil && a.GetStoppedAt() == nil, "asleep"},
	} {
		if also.holds && also.word != a.GetState() {
			state += ", " + also.word
		}
	}
	return state
}

// showFindings says what is stuck and why, or explains one thing.
func showFindings(c *call) error {
	request, err := ParseSubject(c.args["about"])
	if err != nil {
		return err
	}
	if lock, ok := request.GetSubject().(*pb.ExplainRequest_Lock); ok && strings.Trim(lock.Lock, "0123456789") != "" {
		paths, err := c.server.lockPaths([]string{lock.Lock})
		if err != nil {
			return err
		}
		lock.Lock = paths[0]
	}
	answer, err := c.api.Explain(c.ctx, request)
	if err != nil {
		return err
	}
	for _, f := range answer.GetFindings() {
		c.voice.Finding(c.w, f)
	}
	if len(answer.GetFindings()) == 0 {
		return c.say("nothing that concerns %s is stuck", c.name)
	}
	return nil
}

// showAgent shows an agent, and what it holds and has open.
func showAgent(c *call) error {
	answer, err := c.api.GetAgent(c.ctx, &pb.GetAgentRequest{Name: c.arg("about"), View: pb.AgentView_AGENT_VIEW_FULL})
	if err != nil {
		return err
	}
	c.details(answer.GetAgent(), "incarnation", "health", "counters")
	c.details(answer, "agent", "holdings")
	c.details(answer.GetHoldings(), "work", "to_answer")
	for _, q := range answer.GetHoldings().GetToAnswer() {
		fmt.Fprintf(c.w, "owes an answer to %s: %s\n", c.voice.Question(q, true), c.voice.Answer(q))
	}
	for _, i := range answer.GetHoldings().GetWork() {
		fmt.Fprintln(c.w, c.voice.ItemLine(i, true))
	}
	return nil
}

// reportActivity says what the agent does.
func reportActivity(c *call) error {
	answer, err := c.api.Heartbeat(c.ctx, &pb.HeartbeatRequest{Activity: c.optional("text")})
	if err != nil {
		return err
	}
	_ = c.say("%s unread, %s to claim; lease %s",
		prompt.UpTo1000(answer.GetUnread()), prompt.UpTo1000(answer.GetClaimable()),
		prompt.Duration(answer.GetLease().AsDuration()))
	if d := answer.GetDirectives(); len(d) > 0 {
		_ = c.say("directives: %s; see %s", prompt.Names(d, len(d)), "turn {}")
	}
	prompt.Losses(c.w, answer)
	return nil
}

func nudge(c *call) error { return sendDirective(c, "nudge") }

func halt(c *call) error { return sendDirective(c, "halt") }

func resume(c *call) error { return sendDirective(c, "resume") }

// sendDirective sends a message of a type that agents obey. It goes to all who match, of a role too.
func sendDirective(c *call, kind string) error {
	target, err := ParseReceiver(c.arg("to"))
	if err != nil {
		return err
	}
	return sendMessage(c, &pb.Message{
		Target: target, Reach: pb.Reach_REACH_ALL, Type: kind, Priority: priorities["critical"], Subject: c.arg("text"),
	})
}

// leave ends the registration of the agent.
func leave(c *call) error {
	_, err := c.api.DeregisterAgent(c.ctx, &pb.DeregisterAgentRequest{RequestId: c.requestID, Reason: c.arg("text")})
	if err != nil {
		return err
	}
	c.agent.Left(true)
	return c.say("deregistered %s", c.name)
}
