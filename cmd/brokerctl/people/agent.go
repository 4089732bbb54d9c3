package people

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// NewAgentCommand returns the commands of brokerctl agent.
func NewAgentCommand(c *command.Caller) *cobra.Command {
	return command.Group("agent", "Register, find, run and direct agents", "", "  brokerctl agent list --role builder",
		newAgentRegisterCommand(c), newAgentGetCommand(c), newAgentListCommand(c), newAgentHeartbeatCommand(c),
		newAgentCheckpointCommand(c), newAgentDeregisterCommand(c))
}

func newAgentRegisterCommand(c *command.Caller) *cobra.Command {
	o := &registration.Options{}
	cmd := &cobra.Command{
		Use:   "register NAME",
		Short: "Register an agent, or register it again",
		Long: `Register an agent. If it is registered, what the flags do not give stays, and so do
its mailbox, subscriptions and claims. The incarnation counts the agent's
registrations and its failures: the broker refuses calls that name an old one.`,
		Example:           "  brokerctl agent register builder-1 --role builder --capability go",
		Args:              command.Between(0, "the agent's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.AgentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			labels, err := command.ParseLabels(o.Labels)
			if err != nil {
				return err
			}
			broker, err := c.ConnectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			if broker.Identity().Agent == "" {
				return problem.Usagef("give the agent a name: %s agent register NAME", c.Global.Again())
			}
			answer, err := broker.Agents().RegisterAgent(cmd.Context(), o.RequestOf(c, broker.Identity().Agent, labels))
			if err != nil {
				return err
			}
			a := answer.GetAgent()
			return c.Show(cmd, a, func(w io.Writer) {
				prompt.Say(w, "registered %s%s, incarnation %d, lease %s", a.GetName(),
					prompt.Either(a.GetRole() != "", " as "+a.GetRole(), ""), a.GetIncarnation(), output.ShortOf(a.GetLease()))
				prompt.Losses(w, answer)
			})
		},
	}
	o.AddFlags(cmd.Flags(), registration.ShellLease)
	command.AddRequestID(cmd, &o.RequestID)
	return cmd
}

func newAgentGetCommand(c *command.Caller) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "get [NAME]",
		Short: "Show one agent; without NAME, the calling one",
		Example: `  brokerctl agent get builder-1
  brokerctl --agent builder-1 agent get --full -o json`,
		Args:              command.Between(0, "the agent's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.AgentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.GetAgentRequest{}
			if full {
				request.View = pb.AgentView_AGENT_VIEW_FULL
			}
			if len(args) > 0 {
				request.Name = args[0]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 0 && broker.Identity().Agent == "" {
				return problem.Usagef("the agent's name is missing: %s agent get NAME", c.Global.Again())
			}
			answer, err := broker.Agents().GetAgent(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { PrintAgent(c, w, answer) })
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "also claims, locks, tokens, queue places, open questions and checkpoints")
	return cmd
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

// agentListOptions are the options of agent list.
type agentListOptions struct {
	role         string
	capabilities []string
	status       string
	health       string
	pattern      string
	roles        bool
	limit        int
}

// AddFlags adds the options.
func (o *agentListOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.role, "role", "", "only this role")
	f.StringArrayVar(&o.capabilities, "capability", nil, "only agents with this capability; repeated: with all of them")
	f.StringVar(&o.status, "status", "", "only this status: "+strings.Join(jsonform.EnumNames(pb.AgentStatus(0).Descriptor()), ", "))
	f.StringVar(&o.health, "health", "", "only this health: "+strings.Join(jsonform.EnumNames(pb.Health(0).Descriptor()), ", "))
	f.StringVar(&o.pattern, "pattern", "", "only names that match, with * and ?")
	f.BoolVar(&o.roles, "roles", false, "count agents per role instead")
	command.LimitVar(f, &o.limit, 0)
}

