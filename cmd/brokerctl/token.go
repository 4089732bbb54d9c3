package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const tokenLong = `A token, named by a TYPE and a SCOPE such as review and login, is held by one
agent at a time. The first acquire creates it. Its holder passes it on or
releases it; agents that wait receive it in order.`

func newTokenCommand(c *cli) *cobra.Command {
	return group("token", "Take turns and pass them on", tokenLong, "  brokerctl token list",
		newTokenAcquireCommand(c), newTokenRunCommand(c), newTokenPassCommand(c), newTokenExtendCommand(c), newTokenReleaseCommand(c),
		newTokenRevokeCommand(c), newTokenGetCommand(c), newTokenListCommand(c))
}

// tokenName names a token as commands take it.
func tokenName(kind, scope string) string {
	return prompt.ShellWord(prompt.Clean(kind)) + " " + prompt.ShellWord(prompt.Clean(scope))
}

func newTokenAcquireCommand(c *cli) *cobra.Command {
	o := &acquireOptions{}
	var longest time.Duration
	cmd := &cobra.Command{
		Use:   "acquire TYPE SCOPE",
		Short: "Acquire a token, or collect one that was passed",
		Long: `Acquire a token, or collect one that was passed to the agent. An agent that
already holds it gets the same fence.

Exit codes: 4: not granted within --wait; 5: another agent holds it (without
--wait), or waiting would be a deadlock.`,
		Example:           "  brokerctl --agent builder-1 token acquire review login --wait 90s",
		Args:              exactly("the type", "the scope"),
		ValidArgsFunction: c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			holder, err := o.holder(c, cmd)
			if err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := waitForTurn(cmd.Context(), c, "the token", o.wait, func(wait time.Duration) (*pb.AcquireTokenResponse, error) {
				return broker.Tokens().AcquireToken(cmd.Context(), &pb.AcquireTokenRequest{
					RequestId: o.requestID, Type: args[0], Scope: args[1], Wait: duration(wait), MaxHold: duration(o.maxHold), Holder: holder,
					DryRun: o.dryRun, Reason: o.reason, KeepTicket: o.keep, LongestHold: duration(longest),
				})
			})
			if err != nil {
				return err
			}
			return c.showAcquired(cmd, answer, nil, o, func(w io.Writer) {
				prompt.Say(w, "%s %s, ends %s, fence %d", prompt.Either(answer.GetAlreadyHeld(), "held before:", "acquired"), tokenName(args[0], args[1]),
					c.when(answer.GetHeldUntil()), answer.GetFence())
				if answer.GetPassedBy() != "" {
					note := prompt.Either(answer.GetNote() != "" && !prompt.ForModel(w), ": "+prompt.OneLine(answer.GetNote()), "")
					prompt.Say(w, "passed by %s%s", prompt.Clean(answer.GetPassedBy()), note)
				}
				if prompt.ForModel(w) && answer.GetNote() != "" {
					prompt.Framed(w, "the note of "+prompt.Clean(answer.GetPassedBy()), answer.GetNote())
				}
				if prompt.ForModel(w) {
					name := prompt.ShellWord(args[0]) + " " + prompt.ShellWord(args[1])
					prompt.Say(w, "Next: %s token pass %s AGENT when it is another's turn; token release %s when done", c.again(), name, name)
				}
			})
		},
	}
	o.AddFlags(cmd)
	durationVar(cmd.Flags(), &longest, "longest", 0, "longest hold, 1s to 7d; the first acquirer sets it, and another value later is an error (default: 7d)")
	return cmd
}

