package decisions

import (
	"context"
	"fmt"
	"strings"
	"time"

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
		newSubmitCommand(c, KindReview),
		verdict(KindReview, "approve", "Approve the submitted work; this ends the review", "Looks right to me").Command(c),
		verdict(KindReview, "revise", "Ask for changes; the producer submits again", "Line 42 drops an error").Command(c),
		verdict(KindReview, "reject", "Reject the submitted work; this ends the review", "We no longer need this").Command(c),
		decisionGet(KindReview).Command(c), decisionList(KindReview).Command(c))
}

// NewPlanCommand returns the commands of brokerctl plan.
func NewPlanCommand(c *command.Caller) *cobra.Command {
	return command.Group("plan", "Submit plans, and approve them", `A plan is submitted, revised and approved like a review (brokerctl help review).`,
		"  brokerctl plan list",
		newSubmitCommand(c, kindPlan),
		verdict(kindPlan, "approve", "Approve a plan", "Go ahead").Command(c),
		verdict(kindPlan, "revise", "Ask for changes of a plan", "Split the second step").Command(c),
		verdict(kindPlan, "reject", "Reject a plan", "Out of scope").Command(c),
		decisionGet(kindPlan).Command(c), decisionList(kindPlan).Command(c))
}

// A submission is what is submitted for a decision.
type submission struct {
	command.ContentOptions
	request  pb.OpenDecisionRequest
	deadline string
	wait     time.Duration
}

// AddFlags adds the options; wait is the default of --wait.
func (o *submission) AddFlags(cmd *cobra.Command, wait time.Duration) {
	f := cmd.Flags()
	o.ContentOptions.AddFlags(f)
	f.StringVar(&o.request.TaskId, "task", "", "the task it belongs to")
	f.StringVar(&o.request.ThreadId, "thread", "", "the thread of its messages")
	f.StringVar(&o.deadline, "deadline", "", "when it escalates without a verdict: a duration such as 30m, or a time")
	f.Int32Var(&o.request.MaxRounds, "max-rounds", 3, "rounds with the verdict revise until it escalates")
	command.DurationVar(f, &o.wait, "wait", wait, "how long to wait for the verdict; 0: do not wait")
	command.AddRequestID(cmd, &o.request.RequestId)
}

// read fills in the request from the options.
func (o *submission) read(c *command.Caller, cmd *cobra.Command) (err error) {
	m, err := o.Message(c, cmd)
	if err != nil {
		return err
	}
	o.request.Content = &pb.DecisionContent{Body: m.GetBody(), Payload: m.GetPayload(), Files: m.GetFiles(), Artifacts: m.GetArtifacts()}
	o.request.Deadline, err = c.ParseTime("deadline", o.deadline, +1)
	return err
}

// to sets the addressee.
func (o *submission) to(receiver string) error {
	target, err := command.ParseReceiver(receiver)
	if err != nil {
		return err
	}
	switch to := target.GetTo().(type) {
	case *pb.Target_Agent:
		o.request.To = &pb.OpenDecisionRequest_Agent{Agent: to.Agent}
	case *pb.Target_Role:
		o.request.To = &pb.OpenDecisionRequest_Role{Role: to.Role}
	default:
		return problem.Usagef("receiver %q: an agent or role:NAME decides", receiver)
	}
	return nil
}

const passTokenHelp = "pass the token producer_critic SCOPE, which the agent holds, with each round"

// submitWait is how long submit waits by default: shorter than the 2 min that many agents' tools
// give a command.
const submitWait = 90 * time.Second

func newSubmitCommand(c *command.Caller, kind pb.DecisionKind) *cobra.Command {
	o := submission{request: pb.OpenDecisionRequest{Kind: kind}}
	noun, example := "work for review", `  brokerctl --agent builder-1 review submit login critic-1 "The login page"
  git diff | brokerctl review submit login role:critic --body -`
	if kind == kindPlan {
		noun, example = "a plan", `  brokerctl --agent builder-1 plan submit login lead --body @plan.md`
	}
	cmd := &cobra.Command{
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
		Example:           example,
		Args:              command.Between(1, "the scope", "the receiver", "the title"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(kind), words.Owners),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request.Scope = args[0]
			if err := o.read(c, cmd); err != nil {
				return err
			}
			if len(args) > 1 {
				if err := o.to(args[1]); err != nil {
					return err
				}
			}
			if len(args) > 2 {
				o.request.Title = args[2]
			}
			return submit(c, cmd, &o)
		},
	}
	o.AddFlags(cmd, submitWait)
	if kind == KindReview {
		cmd.Flags().BoolVar(&o.request.PassToken, "pass-token", false, passTokenHelp)
	}
	return cmd
}

