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
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const blockerLong = `A blocker is an obstacle that stops an agent. The broker notifies its recipients
and, until an agent acknowledges it, one role of escalate_to after the other.`

// NewBlockerCommand returns the commands of brokerctl blocker.
func NewBlockerCommand(c *command.Caller) *cobra.Command {
	return command.Group("blocker", "Report obstacles and resolve them", blockerLong, "  brokerctl blocker list",
		blockerRaise.Command(c), blockerAck.Command(c), blockerResolve.Command(c), blockerGet.Command(c),
		blockerList.Command(c))
}

var blockerRaise = command.Spec[*pb.RaiseBlockerRequest, *pb.RaiseBlockerResponse]{
	Page: command.Page{
		Use:   "raise REASON",
		Short: "Report an obstacle that stops the agent",
		Long: `Report an obstacle. REASON is a text, @FILE or - for standard input. If the agent
holds the task of --task, the task becomes blocked.

Exit code 4: --wait ended before the blocker was resolved.`,
		Example: `  brokerctl --agent builder-1 blocker raise "No database access" --task t1
  brokerctl --agent builder-1 blocker raise "Need the schema" \
    --on dba-1 --auto-resolve --wait 30m`,
	},
	Args: []command.Arg{{Field: "reason", Name: "the reason", Text: true, Kind: command.Content}},
	Options: []command.Option{
		{Field: "severity", Usage: "{} (default: medium)"},
		{Field: "awaited", Name: "on", Kind: command.Kind{Words: words.Owners, Read: command.As(parseAwaited)},
			Usage: "what it waits for: an agent, role:NAME, task:ID, lock:PATH or text:TEXT"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "the task that it stops"},
		{Field: "recipients", Name: "to", Kind: command.Kind{Words: words.Owners, Read: command.As(parseRecipient)},
			Usage: "an agent or role:NAME to notify; repeatable (default: the first role of escalate_to that has an agent)"},
		{Field: "auto_resolve", Usage: "resolve it when the agent of --on completes, or the task of --on is done"},
		{Name: "wait", Type: "duration", Usage: "wait this long until it is resolved"},
		command.RequestID,
	},
	After: func(
		g *command.Given, broker *client.Client, _ *pb.RaiseBlockerRequest, a *pb.RaiseBlockerResponse,
	) (bool, error) {
		return blockerGet.AwaitMade(g, broker, a.GetBlocker().GetId())
	},
	Shown: "blocker",
	Text: func(g *command.Given, w io.Writer, _ *pb.RaiseBlockerRequest, a *pb.RaiseBlockerResponse) {
		b := a.GetBlocker()
		line := "raised " + prompt.Clean(b.GetId())
		if b.GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED {
			line += ", and resolved" + prompt.Either(prompt.ForModel(w), "", ": "+prompt.OneLine(b.GetResolution()))
		} else {
			line += prompt.Either(len(b.GetRecipients()) > 0, ", notified "+recipientNames(b.GetRecipients()),
				"; no role of escalate_to has an agent to notify")
			line += prompt.Either(b.GetTaskBlocked(), ", blocked task "+prompt.Clean(b.GetTaskId()), "")
		}
		prompt.Say(w, "%s", line)
		if !prompt.ForModel(w) {
			return
		}
		if b.GetResolution() != "" {
			prompt.Framed(w, "the resolution of "+b.GetId(), b.GetResolution())
		}
		if b.GetResolvedAt() == nil {
			prompt.Say(w, "Next: %s to wait for its resolution", g.Command("blocker get %s --wait 30m", b.GetId()))
		}
	},
}

// parseAwaited reads what a blocker waits for.
func parseAwaited(s string) (*pb.AwaitedObject, error) { return mcp.ParseAwaited(s), nil }

// parseRecipient reads an agent or a role.
func parseRecipient(s string) (*pb.BlockerRecipient, error) {
	agent, role, err := command.AgentOrRole(s)
	if role != "" {
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: role}}, err
	}
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: agent}}, err
}

var blockerAck = command.Spec[*pb.AcknowledgeBlockerRequest, *pb.AcknowledgeBlockerResponse]{
	Page: command.Page{
		Use:     "ack ID [NOTE]",
		Short:   "Report that the agent works on a blocker",
		Example: `  brokerctl --agent dba-1 blocker ack b-4711 "creating the account"`,
	},
	Args: []command.Arg{
		{Field: "id", Name: "the id", Kind: openBlocker}, {Field: "note", Name: "the note", Text: true},
	},
	Options: []command.Option{command.RequestID},
	Shown:   "blocker",
	Text: func(g *command.Given, w io.Writer, _ *pb.AcknowledgeBlockerRequest, a *pb.AcknowledgeBlockerResponse) {
		prompt.Say(w, "acknowledged %s", prompt.Clean(a.GetBlocker().GetId()))
		nextForBlocker(g.Caller, w, a.GetBlocker())
	},
}

var blockerResolve = command.Spec[*pb.ResolveBlockerRequest, *pb.ResolveBlockerResponse]{
	Page: command.Page{
		Use:     "resolve ID [RESOLUTION]",
		Short:   "Resolve a blocker and unblock its task",
		Example: `  brokerctl --agent dba-1 blocker resolve b-4711 "account created"`,
	},
	Args: []command.Arg{
		{Field: "id", Name: "the id", Kind: openBlocker}, {Field: "resolution", Name: "the resolution", Text: true},
	},
	Options: []command.Option{command.RequestID},
	Shown:   "blocker",
	Text: func(_ *command.Given, w io.Writer, _ *pb.ResolveBlockerRequest, a *pb.ResolveBlockerResponse) {
		b := a.GetBlocker()
		prompt.Say(w, "resolved %s after %s", prompt.Clean(b.GetId()), shortSeconds(b.GetTimeBlocked()))
	},
}

