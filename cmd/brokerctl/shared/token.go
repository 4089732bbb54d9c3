package shared

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const tokenLong = `A token, named by a TYPE and a SCOPE such as review and login, is held by one
agent at a time. The first acquire creates it. Its holder passes it on or
releases it; agents that wait receive it in order.`

// NewTokenCommand returns the commands of brokerctl token.
func NewTokenCommand(c *command.Caller) *cobra.Command {
	return command.Group("token", "Take turns and pass them on", tokenLong, "  brokerctl token list",
		tokenAcquire.Command(c), tokenPass.Command(c), tokenExtend.Command(c), tokenRelease.Command(c),
		tokenRevoke.Command(c), tokenGet.Command(c), tokenList.Command(c))
}

var tokenAcquire = command.Spec[*pb.AcquireTokenRequest, *pb.AcquireTokenResponse]{
	Page: command.Page{
		Use:   "acquire TYPE SCOPE",
		Short: "Acquire a token, or collect one that was passed",
		Long: `Acquire a token, or collect one that was passed to the agent. An agent that
already holds it gets the same fence.

Exit codes: 4: not granted within --wait; 5: another agent holds it (without
--wait), or waiting would be a deadlock.`,
		Example: "  brokerctl --agent builder-1 token acquire review login --wait 90s",
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.AcquireTokenRequest,
	) (*pb.AcquireTokenResponse, error) {
		ask := func(wait time.Duration) (*pb.AcquireTokenResponse, error) {
			q.Wait = command.Duration(wait)
			return broker.Tokens().AcquireToken(g.Cmd.Context(), q)
		}
		return turn.Wait(g.Cmd.Context(), g.Caller, "the token", g.Duration("wait"), ask)
	},
	Args: words.OneToken,
	Options: append([]command.Option{
		{Field: "longest_hold", Name: "longest",
			Usage: "longest hold, 1s to 7d; the first acquirer sets it, and another value later is an error (default: 7d)"},
	}, acquireFlags...),
	Apart: acquireApart,
	Prepare: func(g *command.Given, q *pb.AcquireTokenRequest) (err error) {
		q.Holder, err = HolderOf(g)
		return err
	},
	After: func(
		g *command.Given, _ *client.Client, q *pb.AcquireTokenRequest, a *pb.AcquireTokenResponse,
	) (bool, error) {
		o := &AcquireOptions{keep: q.GetKeepTicket(), dryRun: q.GetDryRun()}
		return true, ShowAcquired(g.Caller, g.Cmd, a, nil, o, func(w io.Writer) { sayAcquired(g, w, q, a) })
	},
}

// sayAcquired says that the agent has the token, and what the one that passed it has noted.
func sayAcquired(g *command.Given, w io.Writer, q *pb.AcquireTokenRequest, a *pb.AcquireTokenResponse) {
	prompt.Say(w, "%s %s, ends %s, fence %d", prompt.Either(a.GetAlreadyHeld(), "held before:", "acquired"),
		turn.TokenName(q.GetType(), q.GetScope()), g.When(a.GetHeldUntil()), a.GetFence())
	if a.GetPassedBy() != "" {
		note := prompt.Either(a.GetNote() != "" && !prompt.ForModel(w), ": "+prompt.OneLine(a.GetNote()), "")
		prompt.Say(w, "passed by %s%s", prompt.Clean(a.GetPassedBy()), note)
	}
	if prompt.ForModel(w) && a.GetNote() != "" {
		prompt.Framed(w, "the note of "+prompt.Clean(a.GetPassedBy()), a.GetNote())
	}
	if prompt.ForModel(w) {
		name := prompt.ShellWord(q.GetType()) + " " + prompt.ShellWord(q.GetScope())
		prompt.Say(w, "Next: %s token pass %s AGENT when it is another's turn; token release %s when done",
			g.Global.Again(), name, name)
	}
}

