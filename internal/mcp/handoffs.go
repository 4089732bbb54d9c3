package mcp

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func createHandoff(c *call) error {
	agent, role, err := ParseAgentOrRole(c.arg("to"))
	if err != nil {
		return err
	}
	answer, err := c.api.CreateHandoff(c.ctx, &pb.CreateHandoffRequest{
		RequestId: c.requestID, ToAgent: agent, ToRole: role, Title: c.arg("about"), TaskId: c.arg("task"),
		TransferTask: c.has("task"), Content: &pb.HandoffContent{Background: c.arg("text")},
	})
	if err != nil {
		return err
	}
	h := answer.GetHandoff()
	if c.wait() > 0 {
		return awaitHandoff(c, h.GetId())
	}
	_ = c.say("created %s", h.GetId())
	c.then("to wait for the answer", &pb.GetHandoffRequest{Id: h.GetId(), Wait: outcomeWait()})
	return nil
}

func answerHandoff(c *call) error {
	if c.arg("answer") == "reject" {
		answer, err := c.api.RejectHandoff(c.ctx, &pb.RejectHandoffRequest{
			RequestId: c.requestID, Id: c.arg("id"), Notes: c.arg("text"),
		})
		return saySettled(c, "rejected", answer.GetHandoff(), err)
	}
	answer, err := c.api.AcceptHandoff(c.ctx, &pb.AcceptHandoffRequest{
		RequestId: c.requestID, Id: c.arg("id"), Notes: c.arg("text"),
	})
	return saySettled(c, "accepted", answer.GetHandoff(), err)
}

func cancelHandoff(c *call) error {
	answer, err := c.api.CancelHandoff(c.ctx, &pb.CancelHandoffRequest{RequestId: c.requestID, Id: c.arg("id")})
	return saySettled(c, "cancelled", answer.GetHandoff(), err)
}

// saySettled says what became of a handoff, and of what it transfers.
func saySettled(c *call, verb string, h *pb.Handoff, err error) error {
	if err != nil {
		return err
	}
	_ = c.say("%s %s", verb, h.GetId())
	for _, g := range h.GetGrants() {
		name := prompt.Enum(g.GetKind()) + " " + prompt.OneLine(g.GetName())
		switch {
		case g.GetLost():
			fmt.Fprintf(c.w, "the %s was lost before\n", name)
		case g.GetNewFence() != 0:
			fmt.Fprintf(c.w, "holds the %s, fence %d\n", name, g.GetNewFence())
		}
	}
	return nil
}

func showHandoff(c *call) error { return awaitHandoff(c, c.arg("id")) }

// awaitHandoff shows a handoff as Markdown, after the wait of the call for its answer.
func awaitHandoff(c *call, id string) error {
	var answer *pb.GetHandoffResponse
	wait := c.wait()
	settled, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
		var err error
		answer, err = c.api.GetHandoff(c.ctx, &pb.GetHandoffRequest{Id: id, Wait: left, Markdown: true})
		return answer.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_PENDING, err
	})
	if err != nil {
		return err
	}
	h := answer.GetHandoff()
	fmt.Fprint(c.w, prompt.Clean(answer.GetMarkdown()))
	switch {
	case !settled && wait > 0:
		return nothingf("handoff %s is not answered after %s", h.GetId(), prompt.Duration(wait))
	case !settled:
		to := h.GetToAgent()
		if role := h.GetToRole(); role != "" {
			to = "role:" + role
		}
		return c.say("Next, for %s: %s, or %s",
			to, do(&pb.AcceptHandoffRequest{Id: h.GetId()}), do(&pb.RejectHandoffRequest{Id: h.GetId()}, "notes"))
	}
	return nil
}
