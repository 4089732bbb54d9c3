package people

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewWhoamiCommand returns the command brokerctl whoami.
func NewWhoamiCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show the current agent, session and broker",
		Long: `Show the current agent, session and broker, where each setting comes from, and
what the agent holds.`,
		Example: `  brokerctl whoami
  BROKERD_AGENT=builder-1 brokerctl whoami -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			session, err := broker.Sessions().GetSession(cmd.Context(), &pb.GetSessionRequest{})
			if err != nil {
				return err
			}
			s, err := c.Settings()
			if err != nil {
				return err
			}
			where := fmt.Sprintf("in session %s (%s) at %s (%s)", session.GetSession().GetName(), origin(s.Session, "default"),
				broker.Address(), origin(s.Addr, "endpoint file of the data folder"))
			// A credential may be bound to an agent that no option names, and so the broker is asked in any case.
			answer, err := broker.Agents().GetAgent(cmd.Context(), &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
			if err != nil && (broker.Identity().Agent != "" || !noAgent(err)) {
				return err
			}
			if err != nil {
				answer = &pb.GetAgentResponse{}
			}
			a := answer.GetAgent()
			text := "no agent, as operator (" + origin(s.Agent, "no agent named") + "), " + where
			if a.GetIncarnation() > 0 {
				text = fmt.Sprintf("%s (%s), %sincarnation %d, %s: %s unread, %s to claim", a.GetName(), origin(s.Agent, "credential"),
					prompt.Either(a.GetRole() != "", "role "+a.GetRole()+", ", ""), a.GetIncarnation(), where,
					prompt.UpTo1000(answer.GetUnread()), prompt.UpTo1000(answer.GetClaimable()))
				lines := append([]string{text, "state: " + prompt.AgentState(a)}, holdingLines(c, answer.GetHoldings())...)
				text = strings.Join(lines, "\n")
			}
			fence := broker.Identity().Fence
			text += prompt.Either(fence > 0, fmt.Sprintf("\nits calls depend on fence %d (from BROKERD_FENCE)", fence), "")
			var held bytes.Buffer
			if err := output.WriteJSON(&held, answer.GetHoldings()); err != nil {
				return err
			}
			return c.ShowValue(cmd, Identity{
				Addr: broker.Address(), Session: session.GetSession().GetName(), Agent: optional(a.GetName()), Role: a.GetRole(),
				Incarnation: a.GetIncarnation(), Unread: answer.GetUnread(), Claimable: answer.GetClaimable(),
				Fence: fence, Health: optional(prompt.Enum(a.GetHealth())), Held: held.Bytes(),
				AddrFrom: s.Addr.From, SessionFrom: s.Session.From, AgentFrom: s.Agent.From,
			}, text)
		},
	}
}

// Identity is what whoami says as JSON.
type Identity struct {
	Addr        string  `json:"addr"`
	Session     string  `json:"session"`
	Agent       *string `json:"agent"` // null for an operator
	Role        string  `json:"role"`
	Incarnation int64   `json:"incarnation"`
	Unread      int64   `json:"unread"`
	Claimable   int64   `json:"claimable"`

	Fence  int64           `json:"fence"`  // that calls depend on; 0 = none
	Health *string         `json:"health"` // null for an operator
	Held   json.RawMessage `json:"held"`   // claims, locks, tokens, tickets, questions

	AddrFrom    string `json:"addr_from"` // the option, variable or file that says so; empty = found or default
	SessionFrom string `json:"session_from"`
	AgentFrom   string `json:"agent_from"`
}

// optional returns nil for an empty text, which JSON shows as null.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// origin says where a setting comes from.
func origin(s setting.Value, otherwise string) string {
	return prompt.Either(s.From == "", otherwise, "from "+s.From)
}

// noAgent reports whether a call failed because it names no agent.
func noAgent(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}
