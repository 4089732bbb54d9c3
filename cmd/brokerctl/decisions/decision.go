package decisions

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
)

// NewDecisionCommand returns the commands of brokerctl decision.
func NewDecisionCommand(c *command.Caller) *cobra.Command {
	return command.Group("decision", "Ask agents to decide, and decide", `One agent submits something, and another agent, or one agent of a role, decides.
Reviews, plans and shutdowns (agent shutdown) are separate kinds of decisions.`,
		"  brokerctl decision list --owed-by critic-1",
		decisionOpen().Command(c), decisionDecide().Command(c),
		answer("accept", "Accept a shutdown").Command(c), decisionDefer().Command(c),
		answer("reject", "Reject a shutdown").Command(c),
		decisionResubmit.Command(c), decisionCancel.Command(c), decisionGet(0).Command(c), decisionList(0).Command(c))
}

func decisionOpen() submission {
	return newSubmission(0, command.Page{
		Use:   "open RECEIVER [TITLE]",
		Short: "Ask an agent, or one agent of a role, to decide",
		Long: `Ask an agent, or role:NAME, to decide. With --wait, the exit codes are those of
brokerctl review submit.`,
		Example: `  brokerctl --agent builder-1 decision open role:lead "Which database?" \
    --verdict postgres --verdict sqlite --wait 90s`,
	}, []command.Arg{receiver, {Field: "title", Name: "the title", Text: true}},
		waitForVerdict,
		command.Option{Field: "kind", Value: "custom", Usage: "{}"},
		command.Option{Field: "scope",
			Usage: "what it is about; one decision of a kind and scope is unfinished at a time"},
		command.Option{Field: "verdicts", Name: "verdict", Usage: "a possible verdict of a custom decision; repeatable"},
		command.Option{Field: "message_type", Usage: "type of a custom decision's message (default: request)"},
		command.Option{Field: "outcome_type", Usage: "type of the notice of its verdict (default: response)"})
}

// A ruling gives a verdict.
type ruling = command.Spec[*pb.DecideRequest, *pb.DecideResponse]

// newRuling returns the command that gives a verdict on a decision of a kind; 0: of any. Without a verdict, an argument
// is the verdict.
func newRuling(kind pb.DecisionKind, verdict, flagsOf string, page command.Page, args ...command.Arg) ruling {
	var sets map[string]string
	if verdict != "" {
		sets = map[string]string{"verdict": verdict}
	}
	return ruling{
		Page: page,
		Call: find[*pb.DecideRequest, *pb.DecideResponse](kind),
		Args: append(args, command.Arg{Field: "reason", Name: "the text", Text: true, Kind: command.Joined}),
		Options: []command.Option{
			{Name: "reason", Type: "string",
				Usage: "the reason, in place of TEXT; @FILE reads a file, - standard input"},
			{Field: "feedback", Kind: command.Kind{Read: readFeedback},
				Usage: "[SEVERITY: ][PATH[:LINE]: ]TEXT, severity note, minor, major or blocker; " +
					"repeatable; @FILE: one per line"},
			command.RequestID,
		},
		FlagsOf: flagsOf,
		Narrow:  kind != 0,
		Sets:    sets,
		Prepare: func(g *command.Given, q *pb.DecideRequest) (err error) {
			if verdict != "" {
				q.Verdict = verdict
			}
			reason := g.Text("reason")
			if reason != "" && q.GetReason() != "" {
				return problem.Usagef("the reason is given twice, as argument and with --reason")
			}
			if reason != "" {
				q.Reason, err = g.Caller.Text(g.Cmd, "reason", reason)
			}
			return err
		},
		Shown: "decision",
		Text:  decisionText[*pb.DecideRequest, *pb.DecideResponse],
	}
}

// decisionText shows the state of a decision in a line, with the feedback of its newest verdict.
func decisionText[Q any, A interface{ GetDecision() *pb.Decision }](g *command.Given, w io.Writer, _ Q, a A) {
	g.Voice().Decision(w, a.GetDecision())
}

// readFeedback reads feedback; a text may name a source with one on each line.
func readFeedback(g *command.Given, to command.Target, texts []string) error {
	for _, s := range texts {
		lines, err := g.Caller.Text(g.Cmd, "feedback", s)
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
			to.Set(protoreflect.ValueOfMessage(f.ProtoReflect()))
		}
	}
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

