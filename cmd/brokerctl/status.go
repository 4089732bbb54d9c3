package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

func newStatusCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the session and the broker on one screen",
		Long: `Show the state of the session and the broker on one screen, the most important first: what is stuck (explain says
more), agents and messages, locks and tokens, the broker itself, and the fullest mailboxes. For an agent: what concerns
that agent, and the mailboxes that it takes from. Texts that do not fit are cut; -o json shows everything except what is
stuck.`,
		Example: `  brokerctl status
  brokerctl --agent builder-1 status`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().GetStatus(cmd.Context(), &pb.GetStatusRequest{})
			if err != nil {
				return err
			}
			if format, err := c.format(); err != nil || format == formatJSON {
				return c.show(cmd, answer, nil)
			}
			if answer.GetDamage() != "" {
				return c.show(cmd, answer, func(w io.Writer) { c.printStatus(w, answer, nil) })
			}
			stuck, err := broker.Admin().Explain(cmd.Context(), &pb.ExplainRequest{})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { c.printStatus(w, answer, stuck.GetFindings()) })
		},
	}
}

// A screen is 24 lines high, of which the shell takes one.
const (
	screenLabel    = 9 + 2 // the widest label, and the gap
	screenBoxLines = 10    // beside the facts
)

// printStatus prints what is stuck, the facts about the session or the agent, those about the
// broker, and the mailboxes.
func (c *cli) printStatus(w io.Writer, s *pb.GetStatusResponse, stuck []*pb.Finding) {
	l := c.newLabels(w)
	clipped := func(format string, args ...any) string {
		text := prompt.OneLine(fmt.Sprintf(format, args...))
		if screen := c.screen(); !prompt.ForModel(w) && screen.Width > 0 && !screen.Wide {
			text = table.Clip(text, max(screen.Width-screenLabel, 1))
		}
		return text
	}
	fact := func(label, format string, args ...any) { l.line(label, clipped(format, args...)) }
	switch {
	case s.GetDamage() != "":
		l.state("damaged", "the database is damaged and nothing is written: stop the broker and run brokerd check")
		fact("damage", "%s", s.GetDamage())
	case len(stuck) == 0:
		fact("stuck", "nothing%s", prompt.Either(s.GetAgent() != "", " that concerns "+s.GetAgent(), ""))
	default:
		l.state("stuck", clipped("%s; see %s", severities(stuck), c.command("explain")))
		fact("worst", "%s: %s", stuck[0].GetSubject(), stuck[0].GetSummary())
	}
	if since := s.GetDrainingSince(); since != nil {
		fact("drained", "%s: the broker delivers no new work", c.when(since))
	}
	if s.GetAgent() != "" {
		c.agentFacts(s, fact)
	} else {
		c.brokerFacts(s, fact)
	}
	l.flush()
	if len(s.GetMailboxes()) == 0 {
		return
	}
	shown := s.GetMailboxes()
	apart(w)
	if !prompt.ForModel(w) {
		shown = shown[:min(len(shown), screenBoxLines)]
	}
	t := c.newTable(w, table.Column{Name: "MAILBOX", Min: 16}, table.Column{Name: "WAITING"}, table.Column{Name: "CLAIMED"}, table.Column{Name: "DEAD"})
	for _, m := range shown {
		t.row(m.GetMailbox(), strconv.FormatInt(m.GetWaiting(), 10), strconv.FormatInt(m.GetClaimed(), 10), prompt.UpTo1000(m.GetDead()))
	}
	_ = t.flush() // to the command's own output: an error cannot be reported anywhere
}

