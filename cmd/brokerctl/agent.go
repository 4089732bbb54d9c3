package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func newAgentCommand(c *cli) *cobra.Command {
	return group("agent", "Register, find, run and direct agents", "", "  brokerctl agent list --role builder",
		append([]*cobra.Command{
			newAgentRegisterCommand(c), newAgentRunCommand(c), newAgentGetCommand(c), newAgentListCommand(c), newAgentHeartbeatCommand(c), newAgentCheckpointCommand(c),
			newAgentDeregisterCommand(c), newAgentShutdownCommand(c),
		}, newDirectiveCommands(c)...)...)
}

// shellLease is how long an agent that only has a shell is believed alive: it forgets nothing by thinking.
const shellLease = 24 * time.Hour

// registerOptions are the options of agent register.
type registerOptions struct {
	displayName  string
	description  string
	role         string
	capabilities []string
	instance     string
	worktree     string
	labels       []string
	lease        time.Duration
	replace      bool
	requestID    string
}

// AddFlags adds the options; lease is what it is unless it is given.
func (o *registerOptions) AddFlags(f *pflag.FlagSet, lease time.Duration) {
	f.StringVar(&o.displayName, "display-name", "", "name for people")
	f.StringVar(&o.description, "description", "", "what the agent is for")
	f.StringVar(&o.role, "role", "", "role, such as builder (default: the one in .brokerd.yaml)")
	f.StringArrayVar(&o.capabilities, "capability", nil, "a capability; repeatable")
	f.StringVar(&o.instance, "instance", "", "instance of the role")
	f.StringVar(&o.worktree, "worktree", "", "the agent's working folder")
	f.StringArrayVar(&o.labels, "label", nil, "a label; repeatable")
	durationVar(f, &o.lease, "lease", lease, "how long the agent may be silent before the broker considers it failed, 1s to 7d")
	f.BoolVar(&o.replace, "replace", false, "forget what an earlier registration says, such as its capabilities and labels")
}

func newAgentRegisterCommand(c *cli) *cobra.Command {
	o := &registerOptions{}
	cmd := &cobra.Command{
		Use:   "register NAME",
		Short: "Register an agent, or register it again",
		Long: `Register an agent. If it is registered, what the flags do not give stays, and so do
its mailbox, subscriptions and claims. The incarnation counts the agent's
registrations and its failures: the broker refuses calls that name an old one.`,
		Example:           "  brokerctl agent register builder-1 --role builder --capability go",
		Args:              between(0, "the agent's name"),
		ValidArgsFunction: c.completeArgs(false, agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			labels, err := parseLabels(o.labels)
			if err != nil {
				return err
			}
			broker, err := c.connectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			if broker.Identity().Agent == "" {
				return usagef("give the agent a name: %s agent register NAME", c.again())
			}
			answer, err := broker.Agents().RegisterAgent(cmd.Context(), o.requestOf(c, broker.Identity().Agent, labels))
			if err != nil {
				return err
			}
			a := answer.GetAgent()
			return c.show(cmd, a, func(w io.Writer) {
				prompt.Say(w, "registered %s%s, incarnation %d, lease %s", a.GetName(),
					prompt.Either(a.GetRole() != "", " as "+a.GetRole(), ""), a.GetIncarnation(), shortOf(a.GetLease()))
				prompt.Losses(w, answer)
			})
		},
	}
	o.AddFlags(cmd.Flags(), shellLease)
	addRequestID(cmd, &o.requestID)
	return cmd
}

// requestOf is request for an agent that the configFile may describe.
func (o *registerOptions) requestOf(c *cli, agent string, labels map[string]string) *pb.RegisterAgentRequest {
	request := o.request(labels)
	if agent == c.found.agent.value {
		agent = c.found.baseOf()
	}
	asDescribed(request, c.found.content.agents[agent])
	return request
}

// request is the registration that the options describe.
func (o *registerOptions) request(labels map[string]string) *pb.RegisterAgentRequest {
	return &pb.RegisterAgentRequest{
		RequestId: o.requestID, DisplayName: o.displayName, Description: o.description, Role: o.role,
		Capabilities: o.capabilities, Instance: o.instance, Worktree: o.worktree, Labels: labels, Lease: durationpb.New(o.lease),
		Replace: o.replace,
	}
}

func newAgentGetCommand(c *cli) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "get [NAME]",
		Short: "Show one agent; without NAME, the calling one",
		Example: `  brokerctl agent get builder-1
  brokerctl --agent builder-1 agent get --full -o json`,
		Args:              between(0, "the agent's name"),
		ValidArgsFunction: c.completeArgs(false, agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.GetAgentRequest{}
			if full {
				request.View = pb.AgentView_AGENT_VIEW_FULL
			}
			if len(args) > 0 {
				request.Name = args[0]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 0 && broker.Identity().Agent == "" {
				return usagef("the agent's name is missing: %s agent get NAME", c.again())
			}
			answer, err := broker.Agents().GetAgent(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { c.printAgent(w, answer) })
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "also claims, locks, tokens, queue places, open questions and checkpoints")
	return cmd
}

