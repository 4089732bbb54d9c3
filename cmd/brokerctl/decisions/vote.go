package decisions

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
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const voteLong = `A vote has options and an electorate, which is fixed when the vote opens. It
closes at its deadline, when every remaining elector has voted, or by hand.`

// NewVoteCommand returns the commands of brokerctl vote.
func NewVoteCommand(c *command.Caller) *cobra.Command {
	return command.Group("vote", "Decide by votes", voteLong, "  brokerctl vote list",
		newVoteOpenCommand(c), newVoteCastCommand(c), newVoteCloseCommand(c), newVoteGetCommand(c), newVoteListCommand(c))
}

func newVoteOpenCommand(c *command.Caller) *cobra.Command {
	request := &pb.OpenVoteRequest{}
	var to []string
	var body, deadline, quorum, rule string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "open TITLE OPTION OPTION...",
		Short: "Open a vote",
		Long: `Open a vote of every agent, or of the electors of --to.

Exit codes with --wait: 4: the wait ended first; 5: no option won.`,
		Example: `  brokerctl --agent lead vote open "Which database?" SQLite PostgreSQL \
    --to role:builder --quorum 50% --deadline 30m --wait 30m`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 3 {
				return problem.Usagef("%s is missing", [...]string{"the title", "the first option", "the second option"}[len(args)])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Title, request.Options = args[0], args[1:]
			number, err := output.ParseEnum("rule", pb.VoteRule(0).Descriptor(), rule)
			if err != nil {
				return err
			}
			request.Rule = pb.VoteRule(number)
			if request.Description, err = c.Text(cmd, "body", body); err != nil {
				return err
			}
			if request.Deadline, err = c.ParseTime("deadline", deadline, 1); err != nil {
				return err
			}
			if request.Quorum, err = ParseQuorum(quorum); err != nil {
				return err
			}
			if err := mcp.ParseElectorate("--to", request, to); err != nil {
				return command.AsUsage(err)
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().OpenVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			if wait > 0 {
				return waitForVote(c, cmd, broker, v.GetId(), wait)
			}
			return c.Show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "opened %s for %s, closes %s", v.GetId(), prompt.Count(v.GetElectors(), "elector"), c.When(v.GetDeadline()))
				if prompt.ForModel(w) {
					prompt.Say(w, "Next: %s to wait for the outcome", c.Command("vote get %s --wait 30m", v.GetId()))
				}
			})
		},
	}
	f := cmd.Flags()
	rules := jsonform.EnumNames(pb.VoteRule(0).Descriptor())
	f.StringArrayVar(&to, "to", nil, "the electorate: agents (repeatable), or role:NAME, or everyone (the default)")
	f.StringVar(&body, "body", "", "the text; @FILE reads a file, - standard input")
	f.StringVar(&deadline, "deadline", "", "when it closes: 30m or 2d from now, or RFC 3339 (default: 1d)")
	f.StringVar(&quorum, "quorum", "", "how many ballots it needs: 3, or a share of the electors such as 50% or 2/3 (default: 1)")
	f.StringVar(&rule, "rule", "", strings.Join(rules, ", ")+" (default: plurality)")
	f.StringVar(&request.TaskId, "task", "", "the task that it is about")
	command.DurationVar(f, &wait, "wait", 0, "wait this long until it closes")
	command.AddRequestID(cmd, &request.RequestId)
	command.Must(cmd.RegisterFlagCompletionFunc("rule", cobra.FixedCompletions(rules, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		words, directive := c.Words(cmd, words.Owners)
		return append(words, "everyone"), directive
	}))
	return cmd
}

// ParseQuorum reads a number of ballots, or a share of the electors as N% or N/M.
func ParseQuorum(s string) (*pb.Quorum, error) {
	wrong := problem.Usagef("--quorum %q is neither a number of ballots such as 3 nor a share such as 50%% or 2/3", s)
	if s == "" {
		return nil, nil
	}
	part, whole, isFraction := strings.Cut(s, "/")
	percent, isPercent := strings.CutSuffix(s, "%")
	if !isFraction && !isPercent {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			return nil, wrong
		}
		return &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: int32(n)}}, nil
	}
	if isPercent {
		part, whole = percent, "100"
	}
	n, err := strconv.ParseFloat(part, 64)
	m, err2 := strconv.ParseFloat(whole, 64)
	if err != nil || err2 != nil || m == 0 {
		return nil, wrong
	}
	return &pb.Quorum{Quorum: &pb.Quorum_Share{Share: n / m}}, nil
}

