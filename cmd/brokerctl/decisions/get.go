package decisions

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// The states of decisions, short.
const (
	DecisionOpen      = pb.DecisionState_DECISION_STATE_OPEN
	decisionRevising  = pb.DecisionState_DECISION_STATE_REVISING
	decisionEscalated = pb.DecisionState_DECISION_STATE_ESCALATED
	DecisionDecided   = pb.DecisionState_DECISION_STATE_DECIDED
	decisionCancelled = pb.DecisionState_DECISION_STATE_CANCELLED
)

// decisionID returns the id of a decision: the given one, or that of the newest decision of a scope.
func decisionID(ctx context.Context, broker *client.Client, kind pb.DecisionKind, ref string) (string, error) {
	if words.DecisionIDs.MatchString(ref) {
		return ref, nil
	}
	page, err := broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{Kind: kind, Scope: ref, PageSize: 1})
	if err != nil {
		return "", err
	}
	if len(page.GetDecisions()) == 0 {
		return "", status.Errorf(codes.NotFound, "there is no %s of %q in this session", prompt.Either(kind == 0, "decision", prompt.Enum(kind)), ref)
	}
	return page.GetDecisions()[0].GetId(), nil
}

func newDecisionGetCommand(c *command.Caller, kind pb.DecisionKind) *cobra.Command {
	group := prompt.Either(kind == 0, "decision", prompt.Enum(kind))
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "get SCOPE|ID",
		Short: "Show the submission and the verdicts, or wait for one",
		Long: `Show what was submitted and the verdicts of all rounds. With --wait, wait for the
verdict; the exit codes are those of brokerctl review submit.`,
		Example:           "  brokerctl " + group + " get " + prompt.Either(kind == 0, "d-4711", "login") + "\n  brokerctl " + group + " get d-4711 --wait 90s",
		Args:              command.Exactly("the scope or the id"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(kind)),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := decisionID(cmd.Context(), broker, kind, args[0])
			if err != nil {
				return err
			}
			answer, err := broker.Decisions().GetDecision(cmd.Context(), &pb.GetDecisionRequest{Id: id})
			if err != nil {
				return err
			}
			if wait > 0 {
				return awaitVerdict(c, cmd, broker, answer.GetDecision(), wait)
			}
			return c.Show(cmd, answer.GetDecision(), func(w io.Writer) { printDecision(c, w, answer.GetDecision()) })
		},
	}
	command.DurationVar(cmd.Flags(), &wait, "wait", 0, "how long to wait for the verdict; 0: do not wait")
	return cmd
}

// awaitVerdict shows a decision once it has a verdict; the exit code is the verdict's.
func awaitVerdict(c *command.Caller, cmd *cobra.Command, broker *client.Client, d *pb.Decision, wait time.Duration) error {
	decided, err := c.AwaitOutcome(cmd.Context(), "the verdict", wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := broker.Decisions().GetDecision(cmd.Context(), &pb.GetDecisionRequest{Id: d.GetId(), Wait: left})
		if err == nil {
			d = answer.GetDecision()
		}
		return err == nil && d.GetState() != DecisionOpen && d.GetState() != decisionEscalated, err
	})
	if err != nil {
		return err
	}
	if !decided {
		return problem.Failf(problem.ExitNothing, "no verdict on %s within %s; to wait on: %s",
			prompt.Clean(d.GetId()), prompt.Duration(wait), c.Command("decision get %s --wait %s", d.GetId(), prompt.Duration(wait)))
	}
	if err := showDecision(c, cmd, d); err != nil {
		return err
	}
	switch {
	case d.GetState() == decisionCancelled:
		return problem.Failf(problem.ExitConflict, "")
	case d.GetState() == decisionRevising, d.GetVerdict() == "defer":
		return problem.Failf(problem.ExitRevise, "")
	case d.GetVerdict() == "reject":
		return problem.Failf(problem.ExitRejected, "")
	}
	return nil
}

// showDecision prints the state of a decision in a line, with the feedback of its newest verdict.
func showDecision(c *command.Caller, cmd *cobra.Command, d *pb.Decision) error {
	return c.Show(cmd, d, func(w io.Writer) { c.Voice().Decision(w, d) })
}

