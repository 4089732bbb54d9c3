package main

import (
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

// openWork is one piece of work of each relation, and a blocked task.
func openWork() []*pb.WorkItem {
	return []*pb.WorkItem{
		{Kind: "vote", Id: "v-1", Title: "Which database?", State: "open", Relation: pb.WorkRelation_WORK_RELATION_OPENED, Other: "role:builder"},
		{Kind: "task", Id: "schema", Title: "Write the schema", State: "blocked", Relation: pb.WorkRelation_WORK_RELATION_HOLDS,
			Calls: calls.Protos([]calls.Call{calls.Do(
				&pb.UpdateTaskRequest{Id: "schema", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}},
			)})},
		{Kind: "task", Id: "api", Title: "Write\nthe API", State: "claimed", Relation: pb.WorkRelation_WORK_RELATION_HOLDS, Due: before(-2 * time.Hour),
			Calls: calls.Protos([]calls.Call{
				calls.Do(&pb.CompleteTaskRequest{Id: "api"}, "result"), calls.Do(&pb.ReleaseTaskRequest{Id: "api"}),
			})},
		{Kind: "decision", Id: "d-7", Title: "The login page", State: "open", Relation: pb.WorkRelation_WORK_RELATION_OWES, Other: "builder-2",
			Calls: calls.Protos([]calls.Call{
				calls.Do(&pb.DecideRequest{Id: "d-7", Verdict: "approve"}),
				calls.Do(&pb.DecideRequest{Id: "d-7", Verdict: "revise"}, "reason"),
			})},
	}
}

func TestItems_AreOneLineEachWithTheCommandThatSettlesThem(t *testing.T) {
	c, _, out := printer(output.FormatTable)
	c.Global.Agent = "builder-1"
	mail.PrintWork(c, out, openWork())
	wantText(t, out.String(), `
Open: holds task api (claimed, due in 2h): Write the API → brokerctl --agent builder-1 task complete api --result RESULT
Open: owes an answer to decision d-7 (open) of builder-2: The login page → brokerctl --agent builder-1 decision decide d-7 approve
Open: has opened vote v-1 (open), waits for role:builder: Which database?
Open: holds task schema (blocked): Write the schema → brokerctl --agent builder-1 task unblock schema
`)
	out.Reset()
	mail.PrintWork(c, out, append(openWork(), openWork()...))
	if lines := strings.Split(out.String(), "\n"); len(lines) != 7 || lines[5] != "Open: 3 more: brokerctl --agent builder-1 agent get --full" {
		t.Errorf("%s", out)
	}
}

func TestItems_TheAnswerToALetterLeavesOutCommandsThatOnlyShow(t *testing.T) {
	c, _, _ := printer(output.FormatTable)
	i := &pb.WorkItem{Kind: "decision", Id: "d-5", Calls: calls.Protos([]calls.Call{
		calls.Do(&pb.DecideRequest{Id: "d-5", Verdict: "accept"}), calls.Do(&pb.GetDecisionRequest{Id: "d-5"}),
		calls.Do(&pb.ClaimTaskRequest{Id: "get x"}),
	})}
	if got := c.Voice().AfterItem(i); got != "brokerctl decision accept d-5 or brokerctl task claim 'get x'" {
		t.Errorf("%q", got)
	}
}

func TestItems_AreCountedByKindAndState(t *testing.T) {
	if got := prompt.KindsOf(openWork()); got != "1 vote, 2 tasks, 1 decision" {
		t.Errorf("%q", got)
	}
	got := mail.WorkCounts([]*pb.WorkCount{{Kind: "task", State: "ready", Count: 1000}, {Kind: "task", State: "claimed", Count: 2}, {Kind: "vote", State: "open", Count: 1}})
	if got != "tasks: 1000+ ready, 2 claimed; votes: 1 open" {
		t.Errorf("%q", got)
	}
}

func TestItems_OnlyThoseThatWaitForTheAgentAreOwed(t *testing.T) {
	if got := prompt.KindsOf(prompt.Owed(openWork())); got != "1 task, 1 decision" {
		t.Errorf("%q", got)
	}
}
