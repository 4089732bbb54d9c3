package browsertest

import (
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

var teamButtons = []button{
	{"message an agent", func(m *team, p *tab) string {
		p.show("team/builder-2")
		p.act(panel, "message", "subject", "Look at the log", "body", "It grows.")
		p.confirm()
		return m.newest("builder-2")
	}, "system: Look at the log"},
	{"nudge", func(m *team, p *tab) string {
		p.show("team/builder-2")
		p.act(panel, "nudge", "subject", "Are you there?")
		p.confirm()
		return m.newest("builder-2")
	}, "system: Are you there?"},
	{"halt", func(m *team, p *tab) string {
		p.show("team/lead")
		p.act(panel, "halt", "subject", "Wait for the plan")
		p.await(`has(one('dialog[open] h2'), 'Halt lead') && has(one('dialog[open]'), 'receives only directives')`)
		p.confirm()
		p.await(`has(row('lead'), 'halted')`)
		return m.halted("lead")
	}, "halted"},
	{"resume", func(m *team, p *tab) string {
		p.show("team/lead")
		p.act(panel, "resume", "subject", "The plan is ready")
		p.confirm()
		p.await(`!has(row('lead'), 'halted')`)
		return m.halted("lead")
	}, "not halted"},
	{"terminate", func(m *team, p *tab) string {
		p.show("team/reviewer")
		p.act(panel, "terminate", "subject", "The work is done")
		p.confirm()
		return m.newest("reviewer")
	}, "system: The work is done"},
}

// halted says whether an agent is halted.
func (m *team) halted(agent string) string {
	m.t.Helper()
	out := call(m, "", pb.NewAgentServiceClient, pb.AgentServiceClient.GetAgent, &pb.GetAgentRequest{Name: agent})
	if out.GetAgent().GetHalted() {
		return "halted"
	}
	return "not halted"
}

var lockButtons = []button{
	{"force release", func(m *team, p *tab) string {
		m.lock("builder-1", "src/auth/")
		m.lock("builder-2", "src/auth/login.go")
		p.show("locks")
		p.act(`one('[data-block]')`, "force-release", "reason", "builder-1 has crashed")
		p.confirm()
		p.await(`!one('[data-block]')`)
		return m.holders()
	}, "builder-2 src/auth/login.go"},
	{"end a wait", func(m *team, p *tab) string {
		m.lock("reviewer", "src/auth/login.go")
		p.show("locks/lock:src%2Fauth%2Flogin.go")
		p.act(panel, "end-the-wait", "reason", "It is not needed")
		p.confirm()
		p.await(`!one('[data-block]')`)
		return fmt.Sprint(len(m.locks().GetTickets()))
	}, "0"},
	{"end a wait for a token", func(m *team, p *tab) string {
		m.token("lead", "deploy", "web")
		m.token("builder-1", "deploy", "web")
		p.show("locks/token:deploy%2Fweb")
		p.act(panel, "end-the-wait", "reason", "It is not needed")
		p.confirm()
		p.await(`!one('[data-block]')`)
		deploy := &pb.GetTokenRequest{Type: "deploy", Scope: "web"}
		token := call(m, "", pb.NewTokenServiceClient, pb.TokenServiceClient.GetToken, deploy)
		return fmt.Sprint(token.GetToken().GetAgent(), " ", len(token.GetTickets()))
	}, "lead 0"},
	{"force release an opened lock", func(m *team, p *tab) string {
		fence := m.lock("reviewer", "docs/plan.md")
		p.show(fmt.Sprintf("locks/fence:%d", fence))
		p.act(panel, "force-release", "reason", "It is not needed")
		p.confirm()
		p.await(`has(` + panel + `, 'No agent holds it now')`)
		return m.holders()
	}, "builder-2 src/auth/login.go"},
	{"revoke a token", func(m *team, p *tab) string {
		m.token("lead", "review", "login")
		m.token("builder-1", "review", "login")
		p.show("locks")
		p.act(`one('[data-block="token:review/login"]')`, "revoke", "reason", "lead is away")
		p.confirm()
		token := call(m, "", pb.NewTokenServiceClient, pb.TokenServiceClient.GetToken, &pb.GetTokenRequest{Type: "review", Scope: "login"})
		return token.GetToken().GetAgent()
	}, "builder-1"},
}

// holders returns the agents that hold locks, with the paths.
func (m *team) holders() string {
	m.t.Helper()
	var all []string
	for _, l := range m.locks().GetLocks() {
		all = append(all, l.GetAgent()+" "+strings.Join(l.GetPaths(), " "))
	}
	return strings.Join(all, ", ")
}

var workButtons = []button{
	{"retry a task", func(m *team, p *tab) string {
		m.task("retried")
		m.do("builder-1", "retried", true)
		p.show("work/task:retried")
		p.act(panel, "retry")
		p.await(`has(` + panel + `, 'ready')`)
		return m.taskState("retried")
	}, "ready"},
	{"release a task", func(m *team, p *tab) string {
		m.task("released")
		call(m, "builder-1", pb.NewTaskServiceClient, pb.TaskServiceClient.ClaimTask, &pb.ClaimTaskRequest{Id: "released"})
		p.show("work/task:released")
		p.act(panel, "release", "reason", "builder-1 is away")
		p.confirm()
		return m.taskState("released")
	}, "ready"},
	{"cancel a task", func(m *team, p *tab) string {
		m.task("cancelled")
		p.show("work/task:cancelled")
		p.act(panel, "cancel", "reason", "The plan has changed")
		p.confirm()
		return m.taskState("cancelled")
	}, "cancelled"},
	{"cancel a task and its dependents", func(m *team, p *tab) string {
		m.task("first")
		call(m, "lead", pb.NewTaskServiceClient, pb.TaskServiceClient.CreateTasks,
			&pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "second", Title: "After the first", DependsOn: []string{"first"}}}})
		p.show("work/task:first")
		p.act(panel, "cancel")
		p.await(`press(one('dialog[open] [data-field="cascade"]'))`)
		p.confirm()
		return m.taskState("first") + " " + m.taskState("second")
	}, "cancelled cancelled"},
	{"vote", func(m *team, p *tab) string {
		id := m.vote("Which database?")
		p.show("work/vote:" + id)
		p.act(panel, "cast", "as", "builder-2", "option", "postgres")
		p.confirm()
		p.await(`has(` + panel + `, 'builder-2 postgres')`)
		for _, b := range m.getVote(id).GetBallots() {
			if b.GetOption() != "" {
				return b.GetAgent() + " " + b.GetOption()
			}
		}
		return "no ballot"
	}, "builder-2 postgres"},
	{"close a vote", func(m *team, p *tab) string {
		id := m.vote("Which queue?")
		p.show("work/vote:" + id)
		p.act(panel, "close")
		p.confirm()
		return word(m.getVote(id).GetVote().GetState())
	}, "closed"},
	{"decide", func(m *team, p *tab) string {
		id := m.review("Review the login form")
		p.show("work/decision:" + id)
		p.act(panel, "decide", "verdict", "approve", "reason", "It works")
		p.confirm()
		d := m.decision(id)
		return d.GetVerdict() + " " + word(d.GetState())
	}, "approve decided"},
	{"decide what has escalated", func(m *team, p *tab) string {
		decisions := pb.NewDecisionServiceClient
		id := call(m, "builder-1", decisions, pb.DecisionServiceClient.OpenDecision, &pb.OpenDecisionRequest{
			Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Agent{Agent: "reviewer"},
			Title: "Review the search", MaxRounds: 1,
		}).GetDecision().GetId()
		call(m, "reviewer", decisions, pb.DecisionServiceClient.Decide,
			&pb.DecideRequest{Id: id, Round: 1, Verdict: "revise", Reason: "I do not know"})
		p.show("work/decision:" + id)
		p.act(panel, "decide", "verdict", "reject", "reason", "It is too slow")
		p.confirm()
		d := m.decision(id)
		return d.GetVerdict() + " " + word(d.GetState())
	}, "reject decided"},
	{"cancel a decision", func(m *team, p *tab) string {
		id := m.review("Review the logout form")
		p.show("work/decision:" + id)
		p.act(panel, "cancel")
		p.confirm()
		return word(m.decision(id).GetState())
	}, "cancelled"},
	{"acknowledge a blocker", func(m *team, p *tab) string {
		id := m.block("The disk is full")
		p.show("work/blocker:" + id)
		p.act(panel, "acknowledge", "note", "A new one comes")
		p.confirm()
		out := call(m, "", pb.NewBlockerServiceClient, pb.BlockerServiceClient.GetBlocker, &pb.GetBlockerRequest{Id: id})
		return word(out.GetBlocker().GetState())
	}, "acknowledged"},
	{"resolve a blocker", func(m *team, p *tab) string {
		id := m.block("The staging server does not answer")
		p.show("work/blocker:" + id)
		p.act(panel, "resolve", "resolution", "It was restarted")
		p.confirm()
		out := call(m, "", pb.NewBlockerServiceClient, pb.BlockerServiceClient.GetBlocker, &pb.GetBlockerRequest{Id: id})
		return word(out.GetBlocker().GetState()) + ": " + out.GetBlocker().GetResolution()
	}, "resolved: It was restarted"},
	{"cancel a handoff", func(m *team, p *tab) string {
		id := m.handoff("The exporter")
		p.show("work/handoff:" + id)
		p.act(panel, "cancel", "notes", "It is finished")
		p.confirm()
		out := call(m, "", pb.NewHandoffServiceClient, pb.HandoffServiceClient.GetHandoff, &pb.GetHandoffRequest{Id: id})
		return word(out.GetHandoff().GetState()) + ": " + out.GetHandoff().GetNotes()
	}, "cancelled: It is finished"},
	{"check and reject a handoff", func(m *team, p *tab) string {
		id := m.handoff("The importer")
		p.show("work/handoff:" + id)
		p.act(panel, "check")
		p.await(`has(one('.panel [data-action=check]'), 'Uncheck')`)
		p.act(panel, "reject", "notes", "No time")
		p.confirm()
		out := call(m, "", pb.NewHandoffServiceClient, pb.HandoffServiceClient.GetHandoff, &pb.GetHandoffRequest{Id: id})
		return word(out.GetHandoff().GetState()) + ": " + out.GetHandoff().GetNotes()
	}, "rejected: No time"},
}

// task creates a task of the builders.
func (m *team) task(id string) {
	m.t.Helper()
	call(m, "lead", pb.NewTaskServiceClient, pb.TaskServiceClient.CreateTasks,
		&pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: id, Title: "The task " + id, Role: "builder"}}})
}

// taskState returns the state of a task.
func (m *team) taskState(id string) string {
	m.t.Helper()
	out := call(m, "", pb.NewTaskServiceClient, pb.TaskServiceClient.GetTask, &pb.GetTaskRequest{Id: id})
	return word(out.GetTask().GetState())
}

// getVote returns a vote with its ballots.
func (m *team) getVote(id string) *pb.GetVoteResponse {
	m.t.Helper()
	return call(m, "", pb.NewVoteServiceClient, pb.VoteServiceClient.GetVote, &pb.GetVoteRequest{Id: id})
}

// decision returns a decision.
func (m *team) decision(id string) *pb.Decision {
	m.t.Helper()
	return call(m, "", pb.NewDecisionServiceClient, pb.DecisionServiceClient.GetDecision,
		&pb.GetDecisionRequest{Id: id}).GetDecision()
}
