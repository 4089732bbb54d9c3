package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// workOf returns the unfinished work that concerns the calling agent.
func workOf(ctx context.Context, broker *client.Client) ([]*pb.WorkItem, error) {
	answer, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	return answer.GetHoldings().GetWork(), err
}

// workAgain returns the work of the calling agent that is known, or asks for it again.
func (c *cli) workAgain(again bool) []*pb.WorkItem {
	if again && c.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		// Without the work, the text names only the commands for the message.
		c.work, _ = workOf(ctx, c.client)
	}
	return c.work
}

// owed returns the pieces of work that wait for the agent: for its answer, or for it to continue.
func owed(items []*pb.WorkItem) []*pb.WorkItem { return prompt.Owed(items) }

// printWork lists pieces of work, those that wait for the agent first.
func (c *cli) printWork(w io.Writer, items []*pb.WorkItem) { c.voice().Items(w, items) }

// workCounts counts pieces of work by kind and state: "tasks: 3 ready, 1 claimed; votes: 1 open".
func workCounts(counts []*pb.WorkCount) string {
	var kinds []string
	var parts []string
	for _, n := range counts {
		if !slices.Contains(kinds, n.GetKind()) {
			kinds = append(kinds, n.GetKind())
		}
	}
	for _, kind := range kinds {
		var states []string
		for _, n := range counts {
			if n.GetKind() == kind {
				states = append(states, prompt.UpTo1000(n.GetCount())+" "+n.GetState())
			}
		}
		parts = append(parts, kind+"s: "+strings.Join(states, ", "))
	}
	return strings.Join(parts, "; ")
}