// agentFacts prints the facts about one agent.
func (c *cli) agentFacts(s *pb.GetStatusResponse, fact func(label, format string, args ...any)) {
	fact("agent", "%s%s, in session %s", s.GetAgent(), prompt.Either(s.GetRole() != "", ", role "+s.GetRole(), ""), s.GetSession())
	fact("messages", "%d waiting, %d claimed by this agent, %d dead", s.GetWaiting(), s.GetClaimed(), s.GetDead())
	fact("work", "%s", workCounts(s.GetWork()))
	fact("holds", "%s and %s; waits for %d more", prompt.Count(s.GetLocks(), "lock"), prompt.Count(s.GetTokensHeld(), "token"), s.GetTickets())
	fact("questions", "%d to answer, %d without an answer yet", s.GetToAnswer(), s.GetAsked())
}

// brokerFacts prints the facts about the session and the broker.
func (c *cli) brokerFacts(s *pb.GetStatusResponse, fact func(label, format string, args ...any)) {
	absent := table.Absent(s.GetLateAgents(), s.GetFailedAgents(), s.GetStoppedAgents())
	fact("session", "%s: %s%s", s.GetSession(), prompt.Count(s.GetAgents(), "agent"), absent)
	if n := s.GetOperatorMail(); n > 0 {
		fact("for operators", "%s: %s", prompt.Count(n, "message"), c.command("inbox --operator"))
	}
	fact("messages", "%d waiting, %d claimed, %d dead", s.GetWaiting(), s.GetClaimed(), s.GetDead())
	fact("work", "%s", workCounts(s.GetWork()))
	fact("shared", "%s, %s held, %d waiting for them; %s", prompt.Count(s.GetLocks(), "lock"), prompt.Count(s.GetTokensHeld(), "token"), s.GetTickets(), prompt.Count(s.GetStateKeys(), "key"))
	fact("broker", "brokerd %s, started %s, revision %d", s.GetVersion(), c.when(s.GetStartedAt()), s.GetRevision())
	fact("in use", "%s, %s%s", prompt.Count(s.GetSessions(), "session"), prompt.Count(s.GetStreams(), "open stream"), memory(s))
	fact("commits", "%d since the start, %s each", s.GetCommits(), s.GetCommitTime().AsDuration().Round(time.Microsecond))
	fact("data", "%s + %s journal, sync %s, in %s", size(s.GetDatabaseBytes()), size(s.GetWalBytes()), s.GetSync(), s.GetDataDir())
	if s.GetWalLeftOut() > 0 {
		fact("left out", "%s of commits in the journal, behind a damaged place", size(s.GetWalLeftOut()))
	}
	fact("listening", "%s", strings.Join(s.GetListen(), ", "))
}

// memory is what the broker's process occupies, as an addition to a list; empty if it is unknown.
func memory(s *pb.GetStatusResponse) string {
	if s.GetProcessMemoryBytes() == 0 {
		return ""
	}
	return ", " + size(s.GetProcessMemoryBytes()) + " of memory"
}

// severities counts findings by severity: "2 errors, 1 warning".
func severities(all []*pb.Finding) string {
	var parts []string
	for _, severity := range []pb.FindingSeverity{pb.FindingSeverity_FINDING_SEVERITY_ERROR, pb.FindingSeverity_FINDING_SEVERITY_WARNING} {
		n := 0
		for _, f := range all {
			if f.GetSeverity() == severity {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, prompt.Count(n, prompt.Enum(severity)))
		}
	}
	return strings.Join(parts, ", ")
}

