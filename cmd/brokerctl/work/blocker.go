package work

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const blockerLong = `A blocker is an obstacle that stops an agent. The broker notifies its recipients
and, until an agent acknowledges it, one role of escalate_to after the other.`

// NewBlockerCommand returns the commands of brokerctl blocker.
func NewBlockerCommand(c *command.Caller) *cobra.Command {
	return command.Group("blocker", "Report obstacles and resolve them", blockerLong, "  brokerctl blocker list",
		newBlockerRaiseCommand(c), newBlockerAckCommand(c), newBlockerResolveCommand(c), newBlockerGetCommand(c), newBlockerListCommand(c))
}

func newBlockerRaiseCommand(c *command.Caller) *cobra.Command {
	request := &pb.RaiseBlockerRequest{}
	var severity, awaited string
	var recipients []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "raise REASON",
		Short: "Report an obstacle that stops the agent",
		Long: `Report an obstacle. REASON is a text, @FILE or - for standard input. If the agent
holds the task of --task, the task becomes blocked.

Exit code 4: --wait ended before the blocker was resolved.`,
		Example: `  brokerctl --agent builder-1 blocker raise "No database access" --task t1
  brokerctl --agent builder-1 blocker raise "Need the schema" \
    --on dba-1 --auto-resolve --wait 30m`,
		Args:              command.Exactly("the reason"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			number, err := output.ParseEnum("severity", pb.BlockerSeverity(0).Descriptor(), severity)
			if err != nil {
				return err
			}
			request.Severity = pb.BlockerSeverity(number)
			if request.Reason, err = c.Text(cmd, "reason", args[0]); err != nil {
				return err
			}
			request.Awaited = mcp.ParseAwaited(awaited)
			for _, to := range recipients {
				r, err := parseRecipient(to)
				if err != nil {
					return err
				}
				request.Recipients = append(request.Recipients, r)
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Blockers().RaiseBlocker(cmd.Context(), request)
			if err != nil {
				return err
			}
			if wait > 0 {
				return waitForBlocker(c, cmd, broker, answer.GetBlocker().GetId(), wait)
			}
			return showBlocker(c, cmd, answer.GetBlocker(), "raised")
		},
	}
	f := cmd.Flags()
	severities := jsonform.EnumNames(pb.BlockerSeverity(0).Descriptor())
	f.StringVar(&severity, "severity", "", strings.Join(severities, ", ")+" (default: medium)")
	f.StringVar(&awaited, "on", "", "what it waits for: an agent, role:NAME, task:ID, lock:PATH or text:TEXT")
	f.StringVar(&request.TaskId, "task", "", "the task that it stops")
	f.StringArrayVar(&recipients, "to", nil, "an agent or role:NAME to notify; repeatable (default: the first role of escalate_to that has an agent)")
	f.BoolVar(&request.AutoResolve, "auto-resolve", false, "resolve it when the agent of --on completes, or the task of --on is done")
	command.DurationVar(f, &wait, "wait", 0, "wait this long until it is resolved")
	command.AddRequestID(cmd, &request.RequestId)
	command.Must(cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severities, cobra.ShellCompDirectiveNoFileComp)))
	owners := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.Words(cmd, words.Owners)
	}
	command.Must(cmd.RegisterFlagCompletionFunc("to", owners))
	command.Must(cmd.RegisterFlagCompletionFunc("on", owners))
	return cmd
}

// parseRecipient reads an agent or a role.
func parseRecipient(s string) (*pb.BlockerRecipient, error) {
	agent, role, err := command.AgentOrRole(s)
	if role != "" {
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: role}}, err
	}
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: agent}}, err
}

