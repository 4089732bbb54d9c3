package shared

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

const tokenLong = `A token, named by a TYPE and a SCOPE such as review and login, is held by one
agent at a time. The first acquire creates it. Its holder passes it on or
releases it; agents that wait receive it in order.`

// NewTokenCommand returns the commands of brokerctl token.
func NewTokenCommand(c *command.Caller) *cobra.Command {
	return command.Group("token", "Take turns and pass them on", tokenLong, "  brokerctl token list",
		newTokenAcquireCommand(c), newTokenPassCommand(c), newTokenExtendCommand(c), newTokenReleaseCommand(c),
		newTokenRevokeCommand(c), newTokenGetCommand(c), newTokenListCommand(c))
}

func newTokenAcquireCommand(c *command.Caller) *cobra.Command {
	o := &AcquireOptions{}
	var longest time.Duration
	cmd := &cobra.Command{
		Use:   "acquire TYPE SCOPE",
		Short: "Acquire a token, or collect one that was passed",
		Long: `Acquire a token, or collect one that was passed to the agent. An agent that
already holds it gets the same fence.

Exit codes: 4: not granted within --wait; 5: another agent holds it (without
--wait), or waiting would be a deadlock.`,
		Example:           "  brokerctl --agent builder-1 token acquire review login --wait 90s",
		Args:              command.Exactly("the type", "the scope"),
		ValidArgsFunction: words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			holder, err := o.Holder(c, cmd)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := turn.Wait(cmd.Context(), c, "the token", o.Wait, func(wait time.Duration) (*pb.AcquireTokenResponse, error) {
				return broker.Tokens().AcquireToken(cmd.Context(), &pb.AcquireTokenRequest{
					RequestId: o.requestID, Type: args[0], Scope: args[1], Wait: command.Duration(wait), MaxHold: command.Duration(o.MaxHold), Holder: holder,
					DryRun: o.dryRun, Reason: o.Reason, KeepTicket: o.keep, LongestHold: command.Duration(longest),
				})
			})
			if err != nil {
				return err
			}
			return ShowAcquired(c, cmd, answer, nil, o, func(w io.Writer) {
				prompt.Say(w, "%s %s, ends %s, fence %d", prompt.Either(answer.GetAlreadyHeld(), "held before:", "acquired"), turn.TokenName(args[0], args[1]),
					c.When(answer.GetHeldUntil()), answer.GetFence())
				if answer.GetPassedBy() != "" {
					note := prompt.Either(answer.GetNote() != "" && !prompt.ForModel(w), ": "+prompt.OneLine(answer.GetNote()), "")
					prompt.Say(w, "passed by %s%s", prompt.Clean(answer.GetPassedBy()), note)
				}
				if prompt.ForModel(w) && answer.GetNote() != "" {
					prompt.Framed(w, "the note of "+prompt.Clean(answer.GetPassedBy()), answer.GetNote())
				}
				if prompt.ForModel(w) {
					name := prompt.ShellWord(args[0]) + " " + prompt.ShellWord(args[1])
					prompt.Say(w, "Next: %s token pass %s AGENT when it is another's turn; token release %s when done", c.Global.Again(), name, name)
				}
			})
		},
	}
	o.AddFlags(cmd)
	command.DurationVar(cmd.Flags(), &longest, "longest", 0, "longest hold, 1s to 7d; the first acquirer sets it, and another value later is an error (default: 7d)")
	return cmd
}