// submit opens a decision, or the next round of the calling agent's own one, and waits for the
// verdict. While that one waits for its verdict, submit sends nothing, and refuses other content.
func submit(c *command.Caller, cmd *cobra.Command, o *submission) error {
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	d, err := ownDecision(cmd.Context(), broker, c, &o.request)
	switch {
	case err != nil:
		return err
	case d.GetState() == pb.DecisionState_DECISION_STATE_REVISING:
		answer, err := broker.Decisions().ResubmitDecision(cmd.Context(), &pb.ResubmitDecisionRequest{
			RequestId: o.request.RequestId, Id: d.GetId(), Title: o.request.Title, Content: o.request.Content, Deadline: o.request.Deadline,
			PassToken: o.request.PassToken,
		})
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	case d == nil && o.request.To == nil:
		return problem.Usagef("the receiver is missing: name an agent or role:NAME that decides")
	case d == nil:
		answer, err := broker.Decisions().OpenDecision(cmd.Context(), &o.request)
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	default:
		if err := sameRound(c, cmd, broker, o, d); err != nil {
			return err
		}
	}
	if o.wait == 0 {
		return showDecision(c, cmd, d)
	}
	return awaitVerdict(c, cmd, broker, d, o.wait)
}

// sameRound reports that the round of a decision is open, and fails if a submission differs from it.
// An absent title or content does not differ.
func sameRound(c *command.Caller, cmd *cobra.Command, broker *client.Client, o *submission, d *pb.Decision) error {
	answer, err := broker.Decisions().GetDecision(cmd.Context(), &pb.GetDecisionRequest{Id: d.GetId()})
	if err != nil {
		return err
	}
	d = answer.GetDecision()
	in := &o.request
	differs := in.GetPassToken() && !d.GetPassToken() || in.GetTitle() != "" && in.GetTitle() != d.GetTitle() ||
		in.GetAgent() != "" && in.GetAgent() != d.GetAgent() ||
		in.GetRole() != "" && in.GetRole() != d.GetRole() ||
		!proto.Equal(in.GetContent(), &pb.DecisionContent{}) && !proto.Equal(in.GetContent(), d.GetContent())
	open := fmt.Sprintf("round %d of %s is open, and its receiver and content are unchanged", d.GetRound(), d.GetId())
	if differs {
		if in.GetPassToken() && !d.GetPassToken() {
			open += ", and it passes no token"
		}
		return problem.Failf(problem.ExitConflict, "%s: wait for the verdict (%s), or cancel it (%s) and submit again",
			open, c.Command("decision get %s --wait 90s", d.GetId()), c.Command("decision cancel %s", d.GetId()))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: warning: %s\n", open)
	return nil
}

// ownDecision returns the unfinished decision of the kind and scope of a request that the calling
// agent opened; nil if there is none.
func ownDecision(ctx context.Context, broker *client.Client, c *command.Caller, request *pb.OpenDecisionRequest) (*pb.Decision, error) {
	if request.GetScope() == "" {
		return nil, nil
	}
	s, err := c.Settings()
	if err != nil {
		return nil, err
	}
	opener := prompt.Either(s.Agent.Value == "", "system", s.Agent.Value)
	page, err := broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{
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

// NewAgentShutdownCommand returns the command brokerctl agent shutdown.
func NewAgentShutdownCommand(c *command.Caller) *cobra.Command {
	o := submission{request: pb.OpenDecisionRequest{Kind: KindShutdown}}
	cmd := &cobra.Command{
		Use:   "shutdown NAME [TEXT...]",
		Short: "Ask an agent to shut down gracefully",
		Long: `Ask an agent to shut down. It answers with decision accept, defer or reject.
Operators may ask, and agents of the session's director roles.

Exit codes with --wait: 0 accepted, 10 deferred, 11 rejected, 4 no answer.`,
		Example:           `  brokerctl --agent lead agent shutdown builder-1 "The work is done" --wait 5m`,
		Args:              command.AtLeast("the agent"),
		ValidArgsFunction: c.CompleteArgs(false, words.AgentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request.Scope, o.request.Title = args[0], strings.Join(args[1:], " ")
			o.request.To = &pb.OpenDecisionRequest_Agent{Agent: args[0]}
			var err error
			if o.request.Deadline, err = c.ParseTime("deadline", o.deadline, +1); err != nil {
				return err
			}
			return submit(c, cmd, &o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.deadline, "deadline", "", "when it escalates without an answer: a duration such as 30m, or a time")
	command.DurationVar(f, &o.wait, "wait", 0, "how long to wait for the answer; 0: do not wait")
	command.AddRequestID(cmd, &o.request.RequestId)
	return cmd
}
