package decisions

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// The kinds of decisions that have separate commands.
const (
	KindReview   = pb.DecisionKind_DECISION_KIND_REVIEW
	kindPlan     = pb.DecisionKind_DECISION_KIND_PLAN
	KindShutdown = pb.DecisionKind_DECISION_KIND_SHUTDOWN
)

// NewReviewCommand returns the commands of brokerctl review.
func NewReviewCommand(c *command.Caller) *cobra.Command {
	return command.Group("review", "Submit work for review, and review it", `A review has rounds: review submit sends the work to a reviewer, and review
approve, revise or reject is the verdict. SCOPE names what is reviewed, such as a
feature. After revise in the last round (--max-rounds), or at the --deadline, an
agent of the session's escalate-to roles decides.`,
		"  brokerctl review list",
		submitCommand(KindReview).Command(c),
		verdict(KindReview, "approve", "Approve the submitted work; this ends the review", "Looks right to me").Command(c),
		verdict(KindReview, "revise", "Ask for changes; the producer submits again", "Line 42 drops an error").Command(c),
		verdict(KindReview, "reject", "Reject the submitted work; this ends the review", "We no longer need this").Command(c),
		decisionGet(KindReview).Command(c), decisionList(KindReview).Command(c))
}

// NewPlanCommand returns the commands of brokerctl plan.
func NewPlanCommand(c *command.Caller) *cobra.Command {
	return command.Group("plan", "Submit plans, and approve them", `A plan is submitted, revised and approved like a review (brokerctl help review).`,
		"  brokerctl plan list",
		submitCommand(kindPlan).Command(c),
		verdict(kindPlan, "approve", "Approve a plan", "Go ahead").Command(c),
		verdict(kindPlan, "revise", "Ask for changes of a plan", "Split the second step").Command(c),
		verdict(kindPlan, "reject", "Reject a plan", "Out of scope").Command(c),
		decisionGet(kindPlan).Command(c), decisionList(kindPlan).Command(c))
}

// A submission opens a decision, or the next round of the calling agent's own one, and may wait for the verdict.
type submission = command.Spec[*pb.OpenDecisionRequest, *pb.OpenDecisionResponse]

// newSubmission returns a command that submits content for a decision of a kind; 0: of the kind that an option says.
func newSubmission(kind pb.DecisionKind, page command.Page, args []command.Arg, options ...command.Option) submission {
	return submission{
		Page: page,
		Call: submit,
		Args: args,
		Options: append(append(command.ContentOptions("content", command.JSON), options...),
			command.Option{Field: "task_id", Name: "task", Kind: words.Task, Usage: "the task it belongs to"},
			command.Option{Field: "thread_id", Name: "thread", Kind: command.Kind{Name: "THREAD"},
				Usage: "the thread of its messages"},
			command.Option{Field: "deadline", Kind: command.Ahead,
				Usage: "when it escalates without a verdict: a duration such as 30m, or a time"},
			command.Option{Field: "max_rounds", Value: "3", Usage: "rounds with the verdict revise until it escalates"},
			command.RequestID),
		Prepare: func(g *command.Given, q *pb.OpenDecisionRequest) error {
			if kind != 0 {
				q.Kind = kind
			}
			if q.Content == nil {
				q.Content = &pb.DecisionContent{}
			}
			at := slices.IndexFunc(args, func(a command.Arg) bool { return a.Name == receiver.Name })
			if at < len(g.Args) {
				if err := address(q, g.Args[at]); err != nil {
					return err
				}
			}
			return g.OneSource()
		},
		After: awaitVerdict[*pb.OpenDecisionRequest, *pb.OpenDecisionResponse],
		Shown: "decision",
		Text:  decisionText[*pb.OpenDecisionRequest, *pb.OpenDecisionResponse],
	}
}

// receiver is the argument for the agent or role that decides.
var receiver = command.Arg{Name: "the receiver", Kind: command.Kind{Words: words.Owners}}