func newTokenPassCommand(c *command.Caller) *cobra.Command {
	request := &pb.PassTokenRequest{}
	var holder HolderOption
	var maxHold time.Duration
	cmd := &cobra.Command{
		Use:   "pass TYPE SCOPE TO",
		Short: "Pass a token to an agent or a role",
		Long: `Pass a token on. TO is an agent, which gets it before the queue, or role:NAME for
the first agent of the role that asks. The receiver gets a notice and
collects the token with token acquire within 2 min. A failed agent becomes
the first in the queue when it returns; until then the queue advances.`,
		Example: `  brokerctl --agent builder-1 token pass review login role:critic
  brokerctl --agent critic-1 token pass review login builder-1 --note "Line 42"`,
		Args:              command.Exactly("the type", "the scope", "the receiver"),
		ValidArgsFunction: words.CompleteTokenPass(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Type, request.Scope, request.MaxHold = args[0], args[1], command.Duration(maxHold)
			target, err := command.ParseReceiver(args[2])
			if err != nil {
				return err
			}
			switch to := target.GetTo().(type) {
			case *pb.Target_Agent:
				request.To = &pb.PassTokenRequest_Agent{Agent: to.Agent}
			case *pb.Target_Role:
				request.To = &pb.PassTokenRequest_Role{Role: to.Role}
			default:
				return problem.Usagef("receiver %q: a token is passed to one agent, or to a role: NAME or role:NAME", args[2])
			}
			if request.Holder, err = holder.Holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().PassToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				name := turn.TokenName(args[0], args[1])
				switch {
				case answer.GetAgent() == "" && answer.GetFence() > 0:
					prompt.Say(w, "passed %s to %s: the first that asks gets it", name, prompt.Clean(args[2]))
				case answer.GetAgent() == "":
					prompt.Say(w, "gave %s up: %s is not there, and comes first when it is back", name, prompt.Clean(args[2]))
				default:
					prompt.Say(w, "passed %s to %s", name, prompt.Clean(answer.GetAgent()))
				}
			})
		},
	}
	cmd.Flags().StringVar(&request.Note, "note", "", "text for the receiver")
	command.DurationVar(cmd.Flags(), &maxHold, "for", 0, "how long the receiver may hold it (default: 30m)")
	holder.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenExtendCommand(c *command.Caller) *cobra.Command {
	request := &pb.ExtendTokenRequest{}
	var holder HolderOption
	var maxHold time.Duration
	cmd := &cobra.Command{
		Use:               "extend TYPE SCOPE",
		Short:             "Hold a token for longer, counted from now",
		Long:              "Hold a token for longer, counted from now. Exit code 6: the token is lost.",
		Example:           "  brokerctl --agent builder-1 token extend review login --for 1h",
		Args:              command.Exactly("the type", "the scope"),
		ValidArgsFunction: words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			request.Type, request.Scope, request.MaxHold = args[0], args[1], command.Duration(maxHold)
			if request.Holder, err = holder.Holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().ExtendToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "extended %s, ends %s", turn.TokenName(args[0], args[1]), c.When(answer.GetHeldUntil()))
			})
		},
	}
	command.DurationVar(cmd.Flags(), &maxHold, "for", 0, "how long from now on (default: as long as was acquired)")
	holder.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenReleaseCommand(c *command.Caller) *cobra.Command {
	request := &pb.ReleaseTokenRequest{}
	var holder HolderOption
	cmd := &cobra.Command{
		Use:               "release TYPE SCOPE",
		Short:             "Release a token, or leave its queue",
		Long:              "Release a token, or leave its queue. Exit code 6: the agent neither holds it nor waits for it.",
		Example:           "  brokerctl --agent builder-1 token release review login",
		Args:              command.Exactly("the type", "the scope"),
		ValidArgsFunction: words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			request.Type, request.Scope = args[0], args[1]
			if request.Holder, err = holder.Holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().ReleaseToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			if !answer.GetReleased() {
				return notReleased(broker, "the token "+turn.TokenName(args[0], args[1]))
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s", "released "+turn.TokenName(args[0], args[1]))
			})
		},
	}
	holder.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenRevokeCommand(c *command.Caller) *cobra.Command {
	request := &pb.RevokeTokenRequest{}
	cmd := &cobra.Command{
		Use:   "revoke TYPE SCOPE",
		Short: "Take a token from its owner, with a reason (operators)",
		Long: `Take a token from its owner: the next request in the queue gets it. With --ticket,
end the wait of a request, which "token get" shows.`,
		Example: `  brokerctl token revoke review login --reason "critic-1 hangs"
  brokerctl token revoke review login --ticket 4711 --reason "it has ended"`,
		Args:              command.Exactly("the type", "the scope"),
		ValidArgsFunction: words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Type, request.Scope = args[0], args[1]
			if request.GetReason() == "" {
				return problem.Usagef("--reason is missing: the owner is told why")
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().RevokeToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				name, agent := turn.TokenName(args[0], args[1]), prompt.Clean(answer.GetAgent())
				did, nothing := "took "+name+" from "+agent, "no agent held "+name
				if request.GetTicket() != 0 {
					did = "ended the wait of " + agent + " for " + name
					nothing = fmt.Sprintf("no request %d waits for %s", request.GetTicket(), name)
				}
				prompt.Say(w, "%s", prompt.Either(agent != "", did, nothing))
			})
		},
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the owner; required")
	cmd.Flags().Int64Var(&request.Ticket, "ticket", 0, "end the wait of this request")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenGetCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:               "get TYPE SCOPE",
		Short:             "Show a token, its holder and its queue",
		Example:           "  brokerctl token get review login",
		Args:              command.Exactly("the type", "the scope"),
		ValidArgsFunction: words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().GetToken(cmd.Context(), &pb.GetTokenRequest{Type: args[0], Scope: args[1]})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { PrintToken(c, w, answer) })
		},
	}
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
		t.Row(strconv.FormatInt(k.GetTicket(), 10), strconv.Itoa(int(k.GetPosition())), prompt.Owner(k.GetAgent(), k.GetHolder())+prompt.Either(k.GetKept(), ", kept", ""),
			c.When(k.GetCreatedAt()), k.GetReason())
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
}

