package decisions

import (
	"context"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
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

// find makes a call about the decision that the field id of a request names, or the scope of a kind.
func find[Q, A proto.Message](kind pb.DecisionKind) command.Call[Q, A] {
	return func(g *command.Given, broker *client.Client, q Q) (a A, err error) {
		request, field := q.ProtoReflect(), q.ProtoReflect().Descriptor().Fields().ByName("id")
		id, err := decisionID(g.Cmd.Context(), broker, kind, request.Get(field).String())
		if err != nil {
			return a, err
		}
		request.Set(field, protoreflect.ValueOfString(id))
		return command.Plain[Q, A](g, broker, q)
	}
}

// groupOf is the group of the commands for a kind of decisions.
func groupOf(kind pb.DecisionKind) string {
	return prompt.Either(kind == 0, "decision", prompt.Enum(kind))
}

func decisionGet(kind pb.DecisionKind) command.Spec[*pb.GetDecisionRequest, *pb.GetDecisionResponse] {
	get := "  brokerctl " + groupOf(kind) + " get "
	return command.Spec[*pb.GetDecisionRequest, *pb.GetDecisionResponse]{
		Page: command.Page{
			Use:   "get SCOPE|ID",
			Short: "Show the submission and the verdicts, or wait for one",
			Long: `Show what was submitted and the verdicts of all rounds. With --wait, wait for the
verdict; the exit codes are those of brokerctl review submit.`,
			Example: get + prompt.Either(kind == 0, "d-4711", "login") + "\n" + get + "d-4711 --wait 90s",
		},
		Call:    find[*pb.GetDecisionRequest, *pb.GetDecisionResponse](kind),
		Args:    []command.Arg{decisionArg(kind)},
		Options: []command.Option{waitForVerdict},
		Narrow:  kind != 0,
		After:   awaitVerdict[*pb.GetDecisionRequest, *pb.GetDecisionResponse],
		Shown:   "decision",
		Text: func(g *command.Given, w io.Writer, _ *pb.GetDecisionRequest, a *pb.GetDecisionResponse) {
			printDecision(g.Caller, w, a.GetDecision())
		},
	}
}

// decisionArg is the argument that names a decision of a kind.
func decisionArg(kind pb.DecisionKind) command.Arg {
	return command.Arg{Field: "id", Name: "the scope or the id", Kind: command.Kind{Words: words.DecisionWords(kind)}}
}

var waitForVerdict = command.Option{
	Name: "wait", Type: "duration", Says: "wait", Usage: "how long to wait for the verdict; 0: do not wait",
}

// awaitVerdict shows a decision once it has a verdict, with --wait; the exit code is the verdict's.
func awaitVerdict[Q any, A interface{ GetDecision() *pb.Decision }](
	g *command.Given, broker *client.Client, _ Q, a A,
) (done bool, err error) {
	d, wait := a.GetDecision(), g.Duration("wait")
	if wait == 0 {
		return false, nil
	}
	decided, err := g.AwaitOutcome(g.Cmd.Context(), "the verdict", wait, func(left *durationpb.Duration) (bool, error) {
		now, err := broker.Decisions().GetDecision(g.Cmd.Context(), &pb.GetDecisionRequest{Id: d.GetId(), Wait: left})
		if err == nil {
			d = now.GetDecision()
		}
		return err == nil && d.GetState() != DecisionOpen && d.GetState() != decisionEscalated, err
	})
	if err != nil {
		return true, err
	}
	if !decided {
		again := g.Command("decision get %s --wait %s", d.GetId(), prompt.Duration(wait))
		return true, problem.Failf(problem.ExitNothing, "no verdict on %s within %s; to wait on: %s",
			prompt.Clean(d.GetId()), prompt.Duration(wait), again)
	}
	if err := g.Show(g.Cmd, d, func(w io.Writer) { g.Voice().Decision(w, d) }); err != nil {
		return true, err
	}
	return true, verdictError(d)
}

// verdictError is the exit code of a verdict.
func verdictError(d *pb.Decision) error {
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

type listing = command.Listing[*pb.ListDecisionsRequest, *pb.ListDecisionsResponse, *pb.Decision]

func decisionList(kind pb.DecisionKind) listing {
	group := groupOf(kind)
	agent := command.Kind{Name: "TEXT", Words: words.AgentNames}
	l := listing{
		Page: command.Page{
			Use:     "list",
			Short:   "List unfinished " + group + "s, newest first",
			Long:    "List unfinished " + group + "s, or with --all the finished ones too.",
			Example: "  brokerctl " + group + " list\n  brokerctl " + group + " list --all --owed-by critic-1 -o json",
		},
		Items: (*pb.ListDecisionsResponse).GetDecisions,
		Options: []command.Option{
			{Name: "all", Type: "bool", Usage: "finished ones too"},
			{Field: "states", Name: "state", Usage: "only this state: {}; repeatable"},
			{Field: "opener", Name: "opened-by", Kind: agent, Usage: "only those of this agent"},
			{Field: "owed_by", Kind: agent, Usage: "only those that wait for this agent"},
			{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only those of this task"},
			{Field: "scope", Usage: "only those of this scope"},
		},
		Apart: [][]string{{"all", "state"}},
		Prepare: func(g *command.Given, q *pb.ListDecisionsRequest) error {
			if kind != 0 {
				q.Kind = kind
			}
			if len(q.GetStates()) == 0 && !g.On("all") {
				q.States = words.UnfinishedDecisions
			}
			return nil
		},
		View: func(g *command.Given) output.View[*pb.Decision] { return DecisionView(g.Caller, "no "+group+"s") },
	}
	if kind == 0 {
		l.Options = append(l.Options, command.Option{Field: "kind", Usage: "only this kind: {}"})
	} else {
		l.Long, l.FlagsOf = l.Long+"\n\nThe flags are those of brokerctl decision list.", "decision list"
	}
	return l
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
