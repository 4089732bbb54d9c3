package observe

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

// NewStatusCommand returns the command brokerctl status.
func NewStatusCommand(c *command.Caller) *cobra.Command {
	cmd := &cobra.Command{
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
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().GetStatus(cmd.Context(), &pb.GetStatusRequest{})
			if err != nil {
				return err
			}
			if format, err := c.Format(); err != nil || format == output.FormatJSON {
				return c.Show(cmd, answer, nil)
			}
			if answer.GetDamage() != "" {
				return c.Show(cmd, answer, func(w io.Writer) { PrintStatus(c, w, answer, nil) })
			}
			stuck, err := broker.Admin().Explain(cmd.Context(), &pb.ExplainRequest{})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { PrintStatus(c, w, answer, stuck.GetFindings()) })
		},
	}
	return command.Says(c, cmd, func(calls.Call, *pb.GetStatusRequest) []string { return []string{} })
}

// A screen is 24 lines high, of which the shell takes one.
const (
	screenLabel    = 9 + 2 // the widest label, and the gap
	screenBoxLines = 10    // beside the facts
)

// PrintStatus prints what is stuck, the facts about the session or the agent, those about the
// broker, and the mailboxes.
func PrintStatus(c *command.Caller, w io.Writer, s *pb.GetStatusResponse, stuck []*pb.Finding) {
	l := c.NewLabels(w)
	clipped := func(format string, args ...any) string {
		text := prompt.OneLine(fmt.Sprintf(format, args...))
		if screen := c.Screen(); !prompt.ForModel(w) && screen.Width > 0 && !screen.Wide {
			text = table.Clip(text, max(screen.Width-screenLabel, 1))
		}
		return text
	}
	fact := func(label, format string, args ...any) { l.Line(label, clipped(format, args...)) }
	switch {
	case s.GetDamage() != "":
		l.State("damaged", "the database is damaged and nothing is written: stop the broker and run brokerd check")
		fact("damage", "%s", s.GetDamage())
	case len(stuck) == 0:
		fact("stuck", "nothing%s", prompt.Either(s.GetAgent() != "", " that concerns "+s.GetAgent(), ""))
	default:
		l.State("stuck", clipped("%s; see %s", severities(stuck), c.Command("explain")))
		fact("worst", "%s: %s", stuck[0].GetSubject(), stuck[0].GetSummary())
	}
	if since := s.GetDrainingSince(); since != nil {
		fact("drained", "%s: the broker delivers no new work", c.When(since))
	}
	if s.GetAgent() != "" {
		agentFacts(c, s, fact)
	} else {
		brokerFacts(c, s, fact)
	}
	l.Flush()
	if len(s.GetMailboxes()) == 0 {
		return
	}
	shown := s.GetMailboxes()
	output.Apart(w)
	if !prompt.ForModel(w) {
		shown = shown[:min(len(shown), screenBoxLines)]
	}
	t := c.NewTable(w, table.Column{Name: "MAILBOX", Min: 16}, table.Column{Name: "WAITING"},
		table.Column{Name: "CLAIMED"}, table.Column{Name: "DEAD"})
	for _, m := range shown {
		t.Row(m.GetMailbox(), strconv.FormatInt(m.GetWaiting(), 10), strconv.FormatInt(m.GetClaimed(), 10),
			prompt.UpTo1000(m.GetDead()))
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
}

// agentFacts prints the facts about one agent.
func agentFacts(c *command.Caller, s *pb.GetStatusResponse, fact func(label, format string, args ...any)) {
	role := prompt.Either(s.GetRole() != "", ", role "+s.GetRole(), "")
	fact("agent", "%s%s, in session %s", s.GetAgent(), role, s.GetSession())
	fact("messages", "%d waiting, %d claimed by this agent, %d dead", s.GetWaiting(), s.GetClaimed(), s.GetDead())
	fact("work", "%s", mail.WorkCounts(s.GetWork()))
	fact("holds", "%s and %s; waits for %d more", prompt.Count(s.GetLocks(), "lock"),
		prompt.Count(s.GetTokensHeld(), "token"), s.GetTickets())
	fact("questions", "%d to answer, %d without an answer yet", s.GetToAnswer(), s.GetAsked())
}

// brokerFacts prints the facts about the session and the broker.
func brokerFacts(c *command.Caller, s *pb.GetStatusResponse, fact func(label, format string, args ...any)) {
	absent := table.Absent(s.GetLateAgents(), s.GetFailedAgents(), s.GetStoppedAgents())
	fact("session", "%s: %s%s", s.GetSession(), prompt.Count(s.GetAgents(), "agent"), absent)
	if n := s.GetOperatorMail(); n > 0 {
		fact("for operators", "%s: %s", prompt.Count(n, "message"), c.Command("inbox --operator"))
	}
	fact("messages", "%d waiting, %d claimed, %d dead", s.GetWaiting(), s.GetClaimed(), s.GetDead())
	fact("work", "%s", mail.WorkCounts(s.GetWork()))
	fact("shared", "%s, %s held, %d waiting for them; %s", prompt.Count(s.GetLocks(), "lock"),
		prompt.Count(s.GetTokensHeld(), "token"), s.GetTickets(), prompt.Count(s.GetStateKeys(), "key"))
	fact("broker", "brokerd %s, started %s, revision %d", s.GetVersion(), c.When(s.GetStartedAt()), s.GetRevision())
	fact("in use", "%s, %s%s", prompt.Count(s.GetSessions(), "session"), prompt.Count(s.GetStreams(), "open stream"),
		memory(s))
	fact("commits", "%d since the start, %s each", s.GetCommits(), s.GetCommitTime().AsDuration().Round(time.Microsecond))
	if s.GetStore() == "sqlite" || s.GetStore() == "" {
		fact("data", "%s + %s journal, sync %s, in %s", output.Size(s.GetDatabaseBytes()), output.Size(s.GetWalBytes()),
			s.GetSync(), s.GetDataDir())
	} else {
		fact("data", "%s in %s", output.Size(s.GetDatabaseBytes()), s.GetStore())
		fact("confirmed", "is %s", s.GetConfirmed())
		fact("folder", "%s", s.GetDataDir())
	}
	if s.GetWalLeftOut() > 0 {
		fact("left out", "%s of commits in the journal, behind a damaged place", output.Size(s.GetWalLeftOut()))
	}
	fact("listening", "%s", strings.Join(s.GetListen(), ", "))
	replicaFacts(s, fact)
}

// replicaFacts prints the facts about the replicas, if there are several.
func replicaFacts(s *pb.GetStatusResponse, fact func(label, format string, args ...any)) {
	if s.GetReplica() == "" {
		return
	}
	fact("replica", "%s", s.GetReplica())
	for _, r := range s.GetReplicas() {
		switch silent := r.GetSilentFor().AsDuration(); {
		case r.GetLeads():
			fact("leader", "%s, for %s", r.GetAddress(), r.GetLedFor().AsDuration().Round(time.Second))
		case silent > absent:
			fact("silent", "%s, for %s", r.GetAddress(), silent.Round(time.Second))
		default:
			fact("follower", "%s", r.GetAddress())
		}
	}
}

// absent is after how long without a sign a replica counts as lost.
const absent = 30 * time.Second

// memory is what the broker's process occupies, as an addition to a list; empty if it is unknown.
func memory(s *pb.GetStatusResponse) string {
	return prompt.Either(s.GetProcessMemoryBytes() == 0, "", ", "+output.Size(s.GetProcessMemoryBytes())+" of memory")
}

// severities counts findings by severity: "2 errors, 1 warning".
func severities(all []*pb.Finding) string {
	var parts []string
	for _, severity := range []pb.FindingSeverity{
		pb.FindingSeverity_FINDING_SEVERITY_ERROR, pb.FindingSeverity_FINDING_SEVERITY_WARNING,
	} {
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

// Ping is brokerctl ping.
var Ping = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "ping",
		Short: "Check whether the broker answers",
		Long: `Check whether the broker answers, and how fast. With --wait, retry that long, for
a broker that is starting. Exit code 69: it does not answer.`,
		Example: "  brokerctl ping --wait 10s",
	},
	Options: []command.Option{{Name: "wait", Type: "duration", Usage: "retry for this long"}},
	Run: func(g *command.Given, _ command.None) error {
		wait := g.Duration("wait")
		done := g.Progress(wait, "the broker")
		took, err := command.Ping(g.Caller, g.Cmd.Context(), wait)
		done()
		if err != nil {
			return err
		}
		addr := g.Client.Address()
		return g.ShowValue(g.Cmd, Pong{Addr: addr, Took: took.String()},
			fmt.Sprintf("%s answers after %s", addr, took.Round(10*time.Microsecond)))
	},
}

// Pong is what ping says as JSON.
type Pong struct {
	Addr string `json:"addr"`
	Took string `json:"took"` // such as "1.2ms"
}