var blockerGet = command.Spec[*pb.GetBlockerRequest, *pb.GetBlockerResponse]{
	Page: command.Page{
		Use:     "get ID",
		Short:   "Show a blocker and its timeline, or wait for its resolution",
		Long:    "Show a blocker and its timeline. Exit code 4: --wait ended before it was resolved.",
		Example: "  brokerctl --agent builder-1 blocker get b-4711 --wait 30m",
	},
	Args:  []command.Arg{{Field: "id", Name: "the id", Kind: openBlocker}},
	Shown: "blocker",
	Text: func(g *command.Given, w io.Writer, _ *pb.GetBlockerRequest, a *pb.GetBlockerResponse) {
		printBlocker(g.Caller, w, a.GetBlocker())
	},
	Wait: &command.Waiting[*pb.GetBlockerResponse]{
		Usage: "wait this long until it is resolved", What: "the resolution of",
		Reached: func(a *pb.GetBlockerResponse) bool {
			return a.GetBlocker().GetState() == pb.BlockerState_BLOCKER_STATE_RESOLVED
		},
		Verdict: func(a *pb.GetBlockerResponse, resolved bool, wait time.Duration) error {
			if resolved {
				return nil
			}
			return problem.Failf(problem.ExitNothing, "blocker %s is not resolved after %s",
				prompt.Clean(a.GetBlocker().GetId()), prompt.Duration(wait))
		},
	},
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
	t := c.NewTable(w, table.Column{Name: "STEP", State: true}, table.Column{Name: "AT"}, table.Column{Name: "BY"},
		table.Column{Name: "NOTIFIED"}, table.Column{Name: "NOTE", Min: 16}, table.Column{Name: "MESSAGE", Rank: 1})
	for _, e := range b.GetTimeline() {
		message := prompt.Either(e.GetMessage() != 0, strconv.FormatInt(e.GetMessage(), 10), "")
		t.Row(prompt.Enum(e.GetStep()), c.When(e.GetAt()), e.GetAgent(), recipientName(e.GetRecipient()), e.GetNote(),
			message)
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	if b.GetResolvedAt() == nil {
		nextForBlocker(c, w, b)
	}
}

// nextForBlocker names the command that resolves a blocker, for a model.
func nextForBlocker(c *command.Caller, w io.Writer, b *pb.Blocker) {
	if prompt.ForModel(w) {
		prompt.Say(w, "Next: %s when the obstacle is removed", c.Command("blocker resolve %s RESOLUTION", b.GetId()))
	}
}

var blockerList = command.Listing[*pb.ListBlockersRequest, *pb.ListBlockersResponse, *pb.Blocker]{
	Page: command.Page{
		Use:     "list",
		Short:   "List blockers with their times, newest first",
		Long:    "List the blockers that are not resolved, or with --all the resolved ones too.",
		Example: "  brokerctl blocker list --all --severity high",
	},
	Items: (*pb.ListBlockersResponse).GetBlockers,
	Options: []command.Option{
		{Name: "all", Type: "bool", Usage: "resolved ones too"},
		{Field: "states", Name: "state", Usage: "only this state: {}; repeatable"},
		{Field: "lowest_severity", Name: "severity", Usage: "only this severity or a higher one: {}"},
		{Field: "agent", Name: "from", Kind: words.Agent, Usage: "only blockers of this agent"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only blockers of this task"},
		command.Oldest,
	},
	Apart: [][]string{{"all", "state"}},
	Prepare: func(g *command.Given, q *pb.ListBlockersRequest) error {
		if len(q.GetStates()) == 0 && !g.On("all") {
			q.States = unresolved
		}
		return nil
	},
	View: func(g *command.Given) output.View[*pb.Blocker] { return blockerView(g.Caller) },
}

// unresolved are the states of blockers that still stop an agent.
var unresolved = []pb.BlockerState{pb.BlockerState_BLOCKER_STATE_OPEN, pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED}

// blockerView lists blockers with their timelines.
func blockerView(c *command.Caller) output.View[*pb.Blocker] {
	return output.View[*pb.Blocker]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "SEVERITY", Rank: 4}, {Name: "AGENT", Min: 8},
			{Name: "REASON", Min: 16}, {Name: "AWAITS", Rank: 5, Min: 8}, {Name: "TASK", Rank: 6}, {Name: "RAISED"}, {Name: "NOTIFIED", Rank: 3},
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
				b.GetId(), prompt.Enum(b.GetState()), prompt.Enum(b.GetSeverity()), b.GetAgent(),
				prompt.Clip(b.GetReason(), 100), awaitedName(b.GetAwaited()), b.GetTaskId(), c.When(b.GetRaisedAt()),
				strings.Join(notified, ", "), by(c.When(b.GetAcknowledgedAt()), strings.Join(b.GetAcknowledgedBy(), ", ")),
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
	return prompt.Either(r.GetRole() != "", "role:"+r.GetRole(), r.GetAgent())
}

func recipientNames(list []*pb.BlockerRecipient) string {
	words := each.Of(list, recipientName)
	return prompt.Clean(strings.Join(words, ", "))
}

// shortSeconds is shortOf without fractions of a second.
func shortSeconds(d *durationpb.Duration) string {
	return prompt.Duration(d.AsDuration().Truncate(time.Second))
}

var openBlocker = command.Kind{Words: blockerWords}

// blockerWords completes the ids of blockers that are not resolved.
func blockerWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Blockers().ListBlockers(ctx, &pb.ListBlockersRequest{
		PageSize: command.MaxPage, States: unresolved,
	})
	return each.Of(page.GetBlockers(), func(b *pb.Blocker) string {
		return b.GetId() + "\t" + prompt.Clip(b.GetReason(), 60)
	}), err
}
