package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

func newReviewCommand(c *cli) *cobra.Command {
	return group("review", "Submit work for review, and review it", `A review has rounds between a producer and a critic: review submit sends the
work and waits for the verdict; review approve, revise or reject is the verdict.
The token (review, SCOPE) passes between them with the work.

SCOPE names what is reviewed, such as a feature. After 3 rounds without approval
(--max-rounds) a role decides that the session's setting escalate-to names. Both
sides can run their commands again after a crash.`,
		"  brokerctl review list",
		newReviewSubmitCommand(c),
		newVerdictCommand(c, client.Approved, "approve", "Approve the submitted work; this ends the review", "Looks right to me"),
		newVerdictCommand(c, client.Revise, "revise", "Ask for changes; the producer submits again", "Line 42 drops an error"),
		newVerdictCommand(c, client.Rejected, "reject", "Reject the submitted work; this ends the review", "We do not need this any more"),
		newReviewListCommand(c), newReviewGetCommand(c))
}

// message builds what the options describe.
func (o contentOptions) message(c *cli, cmd *cobra.Command) (*pb.Message, error) {
	s := sendOptions{contentOptions: o}
	return s.content(c, cmd)
}

// reviewWait is how long review submit waits by default: shorter than the 2 min that many agents'
// tools give a command.
const reviewWait = 90 * time.Second

