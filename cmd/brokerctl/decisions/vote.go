package decisions

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const voteLong = `A vote has options and an electorate, which is fixed when the vote opens. It
closes at its deadline, when every remaining elector has voted, or by hand.`

// NewVoteCommand returns the commands of brokerctl vote.
func NewVoteCommand(c *command.Caller) *cobra.Command {
	return command.Group("vote", "Decide by votes", voteLong, "  brokerctl vote list",
		voteOpen.Command(c), voteCast.Command(c), voteClose.Command(c), voteGet.Command(c), voteList.Command(c))
}

var voteOpen = command.Spec[*pb.OpenVoteRequest, *pb.OpenVoteResponse]{
	Page: command.Page{
		Use:   "open TITLE OPTION OPTION...",
		Short: "Open a vote",
		Long: `Open a vote of every agent, or of the electors of --to.

Exit codes with --wait: 4: the wait ended first; 5: no option won.`,
		Example: `  brokerctl --agent lead vote open "Which database?" SQLite PostgreSQL \
    --to role:builder --quorum 50% --deadline 30m --wait 30m`,
	},
	Args: []command.Arg{
		{Field: "title", Name: "the title", Text: true},
		{Field: "options", Name: "the first option"}, {Field: "options", Name: "the second option"},
	},
	Options: []command.Option{
		{Name: "to", Type: "strings", Kind: words.Owner,
			Usage: "the electorate: agents (repeatable), or role:NAME, or everyone (the default)"},
		{Field: "description", Name: "body", Kind: command.Content, Usage: "the text; @FILE reads a file, - standard input"},
		{Field: "deadline", Kind: command.Ahead, Usage: "when it closes: 30m or 2d from now, or RFC 3339 (default: 1d)"},
		{Field: "quorum", Kind: command.Kind{Name: "N", Read: command.As(ParseQuorum)},
			Usage: "how many ballots it needs: 3, or a share of the electors such as 50% or 2/3 (default: 1)"},
		{Field: "rule", Usage: "{} (default: plurality)"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "the task that it is about"},
		{Name: "wait", Type: "duration", Usage: "wait this long until it closes"},
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.OpenVoteRequest) error {
		return command.AsUsage(mcp.ParseElectorate("--to", q, g.Texts("to")))
	},
	After: func(g *command.Given, broker *client.Client, _ *pb.OpenVoteRequest, a *pb.OpenVoteResponse) (bool, error) {
		return voteGet.AwaitMade(g, broker, a.GetVote().GetId())
	},
	Shown: "vote",
	Text: func(g *command.Given, w io.Writer, _ *pb.OpenVoteRequest, a *pb.OpenVoteResponse) {
		v := a.GetVote()
		prompt.Say(w, "opened %s for %s, closes %s", v.GetId(), prompt.Count(v.GetElectors(), "elector"),
			g.When(v.GetDeadline()))
		if prompt.ForModel(w) {
			prompt.Say(w, "Next: %s to wait for the outcome", g.Command("vote get %s --wait 30m", v.GetId()))
		}
	},
}

var voteCast = command.Spec[*pb.CastVoteRequest, *pb.CastVoteResponse]{
	Page: command.Page{
		Use:     "cast ID OPTION",
		Short:   "Cast the agent's ballot, or change it",
		Example: `  brokerctl --agent builder-1 vote cast v-4711 SQLite --reason "no server"`,
	},
	Args: []command.Arg{
		{Field: "id", Name: "the id", Kind: openVote},
		{Field: "option", Name: "the option", After: func(before []string) command.Kind {
			return command.Kind{Words: optionsOf(before[0])}
		}},
	},
	Options: []command.Option{{Field: "reason", Usage: "why, for the other electors"}, command.RequestID},
	Shown:   "vote",
	Text: func(_ *command.Given, w io.Writer, q *pb.CastVoteRequest, a *pb.CastVoteResponse) {
		v := a.GetVote()
		closed := prompt.Either(v.GetState() == pb.VoteState_VOTE_STATE_CLOSED, "; it closed: "+prompt.VoteOutcome(w, v), "")
		prompt.Say(w, "voted %s in %s: %d of %s%s", prompt.ShellWord(prompt.Clean(q.GetOption())), v.GetId(), v.GetBallots(),
			prompt.Count(v.GetElectors(), "elector"), closed)
	},
}

var voteClose = command.Spec[*pb.CloseVoteRequest, *pb.CloseVoteResponse]{
	Page: command.Page{
		Use:     "close ID",
		Short:   "Close a vote with the ballots cast so far",
		Long:    "Close a vote with the ballots cast so far. Only its opener and operators may do so.",
		Example: "  brokerctl --agent lead vote close v-4711",
	},
	Args:    []command.Arg{{Field: "id", Name: "the id", Kind: openVote}},
	Options: []command.Option{{Field: "reason", Usage: "why, for the electors"}, command.RequestID},
	Old:     "reason",
	Shown:   "vote",
	Text: func(_ *command.Given, w io.Writer, _ *pb.CloseVoteRequest, a *pb.CloseVoteResponse) {
		prompt.Say(w, "%s %s: %s", prompt.Either(a.GetAlreadyClosed(), "closed before:", "closed"), a.GetVote().GetId(),
			prompt.VoteOutcome(w, a.GetVote()))
	},
}