func newVoteCastCommand(c *command.Caller) *cobra.Command {
	request := &pb.CastVoteRequest{}
	cmd := &cobra.Command{
		Use:     "cast ID OPTION",
		Short:   "Cast the agent's ballot, or change it",
		Example: `  brokerctl --agent builder-1 vote cast v-4711 SQLite --reason "no server"`,
		Args:    command.Exactly("the id", "the option"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return c.Words(cmd, voteWords)
			case 1:
				return c.Words(cmd, optionsOf(args[0]))
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id, request.Option = args[0], args[1]
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().CastVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			return c.Show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "voted %s in %s: %d of %s%s", prompt.ShellWord(prompt.Clean(args[1])), v.GetId(), v.GetBallots(), prompt.Count(v.GetElectors(), "elector"),
					prompt.Either(v.GetState() == pb.VoteState_VOTE_STATE_CLOSED, "; it closed: "+prompt.VoteOutcome(w, v), ""))
			})
		},
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the other electors")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newVoteCloseCommand(c *command.Caller) *cobra.Command {
	request := &pb.CloseVoteRequest{}
	cmd := &cobra.Command{
		Use:               "close ID [REASON]",
		Short:             "Close a vote with the ballots cast so far",
		Long:              "Close a vote with the ballots cast so far. Only its opener and operators may do so.",
		Example:           "  brokerctl --agent lead vote close v-4711",
		Args:              command.Between(1, "the id", "the reason"),
		ValidArgsFunction: c.CompleteArgs(false, voteWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Reason = args[1]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().CloseVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			return c.Show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "%s %s: %s", prompt.Either(answer.GetAlreadyClosed(), "closed before:", "closed"), v.GetId(), prompt.VoteOutcome(w, v))
			})
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newVoteGetCommand(c *command.Caller) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a vote with its tally and ballots, or wait for its outcome",
		Long: `Show a vote with its tally and ballots.

Exit codes with --wait: 4: the wait ended first; 5: no option won.`,
		Example:           "  brokerctl vote get v-4711 --wait 30m",
		Args:              command.Exactly("the id"),
		ValidArgsFunction: c.CompleteArgs(false, voteWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if wait > 0 {
				return waitForVote(c, cmd, broker, args[0], wait)
			}
			answer, err := broker.Votes().GetVote(cmd.Context(), &pb.GetVoteRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { printVote(c, w, answer) })
		},
	}
	command.DurationVar(cmd.Flags(), &wait, "wait", 0, "wait this long until it closes")
	return cmd
}

// waitForVote shows a vote once it is closed.
func waitForVote(c *command.Caller, cmd *cobra.Command, broker *client.Client, id string, wait time.Duration) error {
	var answer *pb.GetVoteResponse
	closed, err := c.AwaitOutcome(cmd.Context(), "the outcome of "+id, wait, func(left *durationpb.Duration) (bool, error) {
		var err error
		answer, err = broker.Votes().GetVote(cmd.Context(), &pb.GetVoteRequest{Id: id, Wait: left})
		return answer.GetVote().GetState() == pb.VoteState_VOTE_STATE_CLOSED, err
	})
	if err != nil {
		return err
	}
	if err := c.Show(cmd, answer, func(w io.Writer) { printVote(c, w, answer) }); err != nil {
		return err
	}
	switch v := answer.GetVote(); {
	case !closed:
		return problem.Failf(problem.ExitNothing, "vote %s is not closed after %s", prompt.Clean(v.GetId()), prompt.Duration(wait))
	case v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER:
		return problem.Failf(problem.ExitConflict, "vote %s closed without a winner: %s", prompt.Clean(v.GetId()), prompt.VoteOutcome(nil, v))
	}
	return nil
}

