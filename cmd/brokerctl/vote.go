package main

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
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const voteLong = `A vote has options and an electorate, which is fixed when the vote opens. It
closes at its deadline, when every remaining elector has voted, or by hand.`

func newVoteCommand(c *cli) *cobra.Command {
	return group("vote", "Decide by votes", voteLong, "  brokerctl vote list",
		newVoteOpenCommand(c), newVoteCastCommand(c), newVoteCloseCommand(c), newVoteGetCommand(c), newVoteListCommand(c))
}

func newVoteOpenCommand(c *cli) *cobra.Command {
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
				return usagef("%s is missing", [...]string{"the title", "the first option", "the second option"}[len(args)])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Title, request.Options = args[0], args[1:]
			number, err := parseEnum("rule", pb.VoteRule(0).Descriptor(), rule)
			if err != nil {
				return err
			}
			request.Rule = pb.VoteRule(number)
			if request.Description, err = c.text(cmd, "body", body); err != nil {
				return err
			}
			if request.Deadline, err = c.parseTime("deadline", deadline, 1); err != nil {
				return err
			}
			if request.Quorum, err = parseQuorum(quorum); err != nil {
				return err
			}
			if err := mcp.ParseElectorate("--to", request, to); err != nil {
				return asUsage(err)
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().OpenVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			if wait > 0 {
				return c.waitForVote(cmd, broker, v.GetId(), wait)
			}
			return c.show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "opened %s for %s, closes %s", v.GetId(), prompt.Count(v.GetElectors(), "elector"), c.when(v.GetDeadline()))
				if prompt.ForModel(w) {
					prompt.Say(w, "Next: %s to wait for the outcome", c.command("vote get %s --wait 30m", v.GetId()))
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
	durationVar(f, &wait, "wait", 0, "wait this long until it closes")
	addRequestID(cmd, &request.RequestId)
	must(cmd.RegisterFlagCompletionFunc("rule", cobra.FixedCompletions(rules, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		words, directive := c.words(cmd, owners)
		return append(words, "everyone"), directive
	}))
	return cmd
}

// parseQuorum reads a number of ballots, or a share of the electors as N% or N/M.
func parseQuorum(s string) (*pb.Quorum, error) {
	wrong := usagef("--quorum %q is neither a number of ballots such as 3 nor a share such as 50%% or 2/3", s)
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

func newVoteCastCommand(c *cli) *cobra.Command {
	request := &pb.CastVoteRequest{}
	cmd := &cobra.Command{
		Use:     "cast ID OPTION",
		Short:   "Cast the agent's ballot, or change it",
		Example: `  brokerctl --agent builder-1 vote cast v-4711 SQLite --reason "no server"`,
		Args:    exactly("the id", "the option"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return c.words(cmd, voteWords)
			case 1:
				return c.words(cmd, optionsOf(args[0]))
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id, request.Option = args[0], args[1]
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().CastVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			return c.show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "voted %s in %s: %d of %s%s", prompt.ShellWord(prompt.Clean(args[1])), v.GetId(), v.GetBallots(), prompt.Count(v.GetElectors(), "elector"),
					prompt.Either(v.GetState() == pb.VoteState_VOTE_STATE_CLOSED, "; it closed: "+prompt.VoteOutcome(w, v), ""))
			})
		},
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the other electors")
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newVoteCloseCommand(c *cli) *cobra.Command {
	request := &pb.CloseVoteRequest{}
	cmd := &cobra.Command{
		Use:               "close ID [REASON]",
		Short:             "Close a vote with the ballots cast so far",
		Long:              "Close a vote with the ballots cast so far. Only its opener and operators may do so.",
		Example:           "  brokerctl --agent lead vote close v-4711",
		Args:              between(1, "the id", "the reason"),
		ValidArgsFunction: c.completeArgs(false, voteWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if len(args) > 1 {
				request.Reason = args[1]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Votes().CloseVote(cmd.Context(), request)
			if err != nil {
				return err
			}
			v := answer.GetVote()
			return c.show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "%s %s: %s", prompt.Either(answer.GetAlreadyClosed(), "closed before:", "closed"), v.GetId(), prompt.VoteOutcome(w, v))
			})
		},
	}
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newVoteGetCommand(c *cli) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a vote with its tally and ballots, or wait for its outcome",
		Long: `Show a vote with its tally and ballots.

Exit codes with --wait: 4: the wait ended first; 5: no option won.`,
		Example:           "  brokerctl vote get v-4711 --wait 30m",
		Args:              exactly("the id"),
		ValidArgsFunction: c.completeArgs(false, voteWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			if wait > 0 {
				return c.waitForVote(cmd, broker, args[0], wait)
			}
			answer, err := broker.Votes().GetVote(cmd.Context(), &pb.GetVoteRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { c.printVote(w, answer) })
		},
	}
	durationVar(cmd.Flags(), &wait, "wait", 0, "wait this long until it closes")
	return cmd
}

// waitForVote shows a vote once it is closed.
func (c *cli) waitForVote(cmd *cobra.Command, broker *client.Client, id string, wait time.Duration) error {
	var answer *pb.GetVoteResponse
	closed, err := c.awaitOutcome(cmd.Context(), "the outcome of "+id, wait, func(left *durationpb.Duration) (bool, error) {
		var err error
		answer, err = broker.Votes().GetVote(cmd.Context(), &pb.GetVoteRequest{Id: id, Wait: left})
		return answer.GetVote().GetState() == pb.VoteState_VOTE_STATE_CLOSED, err
	})
	if err != nil {
		return err
	}
	if err := c.show(cmd, answer, func(w io.Writer) { c.printVote(w, answer) }); err != nil {
		return err
	}
	switch v := answer.GetVote(); {
	case !closed:
		return failf(exitNothing, "vote %s is not closed after %s", prompt.Clean(v.GetId()), prompt.Duration(wait))
	case v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER:
		return failf(exitConflict, "vote %s closed without a winner: %s", prompt.Clean(v.GetId()), prompt.VoteOutcome(nil, v))
	}
	return nil
}

