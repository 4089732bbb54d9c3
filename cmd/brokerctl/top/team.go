package top

import (
	"context"
	"fmt"
	"slices"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// team shows the agents.
var team = view{
	title: "Team", short: "Team", question: "Who does what, who is silent, who holds what?",
	none: "no agent is registered",
	columns: []table.Column{
		{Name: "AGENT", Min: 12}, {Name: "ROLE", Rank: 3, Min: 8}, {Name: "STATE", State: true},
		{Name: "SILENT", Rank: 2}, {Name: "CLAIMS"}, {Name: "LOCKS"}, {Name: "WAITING"},
		{Name: "ACTIVITY", Rank: 1, Min: 16},
	},
	rows: func(s snapshot) []row {
		var rows []row
		for _, a := range s.frame.GetAgents() {
			state := cell{prompt.OneLine(a.GetState()), int64(slices.Index(states, a.GetState()))}
			if a.GetHalted() {
				state.text += ", halted"
			}
			rows = append(rows, row{key: a.GetName(), item: a, cells: []cell{
				text(a.GetName()), text(a.GetRole()), state, s.ago(a.GetSilentSince()),
				number(a.GetClaims()), number(a.GetLocks()), number(a.GetWaiting()), text(a.GetActivity()),
			}})
		}
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		a, err := o.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: r.key, View: pb.AgentView_AGENT_VIEW_FULL})
		if err != nil {
			return nil, err
		}
		why, err := o.explained(ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: r.key}})
		return append(why, section{title: "agent", message: a}), err
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
		return one(rows, func(a *pb.OverviewAgent) []action {
			name := a.GetName()
			actions := []action{{
				label: "message", effect: "Send a message to " + name,
				fields: []field{{name: "subject", required: true}, {name: "text"}},
				run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
					return send(ctx, broker, &pb.Message{Target: agent(name), Subject: v["subject"], Body: v["text"]})
				},
			}}
			for _, d := range directives {
				actions = append(actions, action{
					label: d.kind, effect: fmt.Sprintf(d.effect, name), fields: []field{{name: "reason"}},
					run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
						return send(ctx, broker, &pb.Message{Target: agent(name), Type: d.kind, Subject: v["reason"]})
					},
				})
			}
			return actions
		})
	},
}

// states are those of agents in the order of the sorted column, the worst last.
var states = []string{"stopped", "completed", "idle", "waiting", "busy", "starting", "blocked", "late", "degraded", "failed"}

// directives are the messages that steer an agent.
var directives = []struct{ kind, effect string }{
	{"nudge", "Remind %s of its work"},
	{"halt", "Halt %s: the broker delivers no work to it until it is resumed"},
	{"resume", "Resume %s: the broker delivers work to it again"},
	{"terminate", "Ask %s to stop for good"},
}

func agent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// send sends one message, and says what became of it.
func send(ctx context.Context, broker *client.Client, m *pb.Message) (string, error) {
	answer, err := broker.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	if err != nil {
		return "", err
	}
	result := answer.GetResults()[0]
	said := fmt.Sprintf("sent as %d", result.GetRevision())
	if n := result.GetRefusedCount(); n > 0 {
		said += "; " + prompt.Count(int64(n), "full mailbox") + " refused it"
	}
	for _, w := range result.GetWarnings() {
		said += "; " + w
	}
	return said, nil
}