var tokenPass = command.Spec[*pb.PassTokenRequest, *pb.PassTokenResponse]{
	Page: command.Page{
		Use:   "pass TYPE SCOPE TO",
		Short: "Pass a token to an agent or a role",
		Long: `Pass a token on. TO is an agent, which gets it before the queue, or role:NAME for
the first agent of the role that asks. The receiver gets a notice and
collects the token with token acquire within 2 min. A failed agent becomes
the first in the queue when it returns; until then the queue advances.`,
		Example: `  brokerctl --agent builder-1 token pass review login role:critic
  brokerctl --agent critic-1 token pass review login builder-1 --note "Line 42"`,
	},
	Args: append(words.OneToken[:2:2], command.Arg{Name: "the receiver", Kind: command.Kind{Words: words.Owners}}),
	Options: []command.Option{
		{Field: "note", Usage: "text for the receiver"},
		{Field: "max_hold", Name: "for", Usage: "how long the receiver may hold it (default: 30m)"},
		holderFlag,
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.PassTokenRequest) error {
		target, err := command.ParseReceiver(g.Args[2])
		if err != nil {
			return err
		}
		switch to := target.GetTo().(type) {
		case *pb.Target_Agent:
			q.To = &pb.PassTokenRequest_Agent{Agent: to.Agent}
		case *pb.Target_Role:
			q.To = &pb.PassTokenRequest_Role{Role: to.Role}
		default:
			return problem.Usagef("receiver %q: a token is passed to one agent, or to a role: NAME or role:NAME", g.Args[2])
		}
		q.Holder, err = HolderOf(g)
		return err
	},
	Text: func(g *command.Given, w io.Writer, q *pb.PassTokenRequest, a *pb.PassTokenResponse) {
		name, to := turn.TokenName(q.GetType(), q.GetScope()), prompt.Clean(g.Args[2])
		switch {
		case a.GetAgent() == "" && a.GetFence() > 0:
			prompt.Say(w, "passed %s to %s: the first that asks gets it", name, to)
		case a.GetAgent() == "":
			prompt.Say(w, "gave %s up: %s is not there, and comes first when it is back", name, to)
		default:
			prompt.Say(w, "passed %s to %s", name, prompt.Clean(a.GetAgent()))
		}
	},
}

var tokenExtend = command.Spec[*pb.ExtendTokenRequest, *pb.ExtendTokenResponse]{
	Page: command.Page{
		Use:     "extend TYPE SCOPE",
		Short:   "Hold a token for longer, counted from now",
		Long:    "Hold a token for longer, counted from now. Exit code 6: the token is lost.",
		Example: "  brokerctl --agent builder-1 token extend review login --for 1h",
	},
	Args: words.OneToken,
	Options: []command.Option{
		{Field: "max_hold", Name: "for", Usage: "how long from now on (default: as long as was acquired)"},
		holderFlag,
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ExtendTokenRequest) (err error) {
		q.Holder, err = HolderOf(g)
		return err
	},
	Text: func(g *command.Given, w io.Writer, q *pb.ExtendTokenRequest, a *pb.ExtendTokenResponse) {
		prompt.Say(w, "extended %s, ends %s", turn.TokenName(q.GetType(), q.GetScope()), g.When(a.GetHeldUntil()))
	},
}

var tokenRelease = command.Spec[*pb.ReleaseTokenRequest, *pb.ReleaseTokenResponse]{
	Page: command.Page{
		Use:     "release TYPE SCOPE",
		Short:   "Release a token, or leave its queue",
		Long:    "Release a token, or leave its queue. Exit code 6: the agent neither holds it nor waits for it.",
		Example: "  brokerctl --agent builder-1 token release review login",
	},
	Args:    words.OneToken,
	Options: []command.Option{holderFlag, command.RequestID},
	Prepare: func(g *command.Given, q *pb.ReleaseTokenRequest) (err error) {
		q.Holder, err = HolderOf(g)
		return err
	},
	After: func(
		_ *command.Given, broker *client.Client, q *pb.ReleaseTokenRequest, a *pb.ReleaseTokenResponse,
	) (bool, error) {
		if !a.GetReleased() {
			return true, notReleased(broker, "the token "+turn.TokenName(q.GetType(), q.GetScope()))
		}
		return false, nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.ReleaseTokenRequest, _ *pb.ReleaseTokenResponse) {
		prompt.Say(w, "released %s", turn.TokenName(q.GetType(), q.GetScope()))
	},
}

var tokenRevoke = command.Spec[*pb.RevokeTokenRequest, *pb.RevokeTokenResponse]{
	Page: command.Page{
		Use:   "revoke TYPE SCOPE",
		Short: "Take a token from its owner, with a reason (operators)",
		Long: `Take a token from its owner: the next request in the queue gets it. With --ticket,
end the wait of a request, which "token get" shows.`,
		Example: `  brokerctl token revoke review login --reason "critic-1 hangs"
  brokerctl token revoke review login --ticket 4711 --reason "it has ended"`,
	},
	Args: words.OneToken,
	Options: []command.Option{
		{Field: "reason", Usage: "why, for the owner; required"},
		{Field: "ticket", Usage: "end the wait of this request"},
		command.RequestID,
	},
	Prepare: func(_ *command.Given, q *pb.RevokeTokenRequest) error {
		if q.GetReason() == "" {
			return command.MissingFlag("reason", "the owner is told why")
		}
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.RevokeTokenRequest, a *pb.RevokeTokenResponse) {
		name, agent := turn.TokenName(q.GetType(), q.GetScope()), prompt.Clean(a.GetAgent())
		did, nothing := "took "+name+" from "+agent, "no agent held "+name
		if q.GetTicket() != 0 {
			did = "ended the wait of " + agent + " for " + name
			nothing = fmt.Sprintf("no request %d waits for %s", q.GetTicket(), name)
		}
		prompt.Say(w, "%s", prompt.Either(agent != "", did, nothing))
	},
}

