package people

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewAgentCommand returns the commands of brokerctl agent.
func NewAgentCommand(c *command.Caller) *cobra.Command {
	register := agentRegister.Command(c)
	register.Args = command.Between(0, "the agent's name") // --agent may name it
	return command.Group("agent", "Register, find, run and direct agents", "", "  brokerctl agent list --role builder",
		register, agentGet.Command(c), agentList.Command(c), agentHeartbeat.Command(c),
		agentCheckpoint.Command(c), agentDeregister.Command(c))
}

var agentRegister = command.Spec[*pb.RegisterAgentRequest, *pb.RegisterAgentResponse]{
	Page: command.Page{
		Use:   "register NAME",
		Short: "Register an agent, or register it again",
		Long: `Register an agent. If it is registered, what the flags do not give stays, and so do
its mailbox, subscriptions and claims. The incarnation counts the agent's
registrations and its failures: the broker refuses calls that name an old one.`,
		Example: "  brokerctl agent register builder-1 --role builder --capability go",
	},
	Connect: asNamed,
	Call: func(
		g *command.Given, broker *client.Client, q *pb.RegisterAgentRequest,
	) (*pb.RegisterAgentResponse, error) {
		if broker.Identity().Agent == "" {
			return nil, problem.Usagef("give the agent a name: %s agent register NAME", g.Global.Again())
		}
		registration.AsDescribed(g.Caller, q, broker.Identity().Agent)
		return broker.Agents().RegisterAgent(g.Cmd.Context(), q)
	},
	Args:    []command.Arg{calling},
	Options: append(registration.Options(registration.ShellLease), command.RequestID),
	Shown:   "agent",
	Text: func(_ *command.Given, w io.Writer, _ *pb.RegisterAgentRequest, answer *pb.RegisterAgentResponse) {
		a := answer.GetAgent()
		prompt.Say(w, "registered %s%s, incarnation %d, lease %s", a.GetName(),
			prompt.Either(a.GetRole() != "", " as "+a.GetRole(), ""), a.GetIncarnation(), output.ShortOf(a.GetLease()))
		prompt.Losses(w, answer)
	},
}

var agentGet = command.Spec[*pb.GetAgentRequest, *pb.GetAgentResponse]{
	Page: command.Page{
		Use:   "get [NAME]",
		Short: "Show one agent; without NAME, the calling one",
		Example: `  brokerctl agent get builder-1
  brokerctl --agent builder-1 agent get --full -o json`,
	},
	Connect: func(g *command.Given) (*client.Client, error) {
		broker, err := g.Connect(g.Cmd.Context())
		if err == nil && len(g.Args) == 0 && broker.Identity().Agent == "" {
			err = problem.Usagef("the agent's name is missing: %s agent get NAME", g.Global.Again())
		}
		return broker, err
	},
	Args: []command.Arg{{Field: "name", Name: "the agent's name", Kind: words.Agent}},
	Options: []command.Option{{
		Field: "view", Name: "full", Means: int32(pb.AgentView_AGENT_VIEW_FULL),
		Usage: "also claims, locks, tokens, queue places, open questions and checkpoints",
	}},
	Text: func(g *command.Given, w io.Writer, _ *pb.GetAgentRequest, a *pb.GetAgentResponse) {
		PrintAgent(g.Caller, w, a)
	},
}

