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
	"brokerd/internal/prompt"
)

const handoffLong = `A handoff passes work to another agent: its description, and the task claim,
locks and tokens that the recipient holds once it has accepted.`

// NewHandoffCommand returns the commands of brokerctl handoff.
func NewHandoffCommand(c *command.Caller) *cobra.Command {
	return command.Group("handoff", "Pass work on to another agent", handoffLong, "  brokerctl handoff list",
		newHandoffCreateCommand(c), newHandoffAcceptCommand(c), newHandoffRejectCommand(c), newHandoffCancelCommand(c),
		newHandoffCheckCommand(c), newHandoffGetCommand(c), newHandoffListCommand(c), newHandoffExportCommand(c))
}

func newHandoffAcceptCommand(c *command.Caller) *cobra.Command {
	request := &pb.AcceptHandoffRequest{}
	cmd := &cobra.Command{
		Use:   "accept ID [NOTES]",
		Short: "Accept a handoff, and hold its task, locks and tokens",
		Long: `Accept a handoff. Its task claim, locks and tokens get new fences. Exit code 5: it
is settled already, or the sender has lost a grant (see --partial).`,
		Example:           "  brokerctl --agent builder-1 handoff accept h-4711",
		Args:              command.Between(1, "the id", "the notes"),
		ValidArgsFunction: c.CompleteArgs(false, handoffWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Notes = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Handoffs().AcceptHandoff(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showHandoff(c, cmd, answer.GetHandoff(), "accepted")
		},
	}
	cmd.Flags().BoolVar(&request.Partial, "partial", false, "accept although the sender has lost grants")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newHandoffRejectCommand(c *command.Caller) *cobra.Command {
	request := &pb.RejectHandoffRequest{}
	cmd := &cobra.Command{
		Use:               "reject ID REASON",
		Short:             "Reject a handoff; the sender keeps everything",
		Example:           `  brokerctl --agent builder-1 handoff reject h-4711 "no time before Friday"`,
		Args:              command.Exactly("the id", "the reason"),
		ValidArgsFunction: c.CompleteArgs(false, handoffWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id, request.Notes = args[0], args[1]
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Handoffs().RejectHandoff(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showHandoff(c, cmd, answer.GetHandoff(), "rejected")
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newHandoffCancelCommand(c *command.Caller) *cobra.Command {
	request := &pb.CancelHandoffRequest{}
	cmd := &cobra.Command{
		Use:               "cancel ID [REASON]",
		Short:             "Withdraw a pending handoff (sender, directors, operators)",
		Example:           "  brokerctl --agent architect-1 handoff cancel h-4711",
		Args:              command.Between(1, "the id", "the reason"),
		ValidArgsFunction: c.CompleteArgs(false, handoffWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Notes = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Handoffs().CancelHandoff(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showHandoff(c, cmd, answer.GetHandoff(), "cancelled")
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newHandoffCheckCommand(c *command.Caller) *cobra.Command {
	request := &pb.CheckHandoffItemRequest{}
	cmd := &cobra.Command{
		Use:               "check ID NUMBER",
		Short:             "Check an item of the acceptance checklist",
		Example:           "  brokerctl --agent builder-1 handoff check h-4711 2",
		Args:              command.Exactly("the id", "the number of the item"),
		ValidArgsFunction: c.CompleteArgs(false, handoffWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseInt(args[1], 10, 32)
			if err != nil {
				return problem.Usagef("%q is not the number of an item; brokerctl handoff get %s shows them", args[1], prompt.ShellWord(args[0]))
			}
			request.Id, request.Number = args[0], int32(n)
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Handoffs().CheckHandoffItem(cmd.Context(), request)
			if err != nil {
				return err
			}
			h := answer.GetHandoff()
			return c.Show(cmd, h, func(w io.Writer) {
				prompt.Say(w, "%s item %d of %s: %d of %d are checked", prompt.Either(request.Uncheck, "unchecked", "checked"), n, prompt.Clean(h.GetId()),
					h.GetChecked(), h.GetItems())
			})
		},
	}
	cmd.Flags().BoolVar(&request.Uncheck, "uncheck", false, "remove the check")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newHandoffGetCommand(c *command.Caller) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:               "get ID",
		Short:             "Show a handoff as Markdown, or wait for its outcome",
		Long:              "Show a handoff as Markdown, or as an object with -o json. Exit codes with --wait:\n4: not answered in time; 11: rejected or cancelled.",
		Example:           "  brokerctl handoff get h-4711",
		Args:              command.Exactly("the id"),
		ValidArgsFunction: c.CompleteArgs(false, handoffWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if wait > 0 {
				return waitForHandoff(c, cmd, broker, args[0], wait, func(w io.Writer, answer *pb.GetHandoffResponse) { printHandoff(c, w, answer) })
			}
			answer, err := broker.Handoffs().GetHandoff(cmd.Context(), &pb.GetHandoffRequest{Id: args[0], Markdown: true})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer.GetHandoff(), func(w io.Writer) { printHandoff(c, w, answer) })
		},
	}
	command.DurationVar(cmd.Flags(), &wait, "wait", 0, "wait this long for the answer")
	return cmd
}

// waitForHandoff shows a handoff once it is settled.
func waitForHandoff(c *command.Caller,
	cmd *cobra.Command, broker *client.Client, id string, wait time.Duration, show func(io.Writer, *pb.GetHandoffResponse),
) error {
	var answer *pb.GetHandoffResponse
	settled, err := c.AwaitOutcome(cmd.Context(), "the answer to "+id, wait, func(left *durationpb.Duration) (bool, error) {
		var err error
		answer, err = broker.Handoffs().GetHandoff(cmd.Context(), &pb.GetHandoffRequest{Id: id, Wait: left, Markdown: true})
		return err == nil && answer.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_PENDING, err
	})
	if err != nil {
		return err
	}
	h := answer.GetHandoff()
	if err := c.Show(cmd, h, func(w io.Writer) { show(w, answer) }); err != nil {
		return err
	}
	switch {
	case !settled:
		return problem.Failf(problem.ExitNothing, "handoff %s is not answered after %s", prompt.Clean(h.GetId()), prompt.Duration(wait))
	case h.GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED:
		return problem.Failf(problem.ExitRejected, "handoff %s was %s by %s", prompt.Clean(h.GetId()), prompt.Enum(h.GetState()), prompt.Clean(h.GetSettledBy()))
	}
	return nil
}

// printAnswer says in one line how a handoff was answered.
func printAnswer(w io.Writer, answer *pb.GetHandoffResponse) {
	h := answer.GetHandoff()
	line := h.GetId() + " " + prompt.Enum(h.GetState())
	line += prompt.Either(h.GetSettledBy() != "", " by "+h.GetSettledBy(), "") + prompt.Either(h.GetNotes() != "", ": "+h.GetNotes(), "")
	fmt.Fprintln(w, prompt.OneLine(line))
}

// printHandoff shows the Markdown of a handoff, and to a language model how to answer.
func printHandoff(c *command.Caller, w io.Writer, answer *pb.GetHandoffResponse) {
	fmt.Fprint(w, prompt.Clean(answer.GetMarkdown()))
	if h := answer.GetHandoff(); prompt.ForModel(w) && h.GetState() == pb.HandoffState_HANDOFF_STATE_PENDING {
		prompt.Say(w, "Next, for %s: %s, or %s", handoffTo(h), c.Command("handoff accept %s", h.GetId()),
			c.Also("handoff reject %s REASON", h.GetId()))
	}
}

// showHandoff prints what became of a handoff in few lines.
func showHandoff(c *command.Caller, cmd *cobra.Command, h *pb.Handoff, verb string) error {
	return c.Show(cmd, h, func(w io.Writer) {
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
		if prompt.ForModel(w) && verb == "created" {
			prompt.Say(w, "Next: %s to wait for the answer", c.Command("handoff get %s --wait 30m", h.GetId()))
		}
	})
}

func newHandoffListCommand(c *command.Caller) *cobra.Command {
	request := &pb.ListHandoffsRequest{}
	var states []string
	var to string
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List handoffs, newest first",
		Long:              "List the pending handoffs, or with --all the settled ones too.",
		Example:           "  brokerctl handoff list --to builder-1",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range states {
				number, err := output.ParseEnum("state", pb.HandoffState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.HandoffState(number))
			}
			if len(states) == 0 && !all {
				request.States = []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING}
			}
			var err error
			if to != "" {
				if request.ToAgent, request.ToRole, err = command.AgentOrRole(to); err != nil {
					return err
				}
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			handoffs, err := command.Pages(limit, func(size int32, token string) ([]*pb.Handoff, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Handoffs().ListHandoffs(cmd.Context(), request)
				return page.GetHandoffs(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, handoffs, handoffView(c))
		},
	}
	f := cmd.Flags()
	names := jsonform.EnumNames(pb.HandoffState(0).Descriptor())
	f.BoolVar(&all, "all", false, "settled ones too")
	f.StringArrayVar(&states, "state", nil, "only this state: "+strings.Join(names, ", ")+"; repeatable")
	f.StringVar(&request.From, "from", "", "only handoffs from this agent")
	f.StringVar(&to, "to", "", "only handoffs to this agent (and its role), or to role:NAME")
	f.StringVar(&request.TaskId, "task", "", "only handoffs of this task")
	command.LimitVar(f, &limit, 0)
	cmd.MarkFlagsMutuallyExclusive("all", "state")
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.Words(cmd, words.Owners)
	}))
	return cmd
}

// handoffView lists handoffs.
func handoffView(c *command.Caller) output.View[*pb.Handoff] {
	return output.View[*pb.Handoff]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "FROM", Min: 8}, {Name: "TO", Min: 8}, {Name: "TITLE", Min: 16}, {Name: "TASK", Rank: 4},
			{Name: "CHECKED", Rank: 3}, {Name: "CREATED"}, {Name: "SETTLED", Rank: 2}, {Name: "NOTES", Rank: 1, Min: 16},
		},
		Row: func(h *pb.Handoff) []string {
			checked, settled := "", c.When(h.GetSettledAt())
			if h.GetItems() > 0 {
				checked = fmt.Sprintf("%d of %d", h.GetChecked(), h.GetItems())
			}
			if settled != "" {
				settled += " by " + h.GetSettledBy()
			}
			return []string{
				h.GetId(), prompt.Enum(h.GetState()), h.GetFrom(), handoffTo(h), h.GetTitle(), h.GetTaskId(), checked, c.When(h.GetCreatedAt()), settled,
				prompt.Clip(h.GetNotes(), 100),
			}
		},
		None: "no handoffs",
	}
}

func handoffTo(h *pb.Handoff) string {
	return prompt.Clean(prompt.Either(h.GetToRole() != "", "role:"+h.GetToRole(), h.GetToAgent()))
}

// handoffWords completes the ids of pending handoffs.
func handoffWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Handoffs().ListHandoffs(ctx, &pb.ListHandoffsRequest{
		PageSize: command.MaxPage, States: []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING},
	})
	words := make([]string, len(page.GetHandoffs()))
	for i, h := range page.GetHandoffs() {
		words[i] = h.GetId() + "\t" + prompt.Clip(h.GetTitle(), 60)
	}
	return words, err
}