var tokenGet = command.Spec[*pb.GetTokenRequest, *pb.GetTokenResponse]{
	Page: command.Page{
		Use:     "get TYPE SCOPE",
		Short:   "Show a token, its holder and its queue",
		Example: "  brokerctl token get review login",
	},
	Args: words.OneToken,
	Text: func(g *command.Given, w io.Writer, _ *pb.GetTokenRequest, a *pb.GetTokenResponse) {
		PrintToken(g.Caller, w, a)
	},
}

// PrintToken shows all that is known of a token.
func PrintToken(c *command.Caller, w io.Writer, answer *pb.GetTokenResponse) {
	k := answer.GetToken()
	l := c.NewLabels(w)
	line := l.Line
	line("token", turn.TokenName(k.GetType(), k.GetScope()))
	l.State("state", tokenState(k))
	line("owner", prompt.Owner(k.GetAgent(), k.GetHolder()))
	line("role", k.GetRole())
	line("passed to", prompt.Either(k.GetPassedToRole() != "", "role:"+k.GetPassedToRole(), ""))
	if k.GetFence() > 0 {
		line("fence", strconv.FormatInt(k.GetFence(), 10))
		line("granted", c.When(k.GetGrantedAt()))
		line("ends", c.When(k.GetHeldUntil()))
	}
	line("reason", k.GetReason())
	line("longest hold", output.ShortOf(k.GetLongestHold()))
	line("last released", c.When(k.GetLastReleasedAt()))
	l.Flush()
	if len(answer.GetTickets()) == 0 {
		return
	}
	output.Apart(w)
	t := c.NewTable(w, table.Column{Name: "TICKET"}, table.Column{Name: "PLACE"}, table.Column{Name: "WAITING", Min: 16},
		table.Column{Name: "SINCE"}, table.Column{Name: "REASON", Rank: 1, Min: 16})
	for _, k := range answer.GetTickets() {
		t.Row(strconv.FormatInt(k.GetTicket(), 10), strconv.Itoa(int(k.GetPosition())),
			prompt.Owner(k.GetAgent(), k.GetHolder())+prompt.Either(k.GetKept(), ", kept", ""),
			c.When(k.GetCreatedAt()), k.GetReason())
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
}

// tokenState says whether a token is held.
func tokenState(k *pb.Token) string {
	return prompt.Enum(k.GetState()) + prompt.Either(k.GetUncollected(), ", not collected", "")
}

var tokenList = command.Listing[*pb.ListTokensRequest, *pb.ListTokensResponse, *pb.Token]{
	Page: command.Page{
		Use:     "list",
		Short:   "List tokens",
		Example: "  brokerctl token list --state contested --owner builder-1",
	},
	Items: (*pb.ListTokensResponse).GetTokens,
	Options: []command.Option{
		{Field: "type", Kind: command.Kind{Name: "TYPE", Words: words.TokenWords("")}, Usage: "only tokens of this type"},
		{Field: "agent", Name: "owner", Kind: words.Agent, Usage: "only tokens that this agent holds"},
		{Field: "state", Usage: "only this state: {}"},
	},
	View: func(g *command.Given) output.View[*pb.Token] { return TokenView(g.Caller) },
}

// TokenView lists tokens.
func TokenView(c *command.Caller) output.View[*pb.Token] {
	return output.View[*pb.Token]{
		Columns: []table.Column{
			{Name: "TOKEN", Min: 16}, {Name: "STATE", State: true}, {Name: "OWNER", Min: 12}, {Name: "ROLE", Rank: 4, Min: 8},
			{Name: "ENDS"}, {Name: "WAITING", Rank: 1}, {Name: "FENCE", Rank: 2}, {Name: "RELEASED", Rank: 5},
			{Name: "REASON", Rank: 3, Min: 12},
		},
		Row: func(k *pb.Token) []string {
			owner, fence, ends := prompt.Owner(k.GetAgent(), k.GetHolder()), "", ""
			if k.GetPassedToRole() != "" && k.GetAgent() == "" {
				owner = "role:" + k.GetPassedToRole()
			}
			if k.GetFence() > 0 && k.GetState() != pb.TokenState_TOKEN_STATE_AVAILABLE {
				fence, ends = strconv.FormatInt(k.GetFence(), 10), c.When(k.GetHeldUntil())
			}
			return []string{
				turn.TokenName(k.GetType(), k.GetScope()), tokenState(k), owner, k.GetRole(), ends,
				strconv.Itoa(int(k.GetWaiting())), fence, c.When(k.GetLastReleasedAt()), k.GetReason(),
			}
		},
		None: "no tokens",
	}
}
