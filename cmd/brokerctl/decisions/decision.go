package decisions

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
)

// NewDecisionCommand returns the commands of brokerctl decision.
func NewDecisionCommand(c *command.Caller) *cobra.Command {
	return command.Group("decision", "Ask agents to decide, and decide", `One agent submits something, and another agent, or one agent of a role, decides.
Reviews, plans and shutdowns (agent shutdown) are separate kinds of decisions.`,
		"  brokerctl decision list --owed-by critic-1",
		newDecisionOpenCommand(c), newDecideCommand(c),
		newAnswerCommand(c, "accept", "Accept a shutdown"), newDeferCommand(c), newAnswerCommand(c, "reject", "Reject a shutdown"),
		newDecisionResubmitCommand(c), newDecisionCancelCommand(c), newDecisionGetCommand(c, 0), newDecisionListCommand(c, 0))
}

func newDecisionOpenCommand(c *command.Caller) *cobra.Command {
	o := submission{}
	var kind string
	kinds := jsonform.EnumNames(pb.DecisionKind(0).Descriptor())
	cmd := &cobra.Command{
		Use:   "open RECEIVER [TITLE]",
		Short: "Ask an agent, or one agent of a role, to decide",
		Long: `Ask an agent, or role:NAME, to decide. With --wait, the exit codes are those of
brokerctl review submit.`,
		Example: `  brokerctl --agent builder-1 decision open role:lead "Which database?" \
    --verdict postgres --verdict sqlite --wait 90s`,
		Args:              command.Between(1, "the receiver", "the title"),
		ValidArgsFunction: c.CompleteArgs(false, words.Owners),
		RunE: func(cmd *cobra.Command, args []string) error {
			number, err := output.ParseEnum("kind", pb.DecisionKind(0).Descriptor(), kind)
			if err != nil {
				return err
			}
			o.request.Kind = pb.DecisionKind(number)
			if err := o.read(c, cmd); err != nil {
				return err
			}
			if err := o.to(args[0]); err != nil {
				return err
			}
			if len(args) > 1 {
				o.request.Title = args[1]
			}
			return submit(c, cmd, &o)
		},
	}
	o.AddFlags(cmd, 0)
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "custom", strings.Join(kinds, ", "))
	f.StringVar(&o.request.Scope, "scope", "", "what it is about; one decision of a kind and scope is unfinished at a time")
	f.StringArrayVar(&o.request.Verdicts, "verdict", nil, "a possible verdict of a custom decision; repeatable")
	f.StringVar(&o.request.MessageType, "message-type", "", "type of a custom decision's message (default: request)")
	f.StringVar(&o.request.OutcomeType, "outcome-type", "", "type of the notice of its verdict (default: response)")
	command.Must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// rulingOptions are the options of a verdict.
type rulingOptions struct {
	reason    string
	feedback  []string
	requestID string
}

// AddFlags adds the options.
func (o *rulingOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "the reason, in place of TEXT; @FILE reads a file, - standard input")
	f.StringArrayVar(&o.feedback, "feedback", nil, "[SEVERITY: ][PATH[:LINE]: ]TEXT, severity note, minor, major or blocker; repeatable; @FILE: one per line")
	command.AddRequestID(cmd, &o.requestID)
}

// read fills in a verdict from the options.
func (o *rulingOptions) read(c *command.Caller, cmd *cobra.Command, request *pb.DecideRequest) error {
	if o.reason != "" {
		if request.Reason != "" {
			return problem.Usagef("the reason is given twice, as argument and with --reason")
		}
		var err error
		if request.Reason, err = c.Text(cmd, "reason", o.reason); err != nil {
			return err
		}
	}
	for _, s := range o.feedback {
		lines, err := c.Text(cmd, "feedback", s)
		if err != nil {
			return err
		}
		for line := range strings.Lines(lines) {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			f, err := parseFeedback(line)
			if err != nil {
				return err
			}
			request.Feedback = append(request.Feedback, f)
		}
	}
	request.RequestId = o.requestID
	return nil
}

// parseFeedback reads [SEVERITY: ][PATH[:LINE]: ]TEXT, as compilers print it.
func parseFeedback(s string) (*pb.Feedback, error) {
	f := &pb.Feedback{Text: s}
	if name, rest, ok := strings.Cut(f.Text, ": "); ok {
		if number, err := output.ParseEnum("feedback", pb.FeedbackSeverity(0).Descriptor(), name); err == nil && number != 0 {
			f.Severity, f.Text = pb.FeedbackSeverity(number), rest
		}
	}
	if place, rest, ok := strings.Cut(f.Text, ": "); ok && !strings.ContainsAny(place, " \t") {
		at, err := command.ParseFile(place)
		if err != nil {
			return nil, err
		}
		f.File, f.Line, f.Text = at.GetPath(), at.GetLine(), rest
	}
	return f, nil
}