// printVote shows a vote with its tally and its ballots.
func (c *cli) printVote(w io.Writer, answer *pb.GetVoteResponse) {
	v := answer.GetVote()
	l := c.newLabels(w)
	l.line("vote", v.GetId())
	l.line("title", v.GetTitle())
	l.state("state", prompt.Enum(v.GetState()))
	l.line("outcome", prompt.VoteOutcome(nil, v))
	l.line("tally", tallyOf(v))
	l.line("voted", fmt.Sprintf("%d of %s, the quorum is %d", v.GetBallots(), prompt.Count(v.GetElectors(), "elector"), v.GetRequired()))
	l.line("rule", prompt.Enum(v.GetRule()))
	l.line("opener", v.GetOpener())
	l.line("task", v.GetTaskId())
	l.line("opened", c.when(v.GetOpenedAt()))
	l.line("deadline", c.when(v.GetDeadline()))
	if v.GetClosedAt() != nil {
		l.line("closed", c.when(v.GetClosedAt())+", "+prompt.Either(v.GetClosedBy() == "", spaced(prompt.Enum(v.GetEnd())), "by "+v.GetClosedBy()))
	}
	l.line("reason", v.GetCloseReason())
	l.flush()
	if text := strings.TrimSpace(v.GetDescription()); text != "" {
		apart(w)
		fmt.Fprintln(w, prompt.Clean(text))
	}
	apart(w)
	t := c.newTable(w, table.Column{Name: "ELECTOR"}, table.Column{Name: "BALLOT", Min: 12}, table.Column{Name: "CAST"},
		table.Column{Name: "CHANGES", Rank: 1}, table.Column{Name: "LEFT"}, table.Column{Name: "REASON", Min: 16})
	for _, b := range answer.GetBallots() {
		t.row(b.GetAgent(), b.GetOption(), c.when(b.GetCastAt()), prompt.Either(b.GetChanges() > 0, strconv.Itoa(int(b.GetChanges())), ""),
			prompt.Either(b.GetLeft(), "yes", ""), prompt.Clip(b.GetReason(), mostText))
	}
	_ = t.flush() // to the command's own output: an error cannot be reported anywhere
	if prompt.ForModel(w) && v.GetState() == pb.VoteState_VOTE_STATE_OPEN {
		prompt.Say(w, "Next: %s if you are an elector", c.command("vote cast %s OPTION", v.GetId()))
	}
}

// tallyOf writes the ballots per option in the order of the opener.
func tallyOf(v *pb.Vote) string {
	parts := make([]string, len(v.GetTally()))
	for i, t := range v.GetTally() {
		parts[i] = fmt.Sprintf("%s %d", prompt.OneLine(t.GetOption()), t.GetBallots())
	}
	return strings.Join(parts, ", ")
}

// spaced writes the name of an enum's value as words.
func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

func newVoteListCommand(c *cli) *cobra.Command {
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
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			votes, err := pages(limit, func(size int32, token string) ([]*pb.Vote, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Votes().ListVotes(cmd.Context(), request)
				return page.GetVotes(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, votes, c.voteView())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "closed ones too")
	f.StringVar(&request.Opener, "from", "", "only votes that this agent has opened")
	f.StringVar(&request.Elector, "elector", "", "only votes in which this agent may vote, or might have voted")
	f.StringVar(&request.TaskId, "task", "", "only votes about this task")
	limitVar(f, &limit, 0)
	return cmd
}

func (c *cli) voteView() view[*pb.Vote] {
	return view[*pb.Vote]{
		columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "TITLE", Min: 16}, {Name: "TALLY", Min: 12}, {Name: "VOTED"},
			{Name: "OUTCOME", Min: 8}, {Name: "OPENER", Rank: 3}, {Name: "TASK", Rank: 4}, {Name: "DEADLINE", Rank: 1}, {Name: "CLOSED", Rank: 2},
		},
		row: func(v *pb.Vote) []string {
			return []string{
				v.GetId(), prompt.Enum(v.GetState()), v.GetTitle(), tallyOf(v), fmt.Sprintf("%d/%d", v.GetBallots(), v.GetElectors()), prompt.VoteOutcome(nil, v),
				v.GetOpener(), v.GetTaskId(), c.when(v.GetDeadline()), c.when(v.GetClosedAt()),
			}
		},
		none: "no votes",
	}
}

// voteWords completes the ids of open votes.
func voteWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Votes().ListVotes(ctx, &pb.ListVotesRequest{
		PageSize: maxPage, States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN},
	})
	words := make([]string, len(page.GetVotes()))
	for i, v := range page.GetVotes() {
		words[i] = v.GetId() + "\t" + prompt.Clip(v.GetTitle(), 60)
	}
	return words, err
}

// optionsOf completes the options of a vote.
func optionsOf(id string) wordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Votes().GetVote(ctx, &pb.GetVoteRequest{Id: id})
		var words []string
		for _, t := range answer.GetVote().GetTally() {
			words = append(words, t.GetOption())
		}
		return words, err
	}
}