func newBlockerAckCommand(c *command.Caller) *cobra.Command {
	request := &pb.AcknowledgeBlockerRequest{}
	cmd := &cobra.Command{
		Use:               "ack ID [NOTE]",
		Short:             "Report that the agent works on a blocker",
		Example:           `  brokerctl --agent dba-1 blocker ack b-4711 "creating the account"`,
		Args:              command.Between(1, "the id", "the note"),
		ValidArgsFunction: c.CompleteArgs(false, blockerWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Note = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Blockers().AcknowledgeBlocker(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showBlocker(c, cmd, answer.GetBlocker(), "acknowledged")
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newBlockerResolveCommand(c *command.Caller) *cobra.Command {
	request := &pb.ResolveBlockerRequest{}
	cmd := &cobra.Command{
		Use:               "resolve ID [RESOLUTION]",
		Short:             "Resolve a blocker and unblock its task",
		Example:           `  brokerctl --agent dba-1 blocker resolve b-4711 "account created"`,
		Args:              command.Between(1, "the id", "the resolution"),
		ValidArgsFunction: c.CompleteArgs(false, blockerWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Resolution = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Blockers().ResolveBlocker(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showBlocker(c, cmd, answer.GetBlocker(), "resolved")
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newBlockerGetCommand(c *command.Caller) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:               "get ID",
		Short:             "Show a blocker and its timeline, or wait for its resolution",
		Long:              "Show a blocker and its timeline. Exit code 4: --wait ended before it was resolved.",
		Example:           "  brokerctl --agent builder-1 blocker get b-4711 --wait 30m",
		Args:              command.Exactly("the id"),
		ValidArgsFunction: c.CompleteArgs(false, blockerWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if wait > 0 {
				return waitForBlocker(c, cmd, broker, args[0], wait)
			}
			answer, err := broker.Blockers().GetBlocker(cmd.Context(), &pb.GetBlockerRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer.GetBlocker(), func(w io.Writer) { printBlocker(c, w, answer.GetBlocker()) })
		},
	}
	command.DurationVar(cmd.Flags(), &wait, "wait", 0, "wait this long until it is resolved")
	return cmd
}

// waitForBlocker shows a blocker once it is resolved.
func waitForBlocker(c *command.Caller, cmd *cobra.Command, broker *client.Client, id string, wait time.Duration) error {
	var b *pb.Blocker
	resolved, err := c.AwaitOutcome(cmd.Context(), "the resolution of "+id, wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := broker.Blockers().GetBlocker(cmd.Context(), &pb.GetBlockerRequest{Id: id, Wait: left})
		b = answer.GetBlocker()
		return b.GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED, err
	})
	if err != nil {
		return err
	}
	if err := c.Show(cmd, b, func(w io.Writer) { printBlocker(c, w, b) }); err != nil || resolved {
		return err
	}
	return problem.Failf(problem.ExitNothing, "blocker %s is not resolved after %s", prompt.Clean(b.GetId()), prompt.Duration(wait))
}

// showBlocker prints what became of a blocker in one line.
func showBlocker(c *command.Caller, cmd *cobra.Command, b *pb.Blocker, verb string) error {
	return c.Show(cmd, b, func(w io.Writer) {
		line := verb + " " + prompt.Clean(b.GetId())
		switch {
		case verb == "raised" && b.GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED:
			line += ", and resolved" + prompt.Either(prompt.ForModel(w), "", ": "+prompt.OneLine(b.GetResolution()))
		case verb == "raised":
			line += prompt.Either(len(b.GetRecipients()) > 0, ", notified "+recipientNames(b.GetRecipients()), "; no role of escalate_to has an agent to notify")
			line += prompt.Either(b.GetTaskBlocked(), ", blocked task "+prompt.Clean(b.GetTaskId()), "")
		case verb == "resolved":
			line += " after " + shortSeconds(b.GetTimeBlocked())
		}
		prompt.Say(w, "%s", line)
		if prompt.ForModel(w) && verb == "raised" && b.GetResolution() != "" {
			prompt.Framed(w, "the resolution of "+b.GetId(), b.GetResolution())
		}
		if prompt.ForModel(w) && verb == "raised" && b.GetResolvedAt() == nil {
			prompt.Say(w, "Next: %s to wait for its resolution", c.Command("blocker get %s --wait 30m", b.GetId()))
		}
		if prompt.ForModel(w) && verb == "acknowledged" {
			prompt.Say(w, "Next: %s when the obstacle is removed", c.Command("blocker resolve %s RESOLUTION", b.GetId()))
		}
	})
}

// printBlocker shows a blocker with its timeline.
func printBlocker(c *command.Caller, w io.Writer, b *pb.Blocker) {
	l := c.NewLabels(w)
	l.Line("blocker", b.GetId())
	l.State("state", prompt.Enum(b.GetState()))
	l.Line("severity", prompt.Enum(b.GetSeverity()))
	l.Line("agent", b.GetAgent())
	l.Line("awaits", awaitedName(b.GetAwaited())+prompt.Either(b.GetAutoResolve(), ", resolves itself", ""))
	blocked := prompt.Either(b.GetResolvedAt() == nil, ", blocked by it", ", was blocked by it")
	l.Line("task", b.GetTaskId()+prompt.Either(b.GetTaskBlocked(), blocked, ""))
	l.Line("blocked for", shortSeconds(b.GetTimeBlocked()))
	l.Line("escalates", c.When(b.GetEscalatesAt()))
	l.Line("resolution", b.GetResolution())
	l.Flush()
	output.Apart(w)
	fmt.Fprintln(w, prompt.Clean(strings.TrimSpace(b.GetReason())))
	output.Apart(w)
	t := c.NewTable(w, table.Column{Name: "STEP", State: true}, table.Column{Name: "AT"}, table.Column{Name: "BY"}, table.Column{Name: "NOTIFIED"},
		table.Column{Name: "NOTE", Min: 16}, table.Column{Name: "MESSAGE", Rank: 1})
	for _, e := range b.GetTimeline() {
		message := ""
		if e.GetMessage() != 0 {
			message = strconv.FormatInt(e.GetMessage(), 10)
		}
		t.Row(prompt.Enum(e.GetStep()), c.When(e.GetAt()), e.GetAgent(), recipientName(e.GetRecipient()), e.GetNote(), message)
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	if prompt.ForModel(w) && b.GetResolvedAt() == nil {
		prompt.Say(w, "Next: %s when the obstacle is removed", c.Command("blocker resolve %s RESOLUTION", b.GetId()))
	}
}

func newBlockerListCommand(c *command.Caller) *cobra.Command {
	request := &pb.ListBlockersRequest{}
	var states []string
	var severity string
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List blockers with their times, newest first",
		Long:              "List the blockers that are not resolved, or with --all the resolved ones too.",
		Example:           "  brokerctl blocker list --all --severity high",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			number, err := output.ParseEnum("severity", pb.BlockerSeverity(0).Descriptor(), severity)
			if err != nil {
				return err
			}
			request.LowestSeverity = pb.BlockerSeverity(number)
			for _, name := range states {
				number, err := output.ParseEnum("state", pb.BlockerState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.BlockerState(number))
			}
			if len(states) == 0 && !all {
				request.States = []pb.BlockerState{pb.BlockerState_BLOCKER_STATE_OPEN, pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED}
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			blockers, err := command.Pages(limit, func(size int32, token string) ([]*pb.Blocker, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Blockers().ListBlockers(cmd.Context(), request)
				return page.GetBlockers(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, blockers, blockerView(c))
		},
	}
	f := cmd.Flags()
	stateNames, severities := jsonform.EnumNames(pb.BlockerState(0).Descriptor()), jsonform.EnumNames(pb.BlockerSeverity(0).Descriptor())
	f.BoolVar(&all, "all", false, "resolved ones too")
	f.StringArrayVar(&states, "state", nil, "only this state: "+strings.Join(stateNames, ", ")+"; repeatable")
	f.StringVar(&severity, "severity", "", "only this severity or a higher one: "+strings.Join(severities, ", "))
	f.StringVar(&request.Agent, "from", "", "only blockers of this agent")
	f.StringVar(&request.TaskId, "task", "", "only blockers of this task")
	command.OldestVar(f, &request.OldestFirst)
	command.LimitVar(f, &limit, 0)
	cmd.MarkFlagsMutuallyExclusive("all", "state")
	command.Must(cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severities, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// blockerView lists blockers with their timelines.
func blockerView(c *command.Caller) output.View[*pb.Blocker] {
	return output.View[*pb.Blocker]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "SEVERITY", Rank: 4}, {Name: "AGENT", Min: 8}, {Name: "REASON", Min: 16},
			{Name: "AWAITS", Rank: 5, Min: 8}, {Name: "TASK", Rank: 6}, {Name: "RAISED"}, {Name: "NOTIFIED", Rank: 3},
			{Name: "ACKNOWLEDGED", Rank: 2}, {Name: "RESOLVED", Rank: 1}, {Name: "BLOCKED"},
		},
		Row: func(b *pb.Blocker) []string {
			var notified []string
			for _, e := range b.GetTimeline() {
				if e.GetMessage() != 0 {
					notified = append(notified, recipientName(e.GetRecipient())+" "+c.When(e.GetAt()))
				}
			}
			by := func(at, who string) string {
				return strings.TrimSpace(at + " " + prompt.Either(who == "", "", "by "+who))
			}
			return []string{
				b.GetId(), prompt.Enum(b.GetState()), prompt.Enum(b.GetSeverity()), b.GetAgent(), prompt.Clip(b.GetReason(), 100), awaitedName(b.GetAwaited()), b.GetTaskId(),
				c.When(b.GetRaisedAt()), strings.Join(notified, ", "), by(c.When(b.GetAcknowledgedAt()), strings.Join(b.GetAcknowledgedBy(), ", ")),
				by(c.When(b.GetResolvedAt()), b.GetResolvedBy()), shortSeconds(b.GetTimeBlocked()),
			}
		},
		None: "no blockers",
	}
}

// awaitedName writes the awaited object as --on reads it.
func awaitedName(a *pb.AwaitedObject) string {
	switch o := a.GetObject().(type) {
	case *pb.AwaitedObject_Agent:
		return o.Agent
	case *pb.AwaitedObject_Role:
		return "role:" + o.Role
	case *pb.AwaitedObject_TaskId:
		return "task:" + o.TaskId
	case *pb.AwaitedObject_Lock:
		return "lock:" + o.Lock
	case *pb.AwaitedObject_Text:
		return "text:" + o.Text
	}
	return ""
}

func recipientName(r *pb.BlockerRecipient) string {
	if r.GetRole() != "" {
		return "role:" + r.GetRole()
	}
	return r.GetAgent()
}

func recipientNames(list []*pb.BlockerRecipient) string {
	words := make([]string, len(list))
	for i, r := range list {
		words[i] = recipientName(r)
	}
	return prompt.Clean(strings.Join(words, ", "))
}

// shortSeconds is shortOf without fractions of a second.
func shortSeconds(d *durationpb.Duration) string {
	return prompt.Duration(d.AsDuration().Truncate(time.Second))
}

// blockerWords completes the ids of blockers that are not resolved.
func blockerWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Blockers().ListBlockers(ctx, &pb.ListBlockersRequest{
		PageSize: command.MaxPage, States: []pb.BlockerState{pb.BlockerState_BLOCKER_STATE_OPEN, pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED},
	})
	words := make([]string, len(page.GetBlockers()))
	for i, b := range page.GetBlockers() {
		words[i] = b.GetId() + "\t" + prompt.Clip(b.GetReason(), 60)
	}
	return words, err
}