func newReviewSubmitCommand(c *cli) *cobra.Command {
	var o contentOptions
	var rounds int
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "submit SCOPE RECEIVER [SUBJECT]",
		Short: "Submit work for review and wait for the verdict",
		Long: `Submit work for review and wait for the verdict, up to --wait. RECEIVER is the
critic: another agent, or role:NAME.

Exit codes:
  0   approved; with --wait 0: submitted
  10  revise: change the work and submit it again
  11  rejected
  4   no verdict came within --wait

After exit code 4, run the same command again: it submits nothing twice, and
waits on, or prints the verdict that has come meanwhile.`,
		Example: `  brokerctl --agent builder-1 review submit login critic-1 "The login page"
  git diff | brokerctl review submit login role:critic --body -`,
		Args:              between(2, "the scope", "the critic", "the subject"),
		ValidArgsFunction: c.completeArgs(false, reviewWords, owners),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := client.Submission{Scope: args[0], MaxRounds: rounds, NoWait: wait == 0}
			var err error
			if s.Message, err = o.message(c, cmd); err != nil {
				return err
			}
			if s.To, err = parseReceiver(args[1]); err != nil {
				return err
			}
			if s.To.GetAgent() == "" && s.To.GetRole() == "" {
				return usagef("the critic is %s; it must be an agent or role:NAME", args[1])
			}
			if len(args) > 2 {
				s.Message.Subject = args[2]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if wait > 0 {
				// Not a deadline: the broker would see it end first, and only say that the call was cancelled.
				var stop context.CancelFunc
				ctx, stop = context.WithCancel(ctx)
				defer time.AfterFunc(wait, stop).Stop()
				defer stop()
			}
			done := c.progress(wait, "the verdict")
			review, err := broker.SubmitReview(ctx, s)
			done()
			if ctx.Err() != nil && cmd.Context().Err() == nil {
				return failf(exitNothing, "no verdict on %s within %s; run the same command again to wait on", args[0], short(wait))
			}
			if err != nil {
				return err
			}
			if err := c.showReview(cmd, review); err != nil {
				return err
			}
			switch review.Decision() {
			case client.Revise:
				return failf(exitRevise, "")
			case client.Rejected:
				return failf(exitRejected, "")
			}
			return nil
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().IntVar(&rounds, "max-rounds", client.DefaultMaxRounds, "rounds without approval until the escalate-to role decides; the first submission sets it")
	durationVar(cmd.Flags(), &wait, "wait", reviewWait, "how long to wait for the verdict; 0: do not wait")
	return cmd
}

func newVerdictCommand(c *cli, d client.Decision, verb, about, words string) *cobra.Command {
	var o contentOptions
	cmd := &cobra.Command{
		Use:         verb + " SCOPE [TEXT...]",
		Short:       about,
		Long:        about + cond(d == client.Approved, ".", ".\n\nThe flags are those of brokerctl review approve."),
		Annotations: map[string]string{flagsOf: cond(d == client.Approved, "", "review approve")},
		Example:     fmt.Sprintf("  brokerctl --agent critic-1 review %s login %q", verb, words),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the scope is missing: brokerctl review list shows them")
			}
			return nil
		},
		ValidArgsFunction: c.completeArgs(false, reviewWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := o.message(c, cmd)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				if m.Body != "" {
					return usagef("the text is given twice, as argument and with --body")
				}
				m.Body = strings.Join(args[1:], " ")
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			review, err := broker.DecideReview(cmd.Context(), args[0], d, m)
			if errors.Is(err, client.ErrNothingToReview) {
				return failf(exitNotFound, "%v (%s review list)", err, c.again())
			}
			if err != nil {
				return err
			}
			return c.showReview(cmd, review)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func newReviewListCommand(c *cli) *cobra.Command {
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List the reviews without a verdict",
		Example:           "  brokerctl review list\n  brokerctl review list --all -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			found, err := broker.ListReviews(cmd.Context())
			if err != nil {
				return err
			}
			format, err := c.format()
			if err != nil {
				return err
			}
			found = slices.DeleteFunc(found, func(r *client.Review) bool { return r.Verdict != nil && !all })
			if limit > 0 {
				found = found[:min(limit, len(found))]
			}
			out := cmd.OutOrStdout()
			switch {
			case format == formatJSON:
				for _, r := range found {
					if err := c.showReview(cmd, r); err != nil {
						return err
					}
				}
				return nil
			case len(found) == 0:
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing waits for a review")
				return nil
			case format == formatPrompt:
				out = promptOutput{out}
			}
			return c.printReviews(out, found)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also list decided reviews")
	limitVar(cmd.Flags(), &limit, 0)
	return cmd
}

func newReviewGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "get SCOPE",
		Short:             "Show the newest submission of a review, and the verdict",
		Example:           "  brokerctl review get login\n  brokerctl review get login -o prompt",
		Args:              exactly("the scope"),
		ValidArgsFunction: c.completeArgs(false, reviewWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			r, err := broker.FindReview(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if r == nil {
				return status.Errorf(codes.NotFound, "nothing was submitted for review as %s", args[0])
			}
			format, err := c.format()
			if err != nil || format == formatJSON {
				return errors.Join(err, c.showReview(cmd, r))
			}
			out := cmd.OutOrStdout()
			if format == formatPrompt {
				out = promptOutput{out}
			}
			c.render(out, rendered{message: r.Submitted, facts: []string{factsOf(r).String()}})
			if r.Verdict != nil {
				c.render(out, rendered{message: r.Verdict})
			}
			return nil
		},
	}
}

// printReviews lists reviews.
func (c *cli) printReviews(w io.Writer, reviews []*client.Review) error {
	t := c.newTable(w, table.Column{Name: "SCOPE", Min: 12}, table.Column{Name: "ROUND", Rank: 3}, table.Column{Name: "STATE", State: true},
		table.Column{Name: "PRODUCER", Rank: 1, Min: 10}, table.Column{Name: "CRITIC", Min: 10}, table.Column{Name: "SUBMITTED", Rank: 2},
		table.Column{Name: "SUBJECT", Min: 16})
	for _, r := range reviews {
		f := factsOf(r)
		t.row(f.Scope, fmt.Sprintf("%d of %d", f.Round, f.MaxRounds), f.State, f.Producer, f.Critic,
			c.when(r.Submitted.GetCreatedAt()), summary(r.Submitted))
	}
	return t.flush()
}

// reviewFacts are a review as it is printed.
type reviewFacts struct {
	Scope     string `json:"scope"`
	Round     int    `json:"round"`
	MaxRounds int    `json:"max_rounds"`
	State     string `json:"state"` // submitted, escalated, approved, revise, rejected
	Producer  string `json:"producer"`
	Critic    string `json:"critic"`  // who has decided, or else who is to
	Subject   string `json:"subject"` // of the work
	Text      string `json:"text"`    // of the verdict
	Submitted int64  `json:"submitted_revision"`
	Verdict   int64  `json:"verdict_revision"`
}

func factsOf(r *client.Review) reviewFacts {
	f := reviewFacts{
		Scope: r.Scope, Round: r.Round, MaxRounds: r.MaxRounds, State: "submitted", Producer: r.Producer,
		Critic: receiver(r.Submitted.GetTarget()), Subject: r.Submitted.GetSubject(), Submitted: r.Submitted.GetRevision(),
	}
	switch {
	case r.Verdict != nil:
		f.State, f.Critic, f.Verdict = string(r.Decision()), r.Verdict.GetSender(), r.Verdict.GetRevision()
		f.Text = strings.TrimSpace(ownSubject(r.Verdict) + "\n" + r.Verdict.GetBody())
	case r.Escalated != nil:
		f.State, f.Critic = "escalated", receiver(r.Escalated.GetTarget())
	}
	return f
}

// String says how the review stands.
func (f reviewFacts) String() string {
	round := fmt.Sprintf("round %d of %d of review %s", f.Round, f.MaxRounds, f.Scope)
	switch f.State {
	case "submitted":
		return fmt.Sprintf("%s: submitted by %s, waits for %s", round, f.Producer, f.Critic)
	case "escalated":
		return fmt.Sprintf("%s: not approved, %s decides", round, f.Critic)
	case string(client.Revise):
		return fmt.Sprintf("%s: to be revised, says %s%s", round, f.Critic, cond(f.Text != "", ": "+f.Text, ""))
	}
	return fmt.Sprintf("%s: %s by %s%s", round, f.State, f.Critic, cond(f.Text != "", ": "+f.Text, ""))
}

// showReview prints how a review stands.
func (c *cli) showReview(cmd *cobra.Command, r *client.Review) error {
	f := factsOf(r)
	return c.showValue(cmd, f, f.String())
}
