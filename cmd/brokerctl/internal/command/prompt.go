package command

import (
	"context"
	"fmt"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

// Voice is how texts name commands and times in this run.
func (c *Caller) Voice() prompt.Voice {
	return prompt.Voice{
		Command:  c.Line,
		Also:     c.also,
		Proposed: c.Proposed,
		When:     c.When,
		Since:    c.Since,
		Work:     c.workAgain,
	}
}

func (c *Caller) also(call calls.Call) string {
	words, _ := c.forms.words(call)
	return c.quoted(words)
}

// Command is a suggested command line, with the flags of this run that say where and as whom it acts.
func (c *Caller) Command(format string, args ...any) string {
	return c.Global.Again() + " " + fmt.Sprintf(format, args...)
}

// WorkOf returns the unfinished work that concerns the calling agent.
func WorkOf(ctx context.Context, broker *client.Client) ([]*pb.WorkItem, error) {
	answer, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	return answer.GetHoldings().GetWork(), err
}

// workAgain returns the work of the calling agent that is known, or asks for it again.
func (c *Caller) workAgain(again bool) []*pb.WorkItem {
	if again && c.Client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
		defer cancel()
		// Without the work, the text names only the commands for the message.
		c.Work, _ = WorkOf(ctx, c.Client)
	}
	return c.Work
}
