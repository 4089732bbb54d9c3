package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/toolcall"
	pb "brokerd/gen/brokerd/v1"
)

// mostItems is how many pieces of work next and the hook show.
const mostItems = 5

// workOf returns the unfinished work that concerns the calling agent.
func workOf(ctx context.Context, broker *client.Client) ([]*pb.WorkItem, error) {
	answer, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	return answer.GetHoldings().GetWork(), err
}

// owed returns the pieces of work that wait for the agent: for its answer, or for it to continue.
func owed(items []*pb.WorkItem) []*pb.WorkItem {
	return slices.DeleteFunc(slices.Clone(items), func(i *pb.WorkItem) bool {
		return i.GetRelation() != pb.WorkRelation_WORK_RELATION_OWES &&
			(i.GetRelation() != pb.WorkRelation_WORK_RELATION_HOLDS || i.GetState() == "blocked")
	})
}

// itemLine describes a piece of work, with the command that settles it. Without the title, it contains no
// text of others.
func (c *cli) itemLine(i *pb.WorkItem, title bool) string {
	facts := i.GetState()
	if i.GetDue() != nil {
		facts += ", due " + c.when(i.GetDue())
	}
	what := fmt.Sprintf("%s %s (%s)", i.GetKind(), i.GetId(), facts)
	switch i.GetRelation() {
	case pb.WorkRelation_WORK_RELATION_HOLDS:
		what = "holds " + what
	case pb.WorkRelation_WORK_RELATION_OWES:
		owes, of := "owes an answer to ", " of "
		switch {
		case i.GetKind() == "task":
			owes = "is assigned "
		case i.GetState() == enumOf(decisionRevising):
			owes, of = "owes the next round of ", " to "
		}
		what = owes + what + cond(i.GetOther() != "", of+i.GetOther(), "")
	case pb.WorkRelation_WORK_RELATION_OPENED:
		what = "has opened " + what + cond(i.GetOther() != "", ", waits for "+i.GetOther(), "")
	}
	if title && i.GetTitle() != "" {
		what += ": " + clip(i.GetTitle(), 60)
	}
	if len(i.GetCommands()) > 0 {
		what += " → " + c.likewise(i.GetCommands()[0])
	}
	return oneLine(what)
}

// printWork lists pieces of work, those that wait for the agent first.
func (c *cli) printWork(w io.Writer, items []*pb.WorkItem) {
	first := owed(items)
	rest := slices.DeleteFunc(slices.Clone(items), func(i *pb.WorkItem) bool { return slices.Contains(first, i) })
	items = slices.Concat(first, rest)
	shown := items[:min(len(items), mostItems)]
	if isPrompt(w) {
		var titles strings.Builder
		for _, i := range shown {
			if i.GetTitle() != "" {
				fmt.Fprintf(&titles, "%s: %s\n", i.GetId(), clip(i.GetTitle(), 60))
			}
		}
		if titles.Len() > 0 {
			framed(w, "titles of open work", titles.String())
		}
	}
	for _, i := range shown {
		say(w, "Open: %s", c.itemLine(i, !isPrompt(w)))
	}
	if more := len(items) - mostItems; more > 0 {
		say(w, "Open: %d more: %s", more, c.command("agent get --full"))
	}
}

// itemOf returns the piece of work on which a message asks the calling agent to act; nil if there is
// none, or if it no longer waits for the agent. The payload of such a message carries the id.
func (c *cli) itemOf(m *pb.Message) *pb.WorkItem {
	payload := map[string]any{}
	if c.client == nil || !strings.Contains(m.GetPayload(), `_id"`) {
		return nil
	}
	if err := json.Unmarshal([]byte(m.GetPayload()), &payload); err != nil { // it is no object
		return nil
	}
	find := func() *pb.WorkItem {
		for _, i := range c.work {
			if id := payload[i.GetKind()+"_id"]; id == i.GetId() && i.GetRelation() == pb.WorkRelation_WORK_RELATION_OWES {
				return i
			}
		}
		return nil
	}
	if found := find(); found != nil {
		return found
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	// Without the work, the text names only the commands for the message.
	c.work, _ = workOf(ctx, c.client)
	return find()
}

// showing are the commands of pieces of work that only show them.
var showing = regexp.MustCompile(`^brokerctl (--session \S+ )?[a-z]+ get `)

// afterItem lists the commands that answer a piece of work.
func (c *cli) afterItem(i *pb.WorkItem) string {
	var commands []string
	for _, command := range i.GetCommands() {
		if !showing.MatchString(command) {
			commands = append(commands, c.likewise(command))
		}
	}
	if c.tools {
		commands = toolcall.Alternatives(commands)
	}
	return strings.Join(commands, " or ")
}

// kindsOf counts pieces of work by kind: "2 tasks, 1 vote".
func kindsOf(items []*pb.WorkItem) string {
	var kinds []string
	n := map[string]int{}
	for _, i := range items {
		if n[i.GetKind()]++; n[i.GetKind()] == 1 {
			kinds = append(kinds, i.GetKind())
		}
	}
	for i, kind := range kinds {
		kinds[i] = count(n[kind], kind)
	}
	return strings.Join(kinds, ", ")
}

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
				states = append(states, upTo1000(n.GetCount())+" "+n.GetState())
			}
		}
		parts = append(parts, kind+"s: "+strings.Join(states, ", "))
	}
	return strings.Join(parts, "; ")
}