// printVote shows a vote with its tally and its ballots.
func printVote(c *command.Caller, w io.Writer, answer *pb.GetVoteResponse) {
	v := answer.GetVote()
	l := c.NewLabels(w)
	l.Line("vote", v.GetId())
	l.Line("title", v.GetTitle())
	l.State("state", prompt.Enum(v.GetState()))
	l.Line("outcome", prompt.VoteOutcome(nil, v))
	l.Line("tally", prompt.Tally(v))
	l.Line("voted", fmt.Sprintf("%d of %s, the quorum is %d", v.GetBallots(), prompt.Count(v.GetElectors(), "elector"), v.GetRequired()))
	l.Line("rule", prompt.Enum(v.GetRule()))
	l.Line("opener", v.GetOpener())
	l.Line("task", v.GetTaskId())
	l.Line("opened", c.When(v.GetOpenedAt()))
	l.Line("deadline", c.When(v.GetDeadline()))
	if v.GetClosedAt() != nil {
		l.Line("closed", c.When(v.GetClosedAt())+", "+prompt.Either(v.GetClosedBy() == "", spaced(prompt.Enum(v.GetEnd())), "by "+v.GetClosedBy()))
	}
	l.Line("reason", v.GetCloseReason())
	l.Flush()
	if text := strings.TrimSpace(v.GetDescription()); text != "" {
		output.Apart(w)
		fmt.Fprintln(w, prompt.Clean(text))
	}
	output.Apart(w)
	t := c.NewTable(w, table.Column{Name: "ELECTOR"}, table.Column{Name: "BALLOT", Min: 12}, table.Column{Name: "CAST"},
		table.Column{Name: "CHANGES", Rank: 1}, table.Column{Name: "LEFT"}, table.Column{Name: "REASON", Min: 16})
	for _, b := range answer.GetBallots() {
		t.Row(b.GetAgent(), b.GetOption(), c.When(b.GetCastAt()), prompt.Either(b.GetChanges() > 0, strconv.Itoa(int(b.GetChanges())), ""),
			prompt.Either(b.GetLeft(), "yes", ""), prompt.Clip(b.GetReason(), output.MostText))
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	if prompt.ForModel(w) && v.GetState() == pb.VoteState_VOTE_STATE_OPEN {
		prompt.Say(w, "Next: %s if you are an elector", c.Command("vote cast %s OPTION", v.GetId()))
	}
}

// spaced writes the name of an enum's value as words.
func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

func newVoteListCommand(c *command.Caller) *cobra.Command {
	request := &pb.ListVotesRequest{}
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List votes with their tallies, newest first",
		Long:              "List the open votes, or with --all the closed ones too.",
		Example:           "  brokerctl vote list --all --elector builder-1",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !all {
				request.States = []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			votes, err := command.Pages(limit, func(size int32, token string) ([]*pb.Vote, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Votes().ListVotes(cmd.Context(), request)
				return page.GetVotes(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, votes, voteView(c))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "closed ones too")
	f.StringVar(&request.Opener, "from", "", "only votes that this agent has opened")
	f.StringVar(&request.Elector, "elector", "", "only votes in which this agent may vote, or might have voted")
	f.StringVar(&request.TaskId, "task", "", "only votes about this task")
	command.LimitVar(f, &limit, 0)
	return cmd
}

func voteView(c *command.Caller) output.View[*pb.Vote] {
	return output.View[*pb.Vote]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "TITLE", Min: 16}, {Name: "TALLY", Min: 12}, {Name: "VOTED"},
			{Name: "OUTCOME", Min: 8}, {Name: "OPENER", Rank: 3}, {Name: "TASK", Rank: 4}, {Name: "DEADLINE", Rank: 1}, {Name: "CLOSED", Rank: 2},
		},
		Row: func(v *pb.Vote) []string {
			return []string{
				v.GetId(), prompt.Enum(v.GetState()), v.GetTitle(), prompt.Tally(v), fmt.Sprintf("%d/%d", v.GetBallots(), v.GetElectors()), prompt.VoteOutcome(nil, v),
				v.GetOpener(), v.GetTaskId(), c.When(v.GetDeadline()), c.When(v.GetClosedAt()),
			}
		},
		None: "no votes",
	}
}

// voteWords completes the ids of open votes.
func voteWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Votes().ListVotes(ctx, &pb.ListVotesRequest{
		PageSize: command.MaxPage, States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN},
	})
	words := make([]string, len(page.GetVotes()))
	for i, v := range page.GetVotes() {
		words[i] = v.GetId() + "\t" + prompt.Clip(v.GetTitle(), 60)
	}
	return words, err
}

// optionsOf completes the options of a vote.
func optionsOf(id string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Votes().GetVote(ctx, &pb.GetVoteRequest{Id: id})
		var words []string
		for _, t := range answer.GetVote().GetTally() {
			words = append(words, t.GetOption())
		}
		return words, err
	}
}