// printDecision shows a decision with its content and all verdicts.
func printDecision(c *command.Caller, w io.Writer, d *pb.Decision) {
	if prompt.ForModel(w) {
		fmt.Fprintln(w, prompt.OneLine(prompt.DecisionLine(d)))
	}
	l := c.NewLabels(w)
	l.Line("decision", d.GetId())
	l.Line("title", d.GetTitle())
	l.Line("kind", prompt.Enum(d.GetKind()))
	l.State("state", prompt.Enum(d.GetState()))
	l.Line("scope", d.GetScope())
	l.Line("opened by", d.GetOpener())
	l.Line("decides", prompt.Addressee(d))
	l.Line("verdicts", strings.Join(d.GetVerdicts(), ", "))
	l.Line("round", fmt.Sprintf("%d of %d", d.GetRound(), max(d.GetMaxRounds(), d.GetRound())))
	l.Line("escalated", prompt.Either(d.GetEscalatedTo() == "", "", "to role:"+d.GetEscalatedTo()))
	l.Line("note", d.GetNote())
	l.Line("deadline", c.When(d.GetDeadline()))
	l.Line("task", d.GetTaskId())
	l.Line("thread", prompt.Either(d.GetThreadId() == d.GetId(), "", d.GetThreadId()))
	l.Line("files", prompt.Files(d.GetContent().GetFiles()))
	l.Line("artifacts", strings.Join(d.GetContent().GetArtifacts(), ", "))
	l.Line("opened", c.When(d.GetOpenedAt()))
	l.Flush()
	for _, s := range []string{d.GetContent().GetBody(), d.GetContent().GetPayload()} {
		if s != "" {
			output.Apart(w)
			fmt.Fprintln(w, strings.TrimRight(prompt.Clean(s), "\n"))
		}
	}
	for _, v := range d.GetRounds() {
		output.Apart(w)
		fmt.Fprintf(w, "round %d: %s by %s, %s%s\n", v.GetRound(), prompt.Clean(v.GetVerdict()), prompt.Clean(v.GetDecidedBy()), c.When(v.GetDecidedAt()),
			prompt.Either(v.GetReason() != "", ": "+prompt.Clean(v.GetReason()), ""))
		c.Voice().Feedback(w, v)
	}
	c.Voice().AfterDecision(w, d)
}

func newDecisionListCommand(c *command.Caller, kind pb.DecisionKind) *cobra.Command {
	request := &pb.ListDecisionsRequest{Kind: kind}
	group := prompt.Either(kind == 0, "decision", prompt.Enum(kind))
	var states []string
	var kindName string
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List unfinished " + group + "s, newest first",
		Long:              "List unfinished " + group + "s, or with --all the finished ones too." + prompt.Either(kind == 0, "", "\n\nThe flags are those of brokerctl decision list."),
		Annotations:       map[string]string{command.FlagsOf: prompt.Either(kind == 0, "", "decision list")},
		Example:           "  brokerctl " + group + " list\n  brokerctl " + group + " list --all --owed-by critic-1 -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kindName != "" {
				number, err := output.ParseEnum("kind", pb.DecisionKind(0).Descriptor(), kindName)
				if err != nil {
					return err
				}
				request.Kind = pb.DecisionKind(number)
			}
			for _, name := range states {
				number, err := output.ParseEnum("state", pb.DecisionState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.DecisionState(number))
			}
			if len(states) == 0 && !all {
				request.States = words.UnfinishedDecisions
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			found, err := command.Pages(limit, func(size int32, token string) ([]*pb.Decision, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Decisions().ListDecisions(cmd.Context(), request)
				return page.GetDecisions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, found, DecisionView(c, "no "+group+"s"))
		},
	}
	f := cmd.Flags()
	stateNames := jsonform.EnumNames(pb.DecisionState(0).Descriptor())
	f.BoolVar(&all, "all", false, "finished ones too")
	f.StringArrayVar(&states, "state", nil, "only this state: "+strings.Join(stateNames, ", ")+"; repeatable")
	if kind == 0 {
		kinds := jsonform.EnumNames(pb.DecisionKind(0).Descriptor())
		f.StringVar(&kindName, "kind", "", "only this kind: "+strings.Join(kinds, ", "))
		command.Must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)))
	}
	f.StringVar(&request.Opener, "opened-by", "", "only those of this agent")
	f.StringVar(&request.OwedBy, "owed-by", "", "only those that wait for this agent")
	f.StringVar(&request.TaskId, "task", "", "only those of this task")
	f.StringVar(&request.Scope, "scope", "", "only those of this scope")
	command.LimitVar(f, &limit, 0)
	cmd.MarkFlagsMutuallyExclusive("all", "state")
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp)))
	names := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.Words(cmd, words.AgentNames)
	}
	command.Must(cmd.RegisterFlagCompletionFunc("opened-by", names))
	command.Must(cmd.RegisterFlagCompletionFunc("owed-by", names))
	return cmd
}

// DecisionView lists decisions.
func DecisionView(c *command.Caller, none string) output.View[*pb.Decision] {
	return output.View[*pb.Decision]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "KIND", Rank: 2}, {Name: "SCOPE", Min: 8}, {Name: "ROUND", Rank: 4}, {Name: "STATE", State: true}, {Name: "VERDICT"},
			{Name: "OPENED BY", Rank: 1, Min: 8}, {Name: "DECIDES", Min: 8}, {Name: "CHANGED", Rank: 3}, {Name: "TITLE", Min: 16},
		},
		Row: func(d *pb.Decision) []string {
			v := prompt.NewestVerdict(d)
			decides := prompt.Addressee(d)
			switch {
			case d.GetState() == DecisionDecided:
				decides = v.GetDecidedBy()
			case d.GetEscalatedTo() != "":
				decides = "role:" + d.GetEscalatedTo()
			}
			return []string{
				d.GetId(), prompt.Enum(d.GetKind()), d.GetScope(), fmt.Sprintf("%d of %d", d.GetRound(), max(d.GetMaxRounds(), d.GetRound())),
				prompt.Enum(d.GetState()), d.GetVerdict(), d.GetOpener(), decides, c.When(d.GetChangedAt()), d.GetTitle(),
			}
		},
		None: none,
	}
}
