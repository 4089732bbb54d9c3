package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// The states of decisions, short.
const (
	decisionOpen      = pb.DecisionState_DECISION_STATE_OPEN
	decisionRevising  = pb.DecisionState_DECISION_STATE_REVISING
	decisionEscalated = pb.DecisionState_DECISION_STATE_ESCALATED
	decisionDecided   = pb.DecisionState_DECISION_STATE_DECIDED
	decisionCancelled = pb.DecisionState_DECISION_STATE_CANCELLED
)

// unfinishedDecisions are the states of decisions that still change.
var unfinishedDecisions = []pb.DecisionState{decisionOpen, decisionRevising, decisionEscalated}

// decisionIDs are texts that name a decision by its id, not by its scope.
var decisionIDs = regexp.MustCompile(`^(d-)?[0-9]+$`)

// decisionID returns the id of a decision: the given one, or that of the newest decision of a scope.
func decisionID(ctx context.Context, broker *client.Client, kind pb.DecisionKind, ref string) (string, error) {
	if decisionIDs.MatchString(ref) {
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

// scopeOrID names a decision in a command: by its scope if that is no id, or by its id.
func scopeOrID(d *pb.Decision) string {
	if scope := d.GetScope(); scope != "" && !decisionIDs.MatchString(scope) {
		return scope
	}
	return d.GetId()
}

func newDecisionGetCommand(c *cli, kind pb.DecisionKind) *cobra.Command {
	group := prompt.Either(kind == 0, "decision", prompt.Enum(kind))
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "get SCOPE|ID",
		Short: "Show the submission and the verdicts, or wait for one",
		Long: `Show what was submitted and the verdicts of all rounds. With --wait, wait for the
verdict; the exit codes are those of brokerctl review submit.`,
		Example:           "  brokerctl " + group + " get " + prompt.Either(kind == 0, "d-4711", "login") + "\n  brokerctl " + group + " get d-4711 --wait 90s",
		Args:              exactly("the scope or the id"),
		ValidArgsFunction: c.completeArgs(false, decisionWords(kind)),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
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
				return c.awaitVerdict(cmd, broker, answer.GetDecision(), wait)
			}
			return c.show(cmd, answer.GetDecision(), func(w io.Writer) { c.printDecision(w, answer.GetDecision()) })
		},
	}
	durationVar(cmd.Flags(), &wait, "wait", 0, "how long to wait for the verdict; 0: do not wait")
	return cmd
}

// awaitVerdict shows a decision once it has a verdict; the exit code is the verdict's.
func (c *cli) awaitVerdict(cmd *cobra.Command, broker *client.Client, d *pb.Decision, wait time.Duration) error {
	decided, err := c.awaitOutcome(cmd.Context(), "the verdict", wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := broker.Decisions().GetDecision(cmd.Context(), &pb.GetDecisionRequest{Id: d.GetId(), Wait: left})
		if err == nil {
			d = answer.GetDecision()
		}
		return err == nil && d.GetState() != decisionOpen && d.GetState() != decisionEscalated, err
	})
	if err != nil {
		return err
	}
	if !decided {
		return failf(exitNothing, "no verdict on %s within %s; to wait on: %s",
			prompt.Clean(d.GetId()), prompt.Duration(wait), c.command("decision get %s --wait %s", d.GetId(), prompt.Duration(wait)))
	}
	if err := c.showDecision(cmd, d); err != nil {
		return err
	}
	switch {
	case d.GetState() == decisionCancelled:
		return failf(exitConflict, "")
	case d.GetState() == decisionRevising, d.GetVerdict() == "defer":
		return failf(exitRevise, "")
	case d.GetVerdict() == "reject":
		return failf(exitRejected, "")
	}
	return nil
}

// showDecision prints the state of a decision in a line, with the feedback of its newest verdict.
func (c *cli) showDecision(cmd *cobra.Command, d *pb.Decision) error {
	return c.show(cmd, d, func(w io.Writer) { c.voice().Decision(w, d) })
}