var voteGet = command.Spec[*pb.GetVoteRequest, *pb.GetVoteResponse]{
	Page: command.Page{
		Use:   "get ID",
		Short: "Show a vote with its tally and ballots, or wait for its outcome",
		Long: `Show a vote with its tally and ballots.

Exit codes with --wait: 4: the wait ended first; 5: no option won.`,
		Example: "  brokerctl vote get v-4711 --wait 30m",
	},
	Args: []command.Arg{{Field: "id", Name: "the id", Kind: openVote}},
	Text: func(g *command.Given, w io.Writer, _ *pb.GetVoteRequest, a *pb.GetVoteResponse) {
		printVote(g.Caller, w, a)
	},
	Wait: &command.Waiting[*pb.GetVoteResponse]{
		Usage: "wait this long until it closes", What: "the outcome of",
		Reached: func(a *pb.GetVoteResponse) bool { return a.GetVote().GetState() == pb.VoteState_VOTE_STATE_CLOSED },
		Verdict: func(a *pb.GetVoteResponse, closed bool, wait time.Duration) error {
			switch v := a.GetVote(); {
			case !closed:
				return problem.Failf(problem.ExitNothing, "vote %s is not closed after %s", prompt.Clean(v.GetId()),
					prompt.Duration(wait))
			case v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER:
				return problem.Failf(problem.ExitConflict, "vote %s closed without a winner: %s", prompt.Clean(v.GetId()),
					prompt.VoteOutcome(nil, v))
			}
			return nil
		},
	},
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

// printVote shows a vote with its tally and its ballots.
func printVote(c *command.Caller, w io.Writer, answer *pb.GetVoteResponse) {
	v := answer.GetVote()
	l := c.NewLabels(w)
	l.Line("vote", v.GetId())
	l.Line("title", v.GetTitle())
	l.State("state", prompt.Enum(v.GetState()))
	l.Line("outcome", prompt.VoteOutcome(nil, v))
	l.Line("tally", prompt.Tally(v))
	electors := prompt.Count(v.GetElectors(), "elector")
	l.Line("voted", fmt.Sprintf("%d of %s, the quorum is %d", v.GetBallots(), electors, v.GetRequired()))
	l.Line("rule", prompt.Enum(v.GetRule()))
	l.Line("opener", v.GetOpener())
	l.Line("task", v.GetTaskId())
	l.Line("opened", c.When(v.GetOpenedAt()))
	l.Line("deadline", c.When(v.GetDeadline()))
	if v.GetClosedAt() != nil {
		by := prompt.Either(v.GetClosedBy() == "", spaced(prompt.Enum(v.GetEnd())), "by "+v.GetClosedBy())
		l.Line("closed", c.When(v.GetClosedAt())+", "+by)
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
		changes := prompt.Either(b.GetChanges() > 0, strconv.Itoa(int(b.GetChanges())), "")
		t.Row(b.GetAgent(), b.GetOption(), c.When(b.GetCastAt()), changes,
			prompt.Either(b.GetLeft(), "yes", ""), prompt.Clip(b.GetReason(), output.MostText))
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	if prompt.ForModel(w) && v.GetState() == pb.VoteState_VOTE_STATE_OPEN {
		prompt.Say(w, "Next: %s if you are an elector", c.Command("vote cast %s OPTION", v.GetId()))
	}
}

// spaced writes the name of an enum's value as words.
func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

var voteList = command.Listing[*pb.ListVotesRequest, *pb.ListVotesResponse, *pb.Vote]{
	Page: command.Page{
		Use:     "list",
		Short:   "List votes with their tallies, newest first",
		Long:    "List the open votes, or with --all the closed ones too.",
		Example: "  brokerctl vote list --all --elector builder-1",
	},
	Items: (*pb.ListVotesResponse).GetVotes,
	Options: []command.Option{
		{Name: "all", Type: "bool", Usage: "closed ones too"},
		{Field: "opener", Name: "from", Kind: words.Agent, Usage: "only votes that this agent has opened"},
		{Field: "elector", Kind: words.Agent, Usage: "only votes in which this agent may vote, or might have voted"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only votes about this task"},
	},
	Prepare: func(g *command.Given, q *pb.ListVotesRequest) error {
		if !g.On("all") {
			q.States = []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}
		}
		return nil
	},
	View: voteView,
}

func voteView(g *command.Given) output.View[*pb.Vote] {
	return output.View[*pb.Vote]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", State: true}, {Name: "TITLE", Min: 16}, {Name: "TALLY", Min: 12}, {Name: "VOTED"},
			{Name: "OUTCOME", Min: 8}, {Name: "OPENER", Rank: 3}, {Name: "TASK", Rank: 4}, {Name: "DEADLINE", Rank: 1},
			{Name: "CLOSED", Rank: 2},
		},
		Row: func(v *pb.Vote) []string {
			return []string{
				v.GetId(), prompt.Enum(v.GetState()), v.GetTitle(), prompt.Tally(v),
				fmt.Sprintf("%d/%d", v.GetBallots(), v.GetElectors()), prompt.VoteOutcome(nil, v),
				v.GetOpener(), v.GetTaskId(), g.When(v.GetDeadline()), g.When(v.GetClosedAt()),
			}
		},
		None: "no votes",
	}
}

var openVote = command.Kind{Words: voteWords}

// voteWords returns the ids of open votes.
func voteWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Votes().ListVotes(ctx, &pb.ListVotesRequest{
		PageSize: command.MaxPage, States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN},
	})
	return each.Of(page.GetVotes(), func(v *pb.Vote) string {
		return v.GetId() + "\t" + prompt.Clip(v.GetTitle(), 60)
	}), err
}

// optionsOf completes the options of a vote.
func optionsOf(id string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Votes().GetVote(ctx, &pb.GetVoteRequest{Id: id})
		return each.Of(answer.GetVote().GetTally(), (*pb.VoteTally).GetOption), err
	}
}