func newAgentListCommand(c *command.Caller) *cobra.Command {
	o := &agentListOptions{}
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "Find agents by role, capability, status and name",
		Example:           "  brokerctl agent list --role builder --status idle",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(c, cmd) },
	}
	o.AddFlags(cmd.Flags())
	statuses := jsonform.EnumNames(pb.AgentStatus(0).Descriptor())
	command.Must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statuses, cobra.ShellCompDirectiveNoFileComp)))
	healths := jsonform.EnumNames(pb.Health(0).Descriptor())
	command.Must(cmd.RegisterFlagCompletionFunc("health", cobra.FixedCompletions(healths, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *agentListOptions) run(c *command.Caller, cmd *cobra.Command) error {
	status, err := output.ParseEnum("status", pb.AgentStatus(0).Descriptor(), o.status)
	if err != nil {
		return err
	}
	health, err := output.ParseEnum("health", pb.Health(0).Descriptor(), o.health)
	if err != nil {
		return err
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	var roles []*pb.RoleSummary
	limit := o.limit
	if o.roles {
		limit = 1 // the summary counts over all pages
	}
	agents, err := command.Pages(limit, func(size int32, token string) ([]*pb.Agent, string, error) {
		page, err := broker.Agents().ListAgents(cmd.Context(), &pb.ListAgentsRequest{
			Role: o.role, Capabilities: o.capabilities, Status: pb.AgentStatus(status), Health: pb.Health(health), Pattern: o.pattern, PageSize: size, PageToken: token,
		})
		roles = page.GetRoles()
		return page.GetAgents(), page.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	if o.roles {
		return output.List(&c.Output, cmd, roles, RoleView())
	}
	return output.List(&c.Output, cmd, agents, AgentView(c))
}

// RoleView lists roles.
func RoleView() output.View[*pb.RoleSummary] {
	return output.View[*pb.RoleSummary]{
		Columns: []table.Column{{Name: "ROLE", Min: 12}, {Name: "AGENTS"}, {Name: "ACTIVE", Rank: 1}, {Name: "FAILED"}},
		Row: func(r *pb.RoleSummary) []string {
			return []string{prompt.Either(r.GetRole() != "", r.GetRole(), "(none)"), strconv.Itoa(int(r.GetAgents())), strconv.Itoa(int(r.GetActive())), strconv.Itoa(int(r.GetFailed()))}
		},
		None: "no agents",
	}
}

// AgentView lists agents.
func AgentView(c *command.Caller) output.View[*pb.Agent] {
	return output.View[*pb.Agent]{
		Columns: []table.Column{
			{Name: "AGENT", Min: 16}, {Name: "ROLE", Min: 8}, {Name: "STATE", State: true}, {Name: "SEEN"},
			{Name: "CAPABILITIES", Rank: 2, Min: 16}, {Name: "ACTIVITY", Rank: 1, Min: 24}, {Name: "DESCRIPTION", Rank: 3, Min: 24},
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

// heartbeatOptions are the options of agent heartbeat.
type heartbeatOptions struct {
	status    string
	reason    string
	activity  string
	task      string
	progress  float64
	lastTool  string
	lastFile  string
	counters  map[string]int64
	attention string
}

// AddFlags adds the options.
func (o *heartbeatOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.status, "status", "", strings.Join(jsonform.EnumNames(pb.AgentStatus(0).Descriptor()), ", "))
	f.StringVar(&o.reason, "reason", "", "reason for the status; a new --status without it clears the old one")
	f.StringVar(&o.activity, "activity", "", "what the agent does, in one line")
	f.StringVar(&o.task, "task", "", "the task that it works on")
	f.Float64Var(&o.progress, "progress", 0, "progress, 0 to 1")
	f.StringVar(&o.lastTool, "last-tool", "", "the tool that it used last")
	f.StringVar(&o.lastFile, "last-file", "", "the file that it changed last")
	f.StringVar(&o.attention, "attention", "", "mail that hooks pass to its model: "+strings.Join(jsonform.EnumNames(pb.Attention(0).Descriptor()), ", "))
	f.StringToInt64Var(&o.counters, "count", nil, "totals since registration: turns, model_tokens, files, tool_calls, errors; repeatable")
}

func newAgentHeartbeatCommand(c *command.Caller) *cobra.Command {
	o := &heartbeatOptions{}
	cmd := &cobra.Command{
		Use:   "heartbeat [NAME]",
		Short: "Renew an agent's lease and report what it does",
		Long: `Renew an agent's lease and report what it does; what is not given stays the same.
The answer has the numbers of unread and claimable messages, the waiting
directives and the notices.`,
		Example:           "  brokerctl --agent builder-1 agent heartbeat --status active --progress 0.4",
		Args:              command.Between(0, "the agent's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.AgentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := output.ParseEnum("status", pb.AgentStatus(0).Descriptor(), o.status)
			if err != nil {
				return err
			}
			attention, err := output.ParseEnum("attention", pb.Attention(0).Descriptor(), o.attention)
			if err != nil {
				return err
			}
			counters, err := parseCounters(o.counters)
			if err != nil {
				return err
			}
			broker, err := c.ConnectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			answer, err := broker.Agents().Heartbeat(cmd.Context(), &pb.HeartbeatRequest{
				Status: pb.AgentStatus(status), StatusReason: command.IfSet(cmd, "reason", o.reason), Activity: command.IfSet(cmd, "activity", o.activity),
				TaskId: command.IfSet(cmd, "task", o.task), Progress: command.IfSet(cmd, "progress", o.progress), Counters: counters,
				LastTool: command.IfSet(cmd, "last-tool", o.lastTool), LastFile: command.IfSet(cmd, "last-file", o.lastFile),
				Attention: pb.Attention(attention), Notices: attention == 0, // an operator who sets it leaves the agent its notices
			})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s unread, %s to claim; lease %s", prompt.UpTo1000(answer.GetUnread()), prompt.UpTo1000(answer.GetClaimable()), output.ShortOf(answer.GetLease()))
				if d := answer.GetDirectives(); len(d) > 0 {
					prompt.Say(w, "directives: %s; see %s", prompt.Names(d, len(d)), c.Command("next"))
				}
				prompt.Losses(w, answer)
				var notices []string
				for _, n := range answer.GetNotices() {
					notices = append(notices, n.GetSubject())
				}
				prompt.Notices(w, notices)
			})
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func newAgentDeregisterCommand(c *command.Caller) *cobra.Command {
	var reason, requestID string
	cmd := &cobra.Command{
		Use:   "deregister [NAME]",
		Short: "End an agent's registration",
		Long: `End an agent's registration. Its claims return without a counted attempt, its
subscriptions end, and the unfinished messages in its own mailbox become dead
letters.`,
		Example:           `  brokerctl agent deregister builder-1 --reason "done for today"`,
		Args:              command.Between(0, "the agent's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.AgentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.ConnectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			answer, err := broker.Agents().DeregisterAgent(cmd.Context(), &pb.DeregisterAgentRequest{RequestId: requestID, Reason: reason})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { prompt.Say(w, "deregistered %s", broker.Identity().Agent) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the event log")
	command.AddRequestID(cmd, &requestID)
	return cmd
}