func newTokenPassCommand(c *cli) *cobra.Command {
	request := &pb.PassTokenRequest{}
	var holder holderOption
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
		Args:              exactly("the type", "the scope", "the receiver"),
		ValidArgsFunction: c.completeTokenPass,
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Type, request.Scope, request.MaxHold = args[0], args[1], duration(maxHold)
			target, err := parseReceiver(args[2])
			if err != nil {
				return err
			}
			switch to := target.GetTo().(type) {
			case *pb.Target_Agent:
				request.To = &pb.PassTokenRequest_Agent{Agent: to.Agent}
			case *pb.Target_Role:
				request.To = &pb.PassTokenRequest_Role{Role: to.Role}
			default:
				return usagef("receiver %q: a token is passed to one agent, or to a role: NAME or role:NAME", args[2])
			}
			if request.Holder, err = holder.holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().PassToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				name := tokenName(args[0], args[1])
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
	durationVar(cmd.Flags(), &maxHold, "for", 0, "how long the receiver may hold it (default: 30m)")
	holder.AddFlags(cmd.Flags())
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenExtendCommand(c *cli) *cobra.Command {
	request := &pb.ExtendTokenRequest{}
	var holder holderOption
	var maxHold time.Duration
	cmd := &cobra.Command{
		Use:               "extend TYPE SCOPE",
		Short:             "Hold a token for longer, counted from now",
		Long:              "Hold a token for longer, counted from now. Exit code 6: the token is lost.",
		Example:           "  brokerctl --agent builder-1 token extend review login --for 1h",
		Args:              exactly("the type", "the scope"),
		ValidArgsFunction: c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			request.Type, request.Scope, request.MaxHold = args[0], args[1], duration(maxHold)
			if request.Holder, err = holder.holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().ExtendToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "extended %s, ends %s", tokenName(args[0], args[1]), c.when(answer.GetHeldUntil()))
			})
		},
	}
	durationVar(cmd.Flags(), &maxHold, "for", 0, "how long from now on (default: as long as was acquired)")
	holder.AddFlags(cmd.Flags())
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenReleaseCommand(c *cli) *cobra.Command {
	request := &pb.ReleaseTokenRequest{}
	var holder holderOption
	cmd := &cobra.Command{
		Use:               "release TYPE SCOPE",
		Short:             "Release a token, or leave its queue",
		Long:              "Release a token, or leave its queue. Exit code 6: the agent neither holds it nor waits for it.",
		Example:           "  brokerctl --agent builder-1 token release review login",
		Args:              exactly("the type", "the scope"),
		ValidArgsFunction: c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			request.Type, request.Scope = args[0], args[1]
			if request.Holder, err = holder.holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().ReleaseToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			if !answer.GetReleased() {
				return notReleased(broker, "the token "+tokenName(args[0], args[1]))
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s", "released "+tokenName(args[0], args[1]))
			})
		},
	}
	holder.AddFlags(cmd.Flags())
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenRevokeCommand(c *cli) *cobra.Command {
	request := &pb.RevokeTokenRequest{}
	cmd := &cobra.Command{
		Use:   "revoke TYPE SCOPE",
		Short: "Take a token from its owner, with a reason (operators)",
		Long: `Take a token from its owner: the next request in the queue gets it. With --ticket,
end the wait of a request, which "token get" shows.`,
		Example: `  brokerctl token revoke review login --reason "critic-1 hangs"
  brokerctl token revoke review login --ticket 4711 --reason "it has ended"`,
		Args:              exactly("the type", "the scope"),
		ValidArgsFunction: c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Type, request.Scope = args[0], args[1]
			if request.GetReason() == "" {
				return usagef("--reason is missing: the owner is told why")
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().RevokeToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				name, agent := tokenName(args[0], args[1]), prompt.Clean(answer.GetAgent())
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
	addRequestID(cmd, &request.RequestId)
	return cmd
}

func newTokenGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "get TYPE SCOPE",
		Short:             "Show a token, its holder and its queue",
		Example:           "  brokerctl token get review login",
		Args:              exactly("the type", "the scope"),
		ValidArgsFunction: c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tokens().GetToken(cmd.Context(), &pb.GetTokenRequest{Type: args[0], Scope: args[1]})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { c.printToken(w, answer) })
		},
	}
}

// printToken shows all that is known of a token.
func (c *cli) printToken(w io.Writer, answer *pb.GetTokenResponse) {
	k := answer.GetToken()
	l := c.newLabels(w)
	line := l.line
	line("token", tokenName(k.GetType(), k.GetScope()))
	l.state("state", tokenState(k))
	line("owner", prompt.Owner(k.GetAgent(), k.GetHolder()))
	line("role", k.GetRole())
	line("passed to", prompt.Either(k.GetPassedToRole() != "", "role:"+k.GetPassedToRole(), ""))
	if k.GetFence() > 0 {
		line("fence", strconv.FormatInt(k.GetFence(), 10))
		line("granted", c.when(k.GetGrantedAt()))
		line("ends", c.when(k.GetHeldUntil()))
	}
	line("reason", k.GetReason())
	line("longest hold", shortOf(k.GetLongestHold()))
	line("last released", c.when(k.GetLastReleasedAt()))
	l.flush()
	if len(answer.GetTickets()) == 0 {
		return
	}
	apart(w)
	t := c.newTable(w, table.Column{Name: "TICKET"}, table.Column{Name: "PLACE"}, table.Column{Name: "WAITING", Min: 16},
		table.Column{Name: "SINCE"}, table.Column{Name: "REASON", Rank: 1, Min: 16})
	for _, k := range answer.GetTickets() {
		t.row(strconv.FormatInt(k.GetTicket(), 10), strconv.Itoa(int(k.GetPosition())), prompt.Owner(k.GetAgent(), k.GetHolder())+prompt.Either(k.GetKept(), ", kept", ""),
			c.when(k.GetCreatedAt()), k.GetReason())
	}
	_ = t.flush() // to the command's own output: an error cannot be reported anywhere
}

// tokenState says whether a token is held.
func tokenState(k *pb.Token) string {
	return prompt.Enum(k.GetState()) + prompt.Either(k.GetUncollected(), ", not collected", "")
}