// printAgent shows all that is known of an agent.
func (c *cli) printAgent(w io.Writer, answer *pb.GetAgentResponse) {
	a := answer.GetAgent()
	l := c.newLabels(w)
	line := l.line
	line("agent", a.GetName())
	line("display name", a.GetDisplayName())
	line("description", a.GetDescription())
	line("role", a.GetRole())
	line("capabilities", strings.Join(a.GetCapabilities(), ", "))
	l.state("state", agentState(a))
	line("reason", a.GetStatusReason())
	line("failed", c.when(a.GetFailedAt()))
	line("stopped", c.when(a.GetStoppedAt()))
	line("completed", c.when(a.GetCompletedAt()))
	line("session", c.presence(a.GetHarness()))
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
	line("seen", c.when(a.GetLastSeen()))
	if a.GetAsleepSince() != nil && a.GetStoppedAt() == nil {
		line("asleep", c.since(a.GetAsleepSince()))
	}
	line("registered", c.when(a.GetRegisteredAt()))
	line("incarnation", strconv.FormatInt(a.GetIncarnation(), 10))
	line("lease", shortOf(a.GetLease()))
	line("instance", a.GetInstance())
	line("worktree", a.GetWorktree())
	line("labels", prompt.Labels(a.GetLabels()))
	line("counted", counted(a.GetCounters()))
	line("last tool", a.GetLastTool())
	line("last file", a.GetLastFile())
	owner := *c // the commands act as the agent that is shown
	if c.found == nil || c.found.agent.value != a.GetName() {
		owner.global.agent = a.GetName()
	}
	for _, held := range owner.holdingLines(answer.GetHoldings()) {
		label := "holds"
		if opened, ok := strings.CutPrefix(held, "has opened "); ok {
			label, held = "opened", opened
		}
		line(label, strings.TrimPrefix(held, "holds "))
	}
	for _, k := range answer.GetCheckpoints() {
		line("checkpoint", c.checkpointLine(k))
	}
	l.flush()
}

// agentState returns the state of an agent, and what else keeps work from it.
func agentState(a *pb.Agent) string {
	state := a.GetState()
	asleep := a.GetAsleepSince() != nil && a.GetStoppedAt() == nil
	return state + prompt.Either(a.GetHalted(), ", halted", "") + prompt.Either(a.GetDegraded() && state != "degraded", ", degraded", "") +
		prompt.Either(asleep, ", asleep", "")
}

// aboutAgent is the display name and the description of an agent.
func aboutAgent(a *pb.Agent) string {
	name, text := a.GetDisplayName(), prompt.OneLine(a.GetDescription())
	return name + prompt.Either(name != "" && text != "", ": ", "") + text
}

// presence says what the session of an agent's coding agent does, and since when; "" if none has reported.
func (c *cli) presence(h *pb.Harness) string {
	what := map[pb.HarnessState]string{
		pb.HarnessState_HARNESS_STATE_BUSY: "busy ", pb.HarnessState_HARNESS_STATE_IDLE: "idle ",
		pb.HarnessState_HARNESS_STATE_ENDED: "no session ",
	}[h.GetState()]
	if what == "" {
		return ""
	}
	text := what + c.since(h.GetSince())
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
	limitVar(f, &o.limit, 0)
}