// PrintAgent shows all that is known of an agent.
func PrintAgent(c *command.Caller, w io.Writer, answer *pb.GetAgentResponse) {
	a := answer.GetAgent()
	l := c.NewLabels(w)
	line := l.Line
	line("agent", a.GetName())
	line("display name", a.GetDisplayName())
	line("description", a.GetDescription())
	line("role", a.GetRole())
	line("capabilities", strings.Join(a.GetCapabilities(), ", "))
	l.State("state", prompt.AgentState(a))
	line("reason", a.GetStatusReason())
	line("failed", c.When(a.GetFailedAt()))
	line("stopped", c.When(a.GetStoppedAt()))
	line("completed", c.When(a.GetCompletedAt()))
	line("session", presence(c, a.GetHarness()))
	if a.GetAttention() != pb.Attention_ATTENTION_OPEN {
		line("attention", prompt.Enum(a.GetAttention()))
	}
	line("activity", a.GetActivity())
	line("task", a.GetTaskId())
	if a.GetProgress() > 0 {
		line("progress", prompt.Percent(a.GetProgress()))
	}
	line("unread", prompt.UpTo1000(answer.GetUnread()))
	line("claimable", prompt.UpTo1000(answer.GetClaimable()))
	n := a.GetMessages()
	line("messages", fmt.Sprintf("%d sent, %d received, %d processed", n.GetSent(), n.GetReceived(), n.GetProcessed()))
	line("seen", c.When(a.GetLastSeen()))
	if a.GetAsleepSince() != nil && a.GetStoppedAt() == nil {
		line("asleep", c.Since(a.GetAsleepSince()))
	}
	line("registered", c.When(a.GetRegisteredAt()))
	line("incarnation", strconv.FormatInt(a.GetIncarnation(), 10))
	line("lease", output.ShortOf(a.GetLease()))
	line("instance", a.GetInstance())
	line("worktree", a.GetWorktree())
	line("labels", prompt.Labels(a.GetLabels()))
	line("counted", counted(a.GetCounters()))
	line("last tool", a.GetLastTool())
	line("last file", a.GetLastFile())
	owner := *c // the commands act as the agent that is shown
	if c.Found == nil || c.Found.Agent.Value != a.GetName() {
		owner.Global.Agent = a.GetName()
	}
	for _, held := range holdingLines(&owner, answer.GetHoldings()) {
		label := "holds"
		if opened, ok := strings.CutPrefix(held, "has opened "); ok {
			label, held = "opened", opened
		}
		line(label, strings.TrimPrefix(held, "holds "))
	}
	for _, k := range answer.GetCheckpoints() {
		line("checkpoint", checkpointLine(c, k))
	}
	l.Flush()
}

// aboutAgent is the display name and the description of an agent.
func aboutAgent(a *pb.Agent) string {
	name, text := a.GetDisplayName(), prompt.OneLine(a.GetDescription())
	return name + prompt.Either(name != "" && text != "", ": ", "") + text
}

// presence says what the session of an agent's coding agent does, and since when; "" if none has reported.
func presence(c *command.Caller, h *pb.Harness) string {
	what := map[pb.HarnessState]string{
		pb.HarnessState_HARNESS_STATE_BUSY: "busy ", pb.HarnessState_HARNESS_STATE_IDLE: "idle ",
		pb.HarnessState_HARNESS_STATE_ENDED: "no session ",
	}[h.GetState()]
	if what == "" {
		return ""
	}
	text := what + c.Since(h.GetSince())
	switch {
	case h.GetTool() != "":
		text += " (" + h.GetTool() + ")"
	case h.GetState() != pb.HarnessState_HARNESS_STATE_IDLE:
	case h.GetListening() != 0:
		text += ", listening (" + prompt.Enum(h.GetListening()) + ")"
	default:
		text += ", mail waits for its next turn"
	}
	return text + prompt.Either(h.GetProgram() != "", ", "+h.GetProgram(), "")
}

var agentList = command.Listing[*pb.ListAgentsRequest, *pb.ListAgentsResponse, *pb.Agent]{
	Page: command.Page{
		Use:     "list",
		Short:   "Find agents by role, capability, status and name",
		Example: "  brokerctl agent list --role builder --status idle",
	},
	Items: (*pb.ListAgentsResponse).GetAgents,
	Options: []command.Option{
		{Field: "role", Kind: words.Role, Usage: "only this role"},
		{Field: "capabilities", Name: "capability", Kind: command.Name,
			Usage: "only agents with this capability; repeated: with all of them"},
		{Field: "status", Usage: "only this status: {}"},
		{Field: "health", Usage: "only this health: {}"},
		{Field: "pattern", Kind: command.Kind{Name: "PATTERN"}, Usage: "only names that match, with * and ?"},
		{Name: "roles", Type: "bool", Usage: "count agents per role instead"},
	},
	Instead: func(g *command.Given, broker *client.Client, q *pb.ListAgentsRequest) (bool, error) {
		if !g.On("roles") {
			return false, nil
		}
		q.PageSize = 1 // the summary counts over all pages
		a, err := broker.Agents().ListAgents(g.Cmd.Context(), q)
		if err != nil {
			return true, err
		}
		return true, output.List(&g.Output, g.Cmd, a.GetRoles(), RoleView())
	},
	View: func(g *command.Given) output.View[*pb.Agent] { return AgentView(g.Caller) },
}

// RoleView lists roles.
func RoleView() output.View[*pb.RoleSummary] {
	return output.View[*pb.RoleSummary]{
		Columns: []table.Column{{Name: "ROLE", Min: 12}, {Name: "AGENTS"}, {Name: "ACTIVE", Rank: 1}, {Name: "FAILED"}},
		Row: func(r *pb.RoleSummary) []string {
			return []string{
				prompt.Either(r.GetRole() != "", r.GetRole(), "(none)"), strconv.Itoa(int(r.GetAgents())),
				strconv.Itoa(int(r.GetActive())), strconv.Itoa(int(r.GetFailed())),
			}
		},
		None: "no agents",
	}
}