// address sets the agent or role that decides.
func address(q *pb.OpenDecisionRequest, receiver string) error {
	target, err := command.ParseReceiver(receiver)
	if err != nil {
		return err
	}
	switch to := target.GetTo().(type) {
	case *pb.Target_Agent:
		q.To = &pb.OpenDecisionRequest_Agent{Agent: to.Agent}
	case *pb.Target_Role:
		q.To = &pb.OpenDecisionRequest_Role{Role: to.Role}
	default:
		return problem.Usagef("receiver %q: an agent or role:NAME decides", receiver)
	}
	return nil
}

var passToken = command.Option{
	Field: "pass_token", Usage: "pass the token producer_critic SCOPE, which the agent holds, with each round",
}

// submitWait is how long submit waits by default: shorter than the 2 min that many agents' tools
// give a command.
const submitWait = "1m30s"

func submitCommand(kind pb.DecisionKind) submission {
	wait := waitForVerdict
	wait.Value = submitWait
	noun, options := "work for review", []command.Option{wait, passToken}
	example := `  brokerctl --agent builder-1 review submit login critic-1 "The login page"
  git diff | brokerctl review submit login role:critic --body -`
	if kind == kindPlan {
		noun, options = "a plan", options[:1]
		example = `  brokerctl --agent builder-1 plan submit login lead --body @plan.md`
	}
	return newSubmission(kind, command.Page{
		Use:   "submit SCOPE [RECEIVER [TITLE]]",
		Short: "Submit " + noun + " and wait for the verdict",
		Long: "Submit " + noun + ` and wait for the verdict, up to --wait. RECEIVER is another
agent, or role:NAME. After the verdict revise, the same command submits the next
round to the same receiver.

Exit codes:
  0   approved; with --wait 0: submitted
  10  revise: change it and submit it again
  11  rejected
  4   no verdict came within --wait
  5   a round with other content is open`,
		Example: example,
	}, []command.Arg{
		{Field: "scope", Name: "the scope", Kind: command.Kind{Words: words.DecisionWords(kind)}},
		receiver, {Field: "title", Name: "the title", Text: true},
	}, options...)
}

// submit opens a decision, or the next round of the calling agent's own one. While that one waits for its verdict,
// submit sends nothing, and refuses other content.
func submit(g *command.Given, broker *client.Client, q *pb.OpenDecisionRequest) (*pb.OpenDecisionResponse, error) {
	d, err := ownDecision(g, broker, q)
	switch {
	case err != nil:
		return nil, err
	case d.GetState() == decisionRevising:
		a, err := broker.Decisions().ResubmitDecision(g.Cmd.Context(), &pb.ResubmitDecisionRequest{
			RequestId: q.RequestId, Id: d.GetId(), Title: q.Title, Content: q.Content, Deadline: q.Deadline,
			PassToken: q.PassToken,
		})
		return &pb.OpenDecisionResponse{Decision: a.GetDecision()}, err
	case d == nil && q.To == nil:
		return nil, problem.Usagef("the receiver is missing: name an agent or role:NAME that decides")
	case d == nil:
		return broker.Decisions().OpenDecision(g.Cmd.Context(), q)
	}
	return &pb.OpenDecisionResponse{Decision: d}, sameRound(g, broker, q, d)
}