func newAgentListCommand(c *cli) *cobra.Command {
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
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statuses, cobra.ShellCompDirectiveNoFileComp)))
	healths := jsonform.EnumNames(pb.Health(0).Descriptor())
	must(cmd.RegisterFlagCompletionFunc("health", cobra.FixedCompletions(healths, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *agentListOptions) run(c *cli, cmd *cobra.Command) error {
	status, err := parseEnum("status", pb.AgentStatus(0).Descriptor(), o.status)
	if err != nil {
		return err
	}
	health, err := parseEnum("health", pb.Health(0).Descriptor(), o.health)
	if err != nil {
		return err
	}
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	var roles []*pb.RoleSummary
	limit := o.limit
	if o.roles {
		limit = 1 // the summary counts over all pages
	}
	agents, err := pages(limit, func(size int32, token string) ([]*pb.Agent, string, error) {
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
		return list(c, cmd, roles, roleView())
	}
	return list(c, cmd, agents, c.agentView())
}

// roleView lists roles.
func roleView() view[*pb.RoleSummary] {
	return view[*pb.RoleSummary]{
		columns: []table.Column{{Name: "ROLE", Min: 12}, {Name: "AGENTS"}, {Name: "ACTIVE", Rank: 1}, {Name: "FAILED"}},
		row: func(r *pb.RoleSummary) []string {
			return []string{prompt.Either(r.GetRole() != "", r.GetRole(), "(none)"), strconv.Itoa(int(r.GetAgents())), strconv.Itoa(int(r.GetActive())), strconv.Itoa(int(r.GetFailed()))}
		},
		none: "no agents",
	}
}

// agentView lists agents.
func (c *cli) agentView() view[*pb.Agent] {
	return view[*pb.Agent]{
		columns: []table.Column{
			{Name: "AGENT", Min: 16}, {Name: "ROLE", Min: 8}, {Name: "STATE", State: true}, {Name: "SEEN"},
			{Name: "CAPABILITIES", Rank: 2, Min: 16}, {Name: "ACTIVITY", Rank: 1, Min: 24}, {Name: "DESCRIPTION", Rank: 3, Min: 24},
		},
		row: func(a *pb.Agent) []string {
			activity := cmp.Or(a.GetActivity(), c.presence(a.GetHarness()))
			if a.GetProgress() > 0 {
				activity = strings.TrimSpace(activity + " " + prompt.Percent(a.GetProgress()))
			}
			return []string{
				a.GetName(), a.GetRole(), agentState(a), c.when(a.GetLastSeen()),
				strings.Join(a.GetCapabilities(), ","), activity, aboutAgent(a),
			}
		},
		none: "no agents",
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

func newAgentHeartbeatCommand(c *cli) *cobra.Command {
	o := &heartbeatOptions{}
	cmd := &cobra.Command{
		Use:   "heartbeat [NAME]",
		Short: "Renew an agent's lease and report what it does",
		Long: `Renew an agent's lease and report what it does; what is not given stays the same.
The answer has the numbers of unread and claimable messages, the waiting
directives and the notices.`,
		Example:           "  brokerctl --agent builder-1 agent heartbeat --status active --progress 0.4",
		Args:              between(0, "the agent's name"),
		ValidArgsFunction: c.completeArgs(false, agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := parseEnum("status", pb.AgentStatus(0).Descriptor(), o.status)
			if err != nil {
				return err
			}
			attention, err := parseEnum("attention", pb.Attention(0).Descriptor(), o.attention)
			if err != nil {
				return err
			}
			counters, err := parseCounters(o.counters)
			if err != nil {
				return err
			}
			broker, err := c.connectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			answer, err := broker.Agents().Heartbeat(cmd.Context(), &pb.HeartbeatRequest{
				Status: pb.AgentStatus(status), StatusReason: ifSet(cmd, "reason", o.reason), Activity: ifSet(cmd, "activity", o.activity),
				TaskId: ifSet(cmd, "task", o.task), Progress: ifSet(cmd, "progress", o.progress), Counters: counters,
				LastTool: ifSet(cmd, "last-tool", o.lastTool), LastFile: ifSet(cmd, "last-file", o.lastFile),
				Attention: pb.Attention(attention), Notices: attention == 0, // an operator who sets it leaves the agent its notices
			})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s unread, %s to claim; lease %s", prompt.UpTo1000(answer.GetUnread()), prompt.UpTo1000(answer.GetClaimable()), shortOf(answer.GetLease()))
				if d := answer.GetDirectives(); len(d) > 0 {
					prompt.Say(w, "directives: %s; see %s", prompt.Names(d, len(d)), c.command("next"))
				}
				prompt.Losses(w, answer)
				var notices []string
				for _, n := range answer.GetNotices() {
					notices = append(notices, n.GetSubject())
				}
				printNotices(w, notices)
			})
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func newAgentDeregisterCommand(c *cli) *cobra.Command {
	var reason, requestID string
	cmd := &cobra.Command{
		Use:   "deregister [NAME]",
		Short: "End an agent's registration",
		Long: `End an agent's registration. Its claims return without a counted attempt, its
subscriptions end, and the unfinished messages in its own mailbox become dead
letters.`,
		Example:           `  brokerctl agent deregister builder-1 --reason "done for today"`,
		Args:              between(0, "the agent's name"),
		ValidArgsFunction: c.completeArgs(false, agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connectAs(cmd.Context(), args)
			if err != nil {
				return err
			}
			answer, err := broker.Agents().DeregisterAgent(cmd.Context(), &pb.DeregisterAgentRequest{RequestId: requestID, Reason: reason})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { prompt.Say(w, "deregistered %s", broker.Identity().Agent) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the event log")
	addRequestID(cmd, &requestID)
	return cmd
}