func newWhoamiCommand(c *cli) *cobra.Command {
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
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			session, err := broker.Sessions().GetSession(cmd.Context(), &pb.GetSessionRequest{})
			if err != nil {
				return err
			}
			s, err := c.settings()
			if err != nil {
				return err
			}
			where := fmt.Sprintf("in session %s (%s) at %s (%s)", session.GetSession().GetName(), origin(s.session, "default"),
				broker.Address(), origin(s.addr, "endpoint file of the data folder"))
			// A credential may be bound to an agent that no option names, and so the broker is asked in any case.
			answer, err := broker.Agents().GetAgent(cmd.Context(), &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
			if err != nil && (broker.Identity().Agent != "" || !noAgent(err)) {
				return err
			}
			if err != nil {
				answer = &pb.GetAgentResponse{}
			}
			a := answer.GetAgent()
			text := "no agent, as operator (" + origin(s.agent, "no agent named") + "), " + where
			if a.GetIncarnation() > 0 {
				text = fmt.Sprintf("%s (%s), %sincarnation %d, %s: %s unread, %s to claim", a.GetName(), origin(s.agent, "credential"),
					prompt.Either(a.GetRole() != "", "role "+a.GetRole()+", ", ""), a.GetIncarnation(), where,
					prompt.UpTo1000(answer.GetUnread()), prompt.UpTo1000(answer.GetClaimable()))
				lines := append([]string{text, "state: " + agentState(a)}, c.holdingLines(answer.GetHoldings())...)
				text = strings.Join(lines, "\n")
			}
			fence := broker.Identity().Fence
			if fence > 0 {
				text += fmt.Sprintf("\nits calls depend on fence %d (from BROKERD_FENCE)", fence)
			}
			var held bytes.Buffer
			if err := writeJSON(&held, answer.GetHoldings()); err != nil {
				return err
			}
			return c.showValue(cmd, identity{
				Addr: broker.Address(), Session: session.GetSession().GetName(), Agent: optional(a.GetName()), Role: a.GetRole(),
				Incarnation: a.GetIncarnation(), Unread: answer.GetUnread(), Claimable: answer.GetClaimable(),
				Fence: fence, Health: optional(prompt.Enum(a.GetHealth())), Held: held.Bytes(),
				AddrFrom: s.addr.from, SessionFrom: s.session.from, AgentFrom: s.agent.from,
			}, text)
		},
	}
}

// identity is what whoami says as JSON.
type identity struct {
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
func origin(s setting, otherwise string) string {
	if s.from == "" {
		return otherwise
	}
	return "from " + s.from
}

// noAgent reports whether a call failed because it names no agent.
func noAgent(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}

func newPingCommand(c *cli) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Check whether the broker answers",
		Long: `Check whether the broker answers, and how fast. With --wait, retry that long, for
a broker that is starting. Exit code 69: it does not answer.`,
		Example:           "  brokerctl ping --wait 10s",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			done := c.progress(wait, "the broker")
			took, err := c.ping(cmd.Context(), wait)
			done()
			if err != nil {
				return err
			}
			addr := c.client.Address()
			return c.showValue(cmd, pong{Addr: addr, Took: took.String()},
				fmt.Sprintf("%s answers after %s", addr, took.Round(10*time.Microsecond)))
		},
	}
	durationVar(cmd.Flags(), &wait, "wait", 0, "retry for this long")
	return cmd
}

// pong is what ping says as JSON.
type pong struct {
	Addr string `json:"addr"`
	Took string `json:"took"` // such as "1.2ms"
}

// pingEvery is the pause between two tries: the endpoint file of a broker that is not there yet may appear at
// any time, and there is nothing to be told of it by.
const pingEvery = 100 * time.Millisecond

// ping makes a call, again and again until wait is over, and returns how long the one that worked took.
func (c *cli) ping(ctx context.Context, wait time.Duration) (time.Duration, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		took, err := c.pingOnce(ctx)
		if err == nil {
			return took, nil
		}
		if code, _ := c.explain(err); code != exitUnreachable || wait <= 0 {
			return 0, err
		}
		pause := time.NewTimer(pingEvery)
		select {
		case <-pause.C:
		case <-end.C:
			pause.Stop()
			return 0, err
		case <-ctx.Done():
			pause.Stop()
			return 0, ctx.Err()
		}
	}
}

// pingOnce bounds one try: something may take the connection and never answer.
func (c *cli) pingOnce(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	broker, err := c.connect(ctx)
	if err == nil {
		start := time.Now()
		if _, err = broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{}); err == nil {
			return time.Since(start), nil
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return 0, failf(exitUnreachable, "the broker does not answer within 5s")
	}
	return 0, err
}
