package mail

import (
	"io"
	"slices"
	"strings"

	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// PrintWork lists pieces of work, those that wait for the agent first.
func PrintWork(c *command.Caller, w io.Writer, items []*pb.WorkItem) { c.Voice().Items(w, items) }

// WorkCounts counts pieces of work by kind and state: "tasks: 3 ready, 1 claimed; votes: 1 open".
func WorkCounts(counts []*pb.WorkCount) string {
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
