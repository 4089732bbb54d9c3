package work

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

const handoffLong = `A handoff passes work to another agent: its description, and the task claim,
locks and tokens that the recipient holds once it has accepted.`

// NewHandoffCommand returns the commands of brokerctl handoff.
func NewHandoffCommand(c *command.Caller) *cobra.Command {
	return command.Group("handoff", "Pass work on to another agent", handoffLong, "  brokerctl handoff list",
		handoffCreate.Command(c), handoffAccept.Command(c), handoffReject.Command(c), handoffCancel.Command(c),
		handoffCheck.Command(c), handoffGet.Command(c), handoffList.Command(c), handoffExport.Command(c))
}

var handoffAccept = command.Spec[*pb.AcceptHandoffRequest, *pb.AcceptHandoffResponse]{
	Page: command.Page{
		Use:   "accept ID [NOTES]",
		Short: "Accept a handoff, and hold its task, locks and tokens",
		Long: `Accept a handoff. Its task claim, locks and tokens get new fences. Exit code 5: it
is settled already, or the sender has lost a grant (see --partial).`,
		Example: "  brokerctl --agent builder-1 handoff accept h-4711",
	},
	Args: []command.Arg{
		{Field: "id", Name: "the id", Kind: pendingHandoff}, {Field: "notes", Name: "the notes", Text: true},
	},
	Options: []command.Option{
		{Field: "partial", Usage: "accept although the sender has lost grants"}, command.RequestID,
	},
	Shown: "handoff",
	Text: func(_ *command.Given, w io.Writer, _ *pb.AcceptHandoffRequest, a *pb.AcceptHandoffResponse) {
		printOutcome(w, "accepted", a.GetHandoff())
	},
}

var handoffReject = command.Spec[*pb.RejectHandoffRequest, *pb.RejectHandoffResponse]{
	Page: command.Page{
		Use:     "reject ID",
		Short:   "Reject a handoff; the sender keeps everything",
		Example: `  brokerctl --agent builder-1 handoff reject h-4711 --reason "no time now"`,
	},
	Args: []command.Arg{{Field: "id", Name: "the id", Kind: pendingHandoff}},
	Options: []command.Option{
		{Field: "notes", Name: "reason", Must: true, Usage: "why, for the sender; required"}, command.RequestID,
	},
	Old:   "reason",
	Shown: "handoff",
	Text: func(_ *command.Given, w io.Writer, _ *pb.RejectHandoffRequest, a *pb.RejectHandoffResponse) {
		printOutcome(w, "rejected", a.GetHandoff())
	},
}

var handoffCancel = command.Spec[*pb.CancelHandoffRequest, *pb.CancelHandoffResponse]{
	Page: command.Page{
		Use:     "cancel ID",
		Short:   "Withdraw a pending handoff",
		Example: "  brokerctl --agent architect-1 handoff cancel h-4711",
	},
	Args:    []command.Arg{{Field: "id", Name: "the id", Kind: pendingHandoff}},
	Options: []command.Option{{Field: "notes", Name: "reason", Usage: "why"}, command.RequestID},
	Old:     "reason",
	Shown:   "handoff",
	Text: func(_ *command.Given, w io.Writer, _ *pb.CancelHandoffRequest, a *pb.CancelHandoffResponse) {
		printOutcome(w, "cancelled", a.GetHandoff())
	},
}

// printOutcome says in few lines what became of a handoff.
func printOutcome(w io.Writer, verb string, h *pb.Handoff) {
	title := prompt.Either(prompt.ForModel(w), "", ": "+prompt.OneLine(h.GetTitle()))
	prompt.Say(w, "%s %s%s", verb, prompt.Clean(h.GetId()), title)
	for _, g := range h.GetGrants() {
		name := prompt.Enum(g.GetKind()) + " " + prompt.OneLine(g.GetName())
		switch {
		case g.GetLost():
			fmt.Fprintf(w, "the %s was lost before\n", name)
		case g.GetNewFence() != 0:
			fmt.Fprintf(w, "holds the %s, fence %d\n", name, g.GetNewFence())
		}
	}
}

var handoffCheck = command.Spec[*pb.CheckHandoffItemRequest, *pb.CheckHandoffItemResponse]{
	Page: command.Page{
		Use:     "check ID NUMBER",
		Short:   "Check an item of the acceptance checklist",
		Example: "  brokerctl --agent builder-1 handoff check h-4711 2",
	},
	Args: []command.Arg{
		{Field: "id", Name: "the id", Kind: pendingHandoff},
		{Field: "number", Name: "the number of the item", Kind: command.Kind{Read: readItem}},
	},
	Options: []command.Option{{Field: "uncheck", Usage: "remove the check"}, command.RequestID},
	Shown:   "handoff",
	Text: func(_ *command.Given, w io.Writer, q *pb.CheckHandoffItemRequest, a *pb.CheckHandoffItemResponse) {
		h := a.GetHandoff()
		prompt.Say(w, "%s item %d of %s: %d of %d are checked", prompt.Either(q.GetUncheck(), "unchecked", "checked"),
			q.GetNumber(), prompt.Clean(h.GetId()), h.GetChecked(), h.GetItems())
	},
}

// readItem reads the number of an item.
func readItem(g *command.Given, to command.Target, texts []string) error {
	n, err := strconv.ParseInt(texts[0], 10, 32)
	if err != nil {
		return problem.Usagef("%q is not the number of an item; brokerctl handoff get %s shows them", texts[0],
			prompt.ShellWord(g.Args[0]))
	}
	to.Set(protoreflect.ValueOfInt32(int32(n)))
	return nil
}