// AgentView lists agents.
func AgentView(c *command.Caller) output.View[*pb.Agent] {
	return output.View[*pb.Agent]{
		Columns: []table.Column{
			{Name: "AGENT", Min: 16}, {Name: "ROLE", Min: 8}, {Name: "STATE", State: true}, {Name: "SEEN"},
			{Name: "CAPABILITIES", Rank: 2, Min: 16}, {Name: "ACTIVITY", Rank: 1, Min: 24},
			{Name: "DESCRIPTION", Rank: 3, Min: 24},
		},
		Row: func(a *pb.Agent) []string {
			activity := cmp.Or(a.GetActivity(), presence(c, a.GetHarness()))
			if a.GetProgress() > 0 {
				activity = strings.TrimSpace(activity + " " + prompt.Percent(a.GetProgress()))
			}
			return []string{
				a.GetName(), a.GetRole(), prompt.AgentState(a), c.When(a.GetLastSeen()),
				strings.Join(a.GetCapabilities(), ","), activity, aboutAgent(a),
			}
		},
		None: "no agents",
	}
}

// calling is the argument of the commands that act as the agent that it names.
var calling = command.Arg{Name: "the agent's name", Kind: words.Agent, Caller: true}

// asNamed connects as the agent of the argument calling.
func asNamed(g *command.Given) (*client.Client, error) { return g.ConnectAs(g.Cmd.Context(), g.Args) }

var agentHeartbeat = command.Spec[*pb.HeartbeatRequest, *pb.HeartbeatResponse]{
	Page: command.Page{
		Use:   "heartbeat [NAME]",
		Short: "Renew an agent's lease and report what it does",
		Long: `Renew an agent's lease and report what it does; what is not given stays the same.
The answer has the numbers of unread and claimable messages, the waiting
directives and the notices.`,
		Example: "  brokerctl --agent builder-1 agent heartbeat --status active --progress 0.4",
	},
	Connect: asNamed,
	Args:    []command.Arg{calling},
	Options: []command.Option{
		{Field: "status", Usage: "{}"},
		{Field: "status_reason", Name: "reason",
			Usage: "reason for the status; a new --status without it clears the old one"},
		{Field: "activity", Usage: "what the agent does, in one line"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "the task that it works on"},
		{Field: "progress", Usage: "progress, 0 to 1"},
		{Field: "last_tool", Kind: command.Name, Usage: "the tool that it used last"},
		{Field: "last_file", Kind: command.Kind{Name: "PATH", Complete: cobra.ShellCompDirectiveDefault},
			Usage: "the file that it changed last"},
		{Field: "attention", Kind: command.Kind{Name: "TEXT"}, Usage: "mail that hooks pass to its model: {}"},
		{Field: "counters", Name: "count", Kind: command.Kind{Name: "COUNTER=N", Read: readCounters},
			Usage: "totals since registration: turns, model_tokens, files, tool_calls, errors; repeatable"},
	},
	Prepare: func(_ *command.Given, q *pb.HeartbeatRequest) error {
		q.Notices = q.GetAttention() == 0 // an operator who sets it leaves the agent its notices
		return nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.HeartbeatRequest, a *pb.HeartbeatResponse) {
		prompt.Say(w, "%s unread, %s to claim; lease %s",
			prompt.UpTo1000(a.GetUnread()), prompt.UpTo1000(a.GetClaimable()), output.ShortOf(a.GetLease()))
		if d := a.GetDirectives(); len(d) > 0 {
			prompt.Say(w, "directives: %s; see %s", prompt.Names(d, len(d)), g.Command("next"))
		}
		prompt.Losses(w, a)
		prompt.Notices(w, each.Of(a.GetNotices(), (*pb.Notice).GetSubject))
	},
}

var agentDeregister = command.Spec[*pb.DeregisterAgentRequest, *pb.DeregisterAgentResponse]{
	Page: command.Page{
		Use:   "deregister [NAME]",
		Short: "End an agent's registration",
		Long: `End an agent's registration. Its claims return without a counted attempt, its
subscriptions end, and the unfinished messages in its own mailbox become dead
letters.`,
		Example: `  brokerctl agent deregister builder-1 --reason "done for today"`,
	},
	Connect: asNamed,
	Args:    []command.Arg{calling},
	Options: []command.Option{{Field: "reason", Usage: "why, for the event log"}, command.RequestID},
	Text: func(g *command.Given, w io.Writer, _ *pb.DeregisterAgentRequest, _ *pb.DeregisterAgentResponse) {
		prompt.Say(w, "deregistered %s", g.Found.Agent.Value)
	},
}