// decide gives a verdict and prints the decision.
func decide(c *command.Caller, cmd *cobra.Command, o *rulingOptions, kind pb.DecisionKind, ref string, request *pb.DecideRequest) error {
	if err := o.read(c, cmd, request); err != nil {
		return err
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	if request.Id, err = decisionID(cmd.Context(), broker, kind, ref); err != nil {
		return err
	}
	answer, err := broker.Decisions().Decide(cmd.Context(), request)
	if err != nil {
		return err
	}
	return showDecision(c, cmd, answer.GetDecision())
}

func newDecideCommand(c *command.Caller) *cobra.Command {
	var o rulingOptions
	var until time.Duration
	cmd := &cobra.Command{
		Use:               "decide ID VERDICT [TEXT...]",
		Short:             "Give a verdict",
		Example:           `  brokerctl --agent lead decision decide d-4711 sqlite "One file is enough"`,
		Args:              command.AtLeast("the id", "the verdict"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.DecideRequest{Verdict: args[1], Reason: strings.Join(args[2:], " "), Until: after(c, until)}
			return decide(c, cmd, &o, 0, args[0], request)
		},
	}
	o.AddFlags(cmd)
	command.DurationVar(cmd.Flags(), &until, "for", 0, "with the verdict defer: for how long")
	return cmd
}

// newAnswerCommand returns decision accept or reject.
func newAnswerCommand(c *command.Caller, verdict, about string) *cobra.Command {
	var o rulingOptions
	cmd := &cobra.Command{
		Use:               verdict + " ID [TEXT...]",
		Short:             about,
		Long:              about + ".\n\nThe flags are those of brokerctl decision decide.",
		Annotations:       map[string]string{command.FlagsOf: "decision decide"},
		Example:           "  brokerctl --agent builder-1 decision " + verdict + " d-4711",
		Args:              command.AtLeast("the id"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(c, cmd, &o, 0, args[0], &pb.DecideRequest{Verdict: verdict, Reason: strings.Join(args[1:], " ")})
		},
	}
	o.AddFlags(cmd)
	return cmd
}

func newDeferCommand(c *command.Caller) *cobra.Command {
	var o rulingOptions
	cmd := &cobra.Command{
		Use:               "defer ID TIME [TEXT...]",
		Short:             "Defer a shutdown",
		Long:              "Defer a shutdown until a time, or for a duration. The director asks again then.\n\nThe flags are those of brokerctl decision decide.",
		Annotations:       map[string]string{command.FlagsOf: "decision decide"},
		Example:           `  brokerctl --agent builder-1 decision defer d-4711 10m "The tests still run"`,
		Args:              command.AtLeast("the id", "the time"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var until *timestamppb.Timestamp
			until, err := c.ParseTime("for", args[1], +1)
			if err != nil {
				return problem.Usagef("the time %q is neither a duration such as 10m nor a time such as 2026-01-02T15:04:05Z", args[1])
			}
			return decide(c, cmd, &o, 0, args[0], &pb.DecideRequest{Verdict: "defer", Until: until, Reason: strings.Join(args[2:], " ")})
		},
	}
	o.AddFlags(cmd)
	return cmd
}

func newDecisionResubmitCommand(c *command.Caller) *cobra.Command {
	var o command.ContentOptions
	request := &pb.ResubmitDecisionRequest{}
	var deadline string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "resubmit ID [TITLE]",
		Short: "Submit the next round after the verdict revise",
		Long: `Submit the next round. Without content, the last one stays. With --wait, the exit
codes are those of brokerctl review submit.`,
		Example:           "  brokerctl --agent builder-1 decision resubmit d-4711 --body @plan.md",
		Args:              command.Between(1, "the id", "the title"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := submission{ContentOptions: o, deadline: deadline}
			if err := s.read(c, cmd); err != nil {
				return err
			}
			if o.Body == "-" && s.request.GetContent().GetBody() == "" {
				return problem.Usagef("--body -: standard input is empty; without --body, the last content stays")
			}
			request.Deadline = s.request.Deadline
			for _, name := range []string{"body", "payload", "file", "artifact"} {
				if cmd.Flags().Changed(name) {
					request.Content = s.request.Content
				}
			}
			if len(args) > 1 {
				request.Title = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if request.Id, err = decisionID(cmd.Context(), broker, 0, args[0]); err != nil {
				return err
			}
			answer, err := broker.Decisions().ResubmitDecision(cmd.Context(), request)
			if err != nil {
				return err
			}
			if wait == 0 {
				return showDecision(c, cmd, answer.GetDecision())
			}
			return awaitVerdict(c, cmd, broker, answer.GetDecision(), wait)
		},
	}
	f := cmd.Flags()
	o.AddFlags(f)
	f.BoolVar(&request.PassToken, "pass-token", false, passTokenHelp)
	f.StringVar(&deadline, "deadline", "", "when the round escalates without a verdict: a duration such as 30m, or a time")
	command.DurationVar(f, &wait, "wait", 0, "how long to wait for the verdict; 0: do not wait")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newDecisionCancelCommand(c *command.Caller) *cobra.Command {
	request := &pb.CancelDecisionRequest{}
	cmd := &cobra.Command{
		Use:               "cancel ID [TEXT...]",
		Short:             "Cancel an unfinished decision",
		Long:              "Cancel an unfinished decision of the agent's own. Operators cancel any.",
		Example:           `  brokerctl --agent builder-1 decision cancel d-4711 "no longer needed"`,
		Args:              command.AtLeast("the id"),
		ValidArgsFunction: c.CompleteArgs(false, words.DecisionWords(0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			request.Reason = strings.Join(args[1:], " ")
			if request.Id, err = decisionID(cmd.Context(), broker, 0, args[0]); err != nil {
				return err
			}
			answer, err := broker.Decisions().CancelDecision(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showDecision(c, cmd, answer.GetDecision())
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