// printDecision shows a decision with its content and all verdicts.
func (c *cli) printDecision(w io.Writer, d *pb.Decision) {
	if prompt.ForModel(w) {
		fmt.Fprintln(w, prompt.OneLine(prompt.DecisionLine(d)))
	}
	l := c.newLabels(w)
	l.line("decision", d.GetId())
	l.line("title", d.GetTitle())
	l.line("kind", prompt.Enum(d.GetKind()))
	l.state("state", prompt.Enum(d.GetState()))
	l.line("scope", d.GetScope())
	l.line("opened by", d.GetOpener())
	l.line("decides", prompt.Addressee(d))
	l.line("verdicts", strings.Join(d.GetVerdicts(), ", "))
	l.line("round", fmt.Sprintf("%d of %d", d.GetRound(), max(d.GetMaxRounds(), d.GetRound())))
	l.line("escalated", prompt.Either(d.GetEscalatedTo() == "", "", "to role:"+d.GetEscalatedTo()))
	l.line("note", d.GetNote())
	l.line("deadline", c.when(d.GetDeadline()))
	l.line("task", d.GetTaskId())
	l.line("thread", prompt.Either(d.GetThreadId() == d.GetId(), "", d.GetThreadId()))
	l.line("files", prompt.Files(d.GetContent().GetFiles()))
	l.line("artifacts", strings.Join(d.GetContent().GetArtifacts(), ", "))
	l.line("opened", c.when(d.GetOpenedAt()))
	l.flush()
	for _, s := range []string{d.GetContent().GetBody(), d.GetContent().GetPayload()} {
		if s != "" {
			apart(w)
			fmt.Fprintln(w, strings.TrimRight(prompt.Clean(s), "\n"))
		}
	}
	for _, v := range d.GetRounds() {
		apart(w)
		fmt.Fprintf(w, "round %d: %s by %s, %s%s\n", v.GetRound(), prompt.Clean(v.GetVerdict()), prompt.Clean(v.GetDecidedBy()), c.when(v.GetDecidedAt()),
			prompt.Either(v.GetReason() != "", ": "+prompt.Clean(v.GetReason()), ""))
		c.voice().Feedback(w, v)
	}
	c.voice().AfterDecision(w, d)
}

func newDecisionListCommand(c *cli, kind pb.DecisionKind) *cobra.Command {
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
		Annotations:       map[string]string{flagsOf: prompt.Either(kind == 0, "", "decision list")},
		Example:           "  brokerctl " + group + " list\n  brokerctl " + group + " list --all --owed-by critic-1 -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kindName != "" {
				number, err := parseEnum("kind", pb.DecisionKind(0).Descriptor(), kindName)
				if err != nil {
					return err
				}
				request.Kind = pb.DecisionKind(number)
			}
			for _, name := range states {
				number, err := parseEnum("state", pb.DecisionState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.DecisionState(number))
			}
			if len(states) == 0 && !all {
				request.States = unfinishedDecisions
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			found, err := pages(limit, func(size int32, token string) ([]*pb.Decision, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Decisions().ListDecisions(cmd.Context(), request)
				return page.GetDecisions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, found, c.decisionView("no "+group+"s"))
		},
	}
	f := cmd.Flags()
	stateNames := jsonform.EnumNames(pb.DecisionState(0).Descriptor())
	f.BoolVar(&all, "all", false, "finished ones too")
	f.StringArrayVar(&states, "state", nil, "only this state: "+strings.Join(stateNames, ", ")+"; repeatable")
	if kind == 0 {
		kinds := jsonform.EnumNames(pb.DecisionKind(0).Descriptor())
		f.StringVar(&kindName, "kind", "", "only this kind: "+strings.Join(kinds, ", "))
		must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)))
	}
	f.StringVar(&request.Opener, "opened-by", "", "only those of this agent")
	f.StringVar(&request.OwedBy, "owed-by", "", "only those that wait for this agent")
	f.StringVar(&request.TaskId, "task", "", "only those of this task")
	f.StringVar(&request.Scope, "scope", "", "only those of this scope")
	limitVar(f, &limit, 0)
	cmd.MarkFlagsMutuallyExclusive("all", "state")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp)))
	names := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.words(cmd, agentNames)
	}
	must(cmd.RegisterFlagCompletionFunc("opened-by", names))
	must(cmd.RegisterFlagCompletionFunc("owed-by", names))
	return cmd
}

// decisionView lists decisions.
func (c *cli) decisionView(none string) view[*pb.Decision] {
	return view[*pb.Decision]{
		columns: []table.Column{
			{Name: "ID"}, {Name: "KIND", Rank: 2}, {Name: "SCOPE", Min: 8}, {Name: "ROUND", Rank: 4}, {Name: "STATE", State: true}, {Name: "VERDICT"},
			{Name: "OPENED BY", Rank: 1, Min: 8}, {Name: "DECIDES", Min: 8}, {Name: "CHANGED", Rank: 3}, {Name: "TITLE", Min: 16},
		},
		row: func(d *pb.Decision) []string {
			v := prompt.NewestVerdict(d)
			decides := prompt.Addressee(d)
			switch {
			case d.GetState() == decisionDecided:
				decides = v.GetDecidedBy()
			case d.GetEscalatedTo() != "":
				decides = "role:" + d.GetEscalatedTo()
			}
			return []string{
				d.GetId(), prompt.Enum(d.GetKind()), d.GetScope(), fmt.Sprintf("%d of %d", d.GetRound(), max(d.GetMaxRounds(), d.GetRound())),
				prompt.Enum(d.GetState()), d.GetVerdict(), d.GetOpener(), decides, c.when(d.GetChangedAt()), d.GetTitle(),
			}
		},
		none: none,
	}
}