// tokenState says whether a token is held.
func tokenState(k *pb.Token) string {
	return prompt.Enum(k.GetState()) + prompt.Either(k.GetUncollected(), ", not collected", "")
}

func newTokenListCommand(c *command.Caller) *cobra.Command {
	request := &pb.ListTokensRequest{}
	var state string
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List tokens",
		Example:           "  brokerctl token list --state contested --owner builder-1",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			number, err := output.ParseEnum("state", pb.TokenState(0).Descriptor(), state)
			if err != nil {
				return err
			}
			request.State = pb.TokenState(number)
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			tokens, err := command.Pages(limit, func(size int32, token string) ([]*pb.Token, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Tokens().ListTokens(cmd.Context(), request)
				return page.GetTokens(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, tokens, TokenView(c))
		},
	}
	states := jsonform.EnumNames(pb.TokenState(0).Descriptor())
	cmd.Flags().StringVar(&request.Type, "type", "", "only tokens of this type")
	cmd.Flags().StringVar(&request.Agent, "owner", "", "only tokens that this agent holds")
	cmd.Flags().StringVar(&state, "state", "", "only this state: "+strings.Join(states, ", "))
	command.LimitVar(cmd.Flags(), &limit, 0)
	command.Must(cmd.RegisterFlagCompletionFunc("type", func(cmd *cobra.Command, _ []string, to string) ([]string, cobra.ShellCompDirective) {
		return words.CompleteTokens(c)(cmd, nil, to)
	}))
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// TokenView lists tokens.
func TokenView(c *command.Caller) output.View[*pb.Token] {
	return output.View[*pb.Token]{
		Columns: []table.Column{
			{Name: "TOKEN", Min: 16}, {Name: "STATE", State: true}, {Name: "OWNER", Min: 12}, {Name: "ROLE", Rank: 4, Min: 8}, {Name: "ENDS"},
			{Name: "WAITING", Rank: 1}, {Name: "FENCE", Rank: 2}, {Name: "RELEASED", Rank: 5}, {Name: "REASON", Rank: 3, Min: 12},
		},
		Row: func(k *pb.Token) []string {
			owner, fence, ends := prompt.Owner(k.GetAgent(), k.GetHolder()), "", ""
			if k.GetPassedToRole() != "" && k.GetAgent() == "" {
				owner = "role:" + k.GetPassedToRole()
			}
			if k.GetFence() > 0 && k.GetState() != pb.TokenState_TOKEN_STATE_AVAILABLE {
				fence, ends = strconv.FormatInt(k.GetFence(), 10), c.When(k.GetHeldUntil())
			}
			return []string{turn.TokenName(k.GetType(), k.GetScope()), tokenState(k), owner, k.GetRole(), ends, strconv.Itoa(int(k.GetWaiting())), fence,
				c.When(k.GetLastReleasedAt()), k.GetReason()}
		},
		None: "no tokens",
	}
}