// anyDecision is the argument that names a decision of any kind.
var anyDecision = command.Arg{Field: "id", Name: "the id", Kind: command.Kind{Words: words.DecisionWords(0)}}

func decisionDecide() ruling {
	r := newRuling(0, "", "", command.Page{
		Use:     "decide ID VERDICT [TEXT...]",
		Short:   "Give a verdict",
		Example: `  brokerctl --agent lead decision decide d-4711 sqlite "One file is enough"`,
	}, anyDecision, command.Arg{Field: "verdict", Name: "the verdict"})
	r.Options = append(r.Options,
		command.Option{Name: "for", Type: "duration", Usage: "with the verdict defer: for how long"})
	read := r.Prepare
	r.Prepare = func(g *command.Given, q *pb.DecideRequest) error {
		if d := g.Duration("for"); d > 0 {
			q.Until = timestamppb.New(g.Env.Now().Add(d))
		}
		return read(g, q)
	}
	return r
}

// answer returns decision accept or reject.
func answer(verdict, about string) ruling {
	return newRuling(0, verdict, "decision decide", command.Page{
		Use:     verdict + " ID [TEXT...]",
		Short:   about,
		Long:    about + ".\n\nThe flags are those of brokerctl decision decide.",
		Example: "  brokerctl --agent builder-1 decision " + verdict + " d-4711",
	}, anyDecision)
}

func decisionDefer() ruling {
	return newRuling(0, "defer", "decision decide", command.Page{
		Use:   "defer ID TIME [TEXT...]",
		Short: "Defer a shutdown",
		Long: `Defer a shutdown until a time, or for a duration. The director asks again then.

The flags are those of brokerctl decision decide.`,
		Example: `  brokerctl --agent builder-1 decision defer d-4711 10m "The tests still run"`,
	}, anyDecision, command.Arg{Field: "until", Name: "the time", Kind: command.Kind{Read: readUntil}})
}

func readUntil(g *command.Given, to command.Target, texts []string) error {
	if command.Ahead.Read(g, to, texts) != nil {
		return problem.Usagef("the time %q is neither a duration such as 10m nor a time such as 2026-01-02T15:04:05Z",
			texts[0])
	}
	return nil
}

var decisionResubmit = command.Spec[*pb.ResubmitDecisionRequest, *pb.ResubmitDecisionResponse]{
	Page: command.Page{
		Use:   "resubmit ID [TITLE]",
		Short: "Submit the next round after the verdict revise",
		Long: `Submit the next round. Without content, the last one stays. With --wait, the exit
codes are those of brokerctl review submit.`,
		Example: "  brokerctl --agent builder-1 decision resubmit d-4711 --body @plan.md",
	},
	Call: find[*pb.ResubmitDecisionRequest, *pb.ResubmitDecisionResponse](0),
	Args: []command.Arg{anyDecision, {Field: "title", Name: "the title", Text: true}},
	Options: append(command.ContentOptions("content", command.JSON),
		passToken, waitForVerdict, command.RequestID, command.Option{
			Field: "deadline", Kind: command.Ahead,
			Usage: "when the round escalates without a verdict: a duration such as 30m, or a time",
		}),
	Prepare: func(g *command.Given, q *pb.ResubmitDecisionRequest) error {
		if g.Text("body") == "-" && q.GetContent().GetBody() == "" {
			return problem.Usagef("--body -: standard input is empty; without --body, the last content stays")
		}
		return g.OneSource()
	},
	After: awaitVerdict[*pb.ResubmitDecisionRequest, *pb.ResubmitDecisionResponse],
	Shown: "decision",
	Text:  decisionText[*pb.ResubmitDecisionRequest, *pb.ResubmitDecisionResponse],
}

var decisionCancel = command.Spec[*pb.CancelDecisionRequest, *pb.CancelDecisionResponse]{
	Page: command.Page{
		Use:     "cancel ID",
		Short:   "Cancel an unfinished decision",
		Long:    "Cancel an unfinished decision of the agent's own. Operators cancel any.",
		Example: `  brokerctl --agent builder-1 decision cancel d-4711 --reason "no longer needed"`,
	},
	Call:    find[*pb.CancelDecisionRequest, *pb.CancelDecisionResponse](0),
	Args:    []command.Arg{anyDecision},
	Options: []command.Option{{Field: "reason", Usage: "why, for the other side"}, command.RequestID},
	Old:     "reason",
	Shown:   "decision",
	Text:    decisionText[*pb.CancelDecisionRequest, *pb.CancelDecisionResponse],
}