// sameRound reports that the round of a decision is open, and fails if a submission differs from it.
// An absent title or content does not differ.
func sameRound(g *command.Given, broker *client.Client, in *pb.OpenDecisionRequest, d *pb.Decision) error {
	answer, err := broker.Decisions().GetDecision(g.Cmd.Context(), &pb.GetDecisionRequest{Id: d.GetId()})
	if err != nil {
		return err
	}
	d = answer.GetDecision()
	differs := in.GetPassToken() && !d.GetPassToken() || in.GetTitle() != "" && in.GetTitle() != d.GetTitle() ||
		in.GetAgent() != "" && in.GetAgent() != d.GetAgent() ||
		in.GetRole() != "" && in.GetRole() != d.GetRole() ||
		proto.Size(in.GetContent()) > 0 && !proto.Equal(in.GetContent(), d.GetContent())
	open := fmt.Sprintf("round %d of %s is open, and its receiver and content are unchanged", d.GetRound(), d.GetId())
	if differs {
		if in.GetPassToken() && !d.GetPassToken() {
			open += ", and it passes no token"
		}
		return problem.Failf(problem.ExitConflict, "%s: wait for the verdict (%s), or cancel it (%s) and submit again",
			open, g.Command("decision get %s --wait 90s", d.GetId()), g.Command("decision cancel %s", d.GetId()))
	}
	fmt.Fprintf(g.Cmd.ErrOrStderr(), "brokerctl: warning: %s\n", open)
	return nil
}

// ownDecision returns the unfinished decision of the kind and scope of a request that the calling
// agent opened; nil if there is none.
func ownDecision(g *command.Given, broker *client.Client, request *pb.OpenDecisionRequest) (*pb.Decision, error) {
	if request.GetScope() == "" {
		return nil, nil
	}
	s, err := g.Settings()
	if err != nil {
		return nil, err
	}
	opener := prompt.Either(s.Agent.Value == "", "system", s.Agent.Value)
	page, err := broker.Decisions().ListDecisions(g.Cmd.Context(), &pb.ListDecisionsRequest{
		Kind: request.GetKind(), Scope: request.GetScope(), Opener: opener, States: words.UnfinishedDecisions, PageSize: 1,
	})
	if err != nil || len(page.GetDecisions()) == 0 {
		return nil, err
	}
	return page.GetDecisions()[0], nil
}

// verdict returns a command that gives one verdict on reviews or plans.
func verdict(kind pb.DecisionKind, verdict, about, example string) ruling {
	group, long, flagsOf := groupOf(kind), about+".", ""
	if verdict != "approve" {
		flagsOf = group + " approve"
		long += "\n\nThe flags are those of brokerctl " + flagsOf + "."
	}
	return newRuling(kind, verdict, flagsOf, command.Page{
		Use:     verdict + " SCOPE|ID [TEXT...]",
		Short:   about,
		Long:    long,
		Example: "  brokerctl --agent critic-1 " + group + " " + verdict + " login " + prompt.ShellWord(example),
	}, decisionArg(kind))
}

// AgentShutdown is brokerctl agent shutdown.
var AgentShutdown = submission{
	Page: command.Page{
		Use:   "shutdown NAME [TEXT...]",
		Short: "Ask an agent to shut down gracefully",
		Long: `Ask an agent to shut down. It answers with decision accept, defer or reject.
Operators may ask, and agents of the session's director roles.

Exit codes with --wait: 0 accepted, 10 deferred, 11 rejected, 4 no answer.`,
		Example: `  brokerctl --agent lead agent shutdown builder-1 "The work is done" --wait 5m`,
	},
	Call: submit,
	Args: []command.Arg{
		{Field: "scope", Name: "the agent", Kind: words.Agent},
		{Field: "title", Name: "the text", Text: true, Kind: command.Joined},
	},
	Options: []command.Option{
		{Field: "deadline", Kind: command.Ahead,
			Usage: "when it escalates without an answer: a duration such as 30m, or a time"},
		{Name: "wait", Type: "duration", Usage: "how long to wait for the answer; 0: do not wait"},
		command.RequestID,
	},
	Prepare: func(_ *command.Given, q *pb.OpenDecisionRequest) error {
		q.Kind, q.To = KindShutdown, &pb.OpenDecisionRequest_Agent{Agent: q.Scope}
		return nil
	},
	After: awaitVerdict[*pb.OpenDecisionRequest, *pb.OpenDecisionResponse],
	Shown: "decision",
	Text:  decisionText[*pb.OpenDecisionRequest, *pb.OpenDecisionResponse],
}