var handoffGet = command.Spec[*pb.GetHandoffRequest, *pb.GetHandoffResponse]{
	Page: command.Page{
		Use:   "get ID",
		Short: "Show a handoff as Markdown, or wait for its outcome",
		Long: `Show a handoff as Markdown, or as an object with -o json. Exit codes with --wait:
4: not answered in time; 11: rejected or cancelled.`,
		Example: "  brokerctl handoff get h-4711",
	},
	Args: []command.Arg{{Field: "id", Name: "the id", Kind: pendingHandoff}},
	Prepare: func(_ *command.Given, q *pb.GetHandoffRequest) error {
		q.Markdown = true // how the answer is shown
		return nil
	},
	Shown: "handoff",
	Text: func(g *command.Given, w io.Writer, _ *pb.GetHandoffRequest, a *pb.GetHandoffResponse) {
		fmt.Fprint(w, prompt.Clean(a.GetMarkdown()))
		if h := a.GetHandoff(); prompt.ForModel(w) && h.GetState() == pb.HandoffState_HANDOFF_STATE_PENDING {
			accept := g.Line(calls.Do(&pb.AcceptHandoffRequest{Id: h.GetId()}))
			prompt.Say(w, "Next, for %s: %s, or %s", handoffTo(h), accept,
				g.Voice().Also(calls.Do(&pb.RejectHandoffRequest{Id: h.GetId()}, "notes")))
		}
	},
	Wait: &command.Waiting[*pb.GetHandoffResponse]{
		Usage: "wait this long for the answer", What: "the answer to",
		Reached: func(a *pb.GetHandoffResponse) bool {
			return a.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_PENDING
		},
		Verdict: func(a *pb.GetHandoffResponse, settled bool, wait time.Duration) error {
			switch h := a.GetHandoff(); {
			case !settled:
				return problem.Failf(problem.ExitNothing, "handoff %s is not answered after %s", prompt.Clean(h.GetId()),
					prompt.Duration(wait))
			case h.GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED:
				return problem.Failf(problem.ExitRejected, "handoff %s was %s by %s", prompt.Clean(h.GetId()),
					prompt.Enum(h.GetState()), prompt.Clean(h.GetSettledBy()))
			}
			return nil
		},
	},
}

var handoffList = command.Listing[*pb.ListHandoffsRequest, *pb.ListHandoffsResponse, *pb.Handoff]{
	Page: command.Page{
		Use:     "list",
		Short:   "List handoffs, newest first",
		Long:    "List the pending handoffs, or with --all the settled ones too.",
		Example: "  brokerctl handoff list --to builder-1",
	},
	Items: (*pb.ListHandoffsResponse).GetHandoffs,
	Options: []command.Option{
		{Name: "all", Type: "bool", Usage: "settled ones too"},
		{Field: "states", Name: "state", Usage: "only this state: {}; repeatable"},
		{Field: "from", Kind: words.Agent, Usage: "only handoffs from this agent"},
		{Name: "to", Type: "string", Kind: agentOrRole, Usage: "only handoffs to this agent (and its role), or to role:NAME"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only handoffs of this task"},
	},
	Apart: [][]string{{"all", "state"}},
	Prepare: func(g *command.Given, q *pb.ListHandoffsRequest) (err error) {
		if len(q.GetStates()) == 0 && !g.On("all") {
			q.States = []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING}
		}
		if to := g.Text("to"); to != "" {
			q.ToAgent, q.ToRole, err = command.AgentOrRole(to)
		}
		return err
	},
	View: handoffView,
}

// handoffView lists handoffs.
func handoffView(c *command.Given) output.View[*pb.Handoff] {
	return output.View[*pb.Handoff]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "FROM", Min: 8}, {Name: "TO", Min: 8},
			{Name: "TITLE", Min: 16}, {Name: "TASK", Rank: 4}, {Name: "CHECKED", Rank: 3}, {Name: "CREATED"}, {Name: "SETTLED", Rank: 2}, {Name: "NOTES", Rank: 1, Min: 16},
		},
		Row: func(h *pb.Handoff) []string {
			checked := prompt.Either(h.GetItems() > 0, fmt.Sprintf("%d of %d", h.GetChecked(), h.GetItems()), "")
			settled := c.When(h.GetSettledAt())
			settled += prompt.Either(settled != "", " by "+h.GetSettledBy(), "")
			return []string{
				h.GetId(), prompt.Enum(h.GetState()), h.GetFrom(), handoffTo(h), h.GetTitle(), h.GetTaskId(), checked,
				c.When(h.GetCreatedAt()), settled, prompt.Clip(h.GetNotes(), 100),
			}
		},
		None: "no handoffs",
	}
}

func handoffTo(h *pb.Handoff) string {
	return prompt.Clean(prompt.Either(h.GetToRole() != "", "role:"+h.GetToRole(), h.GetToAgent()))
}

// Kinds of values of the commands for handoffs and blockers.
var (
	pendingHandoff = command.Kind{Words: handoffWords}
	agentOrRole    = command.Kind{Words: words.Owners}
)

// handoffWords completes the ids of pending handoffs.
func handoffWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Handoffs().ListHandoffs(ctx, &pb.ListHandoffsRequest{
		PageSize: command.MaxPage, States: []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING},
	})
	return each.Of(page.GetHandoffs(), func(h *pb.Handoff) string {
		return h.GetId() + "\t" + prompt.Clip(h.GetTitle(), 60)
	}), err
}