func newTokenListCommand(c *cli) *cobra.Command {
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
			number, err := parseEnum("state", pb.TokenState(0).Descriptor(), state)
			if err != nil {
				return err
			}
			request.State = pb.TokenState(number)
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			tokens, err := pages(limit, func(size int32, token string) ([]*pb.Token, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Tokens().ListTokens(cmd.Context(), request)
				return page.GetTokens(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, tokens, c.tokenView())
		},
	}
	states := jsonform.EnumNames(pb.TokenState(0).Descriptor())
	cmd.Flags().StringVar(&request.Type, "type", "", "only tokens of this type")
	cmd.Flags().StringVar(&request.Agent, "owner", "", "only tokens that this agent holds")
	cmd.Flags().StringVar(&state, "state", "", "only this state: "+strings.Join(states, ", "))
	limitVar(cmd.Flags(), &limit, 0)
	must(cmd.RegisterFlagCompletionFunc("type", func(cmd *cobra.Command, _ []string, to string) ([]string, cobra.ShellCompDirective) {
		return c.completeTokens(cmd, nil, to)
	}))
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// tokenView lists tokens.
func (c *cli) tokenView() view[*pb.Token] {
	return view[*pb.Token]{
		columns: []table.Column{
			{Name: "TOKEN", Min: 16}, {Name: "STATE", State: true}, {Name: "OWNER", Min: 12}, {Name: "ROLE", Rank: 4, Min: 8}, {Name: "ENDS"},
			{Name: "WAITING", Rank: 1}, {Name: "FENCE", Rank: 2}, {Name: "RELEASED", Rank: 5}, {Name: "REASON", Rank: 3, Min: 12},
		},
		row: func(k *pb.Token) []string {
			owner, fence, ends := prompt.Owner(k.GetAgent(), k.GetHolder()), "", ""
			if k.GetPassedToRole() != "" && k.GetAgent() == "" {
				owner = "role:" + k.GetPassedToRole()
			}
			if k.GetFence() > 0 && k.GetState() != pb.TokenState_TOKEN_STATE_AVAILABLE {
				fence, ends = strconv.FormatInt(k.GetFence(), 10), c.when(k.GetHeldUntil())
			}
			return []string{tokenName(k.GetType(), k.GetScope()), tokenState(k), owner, k.GetRole(), ends, strconv.Itoa(int(k.GetWaiting())), fence,
				c.when(k.GetLastReleasedAt()), k.GetReason()}
		},
		none: "no tokens",
	}
}

const tokenRunLong = `Acquire a token for a separate owner, so that two runs exclude each other even
under one agent's name, and run a command. If the command passes the token on, it
continues without it.

Everything else is as in brokerctl lock run, with BROKERD_TOKEN_TYPE and
BROKERD_TOKEN_SCOPE in the command's environment.`

func newTokenRunCommand(c *cli) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run TYPE SCOPE [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a token",
		Long:  tokenRunLong,

		DisableFlagsInUseLine: true,
		Example:               "  brokerctl --agent builder-1 token run test_run ci --wait 1h -- make test",
		Args:                  commandAfterDash(2, 2, "the type", "the scope"),
		ValidArgsFunction:     c.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runHolding(c, cmd, args[2:], func() (*hold, error) { return o.token(c, cmd, args[0], args[1]) })
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// token takes the token.
func (o *runOptions) token(c *cli, cmd *cobra.Command, kind, scope string) (*hold, error) {
	broker, err := c.connect(cmd.Context(), c.retryNotice(cmd))
	if err != nil {
		return nil, err
	}
	holder, free := newHolder(), unfenced(broker)
	var began time.Time
	answer, err := waitForTurn(cmd.Context(), c, "the token", o.wait, func(wait time.Duration) (*pb.AcquireTokenResponse, error) {
		began = time.Now()
		return broker.Tokens().AcquireToken(cmd.Context(), &pb.AcquireTokenRequest{
			Type: kind, Scope: scope, Wait: duration(wait), MaxHold: duration(o.maxHold), Holder: holder, Reason: o.reason,
		})
	})
	h := &hold{
		what: "the token " + tokenName(kind, scope), fence: answer.GetFence(), lasts: o.maxHold, broker: free,
		env: [][2]string{
			{"BROKERD_FENCE", strconv.FormatInt(answer.GetFence(), 10)}, {holderVariable, holder}, {"BROKERD_TOKEN_TYPE", kind}, {"BROKERD_TOKEN_SCOPE", scope},
		},
		types: []string{"token.released", "token.passed", "token.expired", "token.revoked"},
		extend: func(ctx context.Context) error {
			_, err := free.Tokens().ExtendToken(ctx, &pb.ExtendTokenRequest{Type: kind, Scope: scope, Holder: holder})
			return err
		},
		release: func(ctx context.Context) error {
			_, err := free.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: kind, Scope: scope, Holder: holder})
			return err
		},
		held: func(ctx context.Context) (bool, error) {
			now, err := free.Tokens().GetToken(ctx, &pb.GetTokenRequest{Type: kind, Scope: scope})
			return now.GetToken().GetFence() == answer.GetFence() && now.GetToken().GetAgent() == free.Identity().Agent, err
		},
	}
	if err == nil && answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = c.notAcquired(answer, nil)
	}
	if err != nil {
		if o.wait > 0 { // nobody comes back for the place in the queue, and so nobody should wait behind it
			h.giveBack(c, cmd)
		}
		return nil, err
	}
	if h.lasts == 0 { // the broker has chosen
		h.lasts = max(answer.GetHeldUntil().AsTime().Sub(c.env.Now()), time.Second)
	}
	return h, h.count(cmd.Context(), began)
}
