package people

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewSessionCommand returns the commands of brokerctl session.
func NewSessionCommand(c *command.Caller) *cobra.Command {
	return command.Group("session", "Create, configure, export and close sessions", `A session is one project or team of agents, with its own agents, messages, locks
and keys. Every command works in one: --session, or default.`, "  brokerctl session list",
		sessionCreate.Command(c), sessionGet.Command(c), sessionList.Command(c), sessionConfigure.Command(c),
		sessionClose.Command(c), sessionExport.Command(c), sessionDelete.Command(c))
}

// outside connects for a command whose argument names the session. The current one need not exist.
func outside(g *command.Given) (*client.Client, error) {
	broker, err := g.Connect(g.Cmd.Context())
	if err == nil {
		broker = broker.In("")
	}
	return broker, err
}

var sessionCreate = command.Spec[*pb.CreateSessionRequest, *pb.CreateSessionResponse]{
	Page: command.Page{
		Use:   "create NAME",
		Short: "Create a session (operators)",
		Long: `Create a session. The command takes the settings of brokerctl session configure
as flags.`,
		Example: `  brokerctl session create website --description "Relaunch"`,
	},
	Connect: outside,
	Args:    []command.Arg{{Field: "name", Name: "the session's name"}},
	Options: settingOptions(command.RequestID),
	FlagsOf: "session configure",
	Shown:   "session",
	Text:    sessionText[*pb.CreateSessionRequest, *pb.CreateSessionResponse],
}

var sessionGet = command.Spec[*pb.GetSessionRequest, *pb.GetSessionResponse]{
	Page: command.Page{
		Use:     "get [NAME]",
		Short:   "Show one session; without NAME, the current one",
		Example: "  brokerctl session get website",
	},
	Args:  []command.Arg{sessionName},
	Shown: "session",
	Text:  sessionText[*pb.GetSessionRequest, *pb.GetSessionResponse],
}

var sessionName = command.Arg{Field: "name", Name: "the session's name", Kind: words.Session}

// sessionText shows all that is known of a session.
func sessionText[Q any, A interface{ GetSession() *pb.Session }](g *command.Given, w io.Writer, _ Q, a A) {
	s := a.GetSession()
	l := g.NewLabels(w)
	l.Line("session", s.GetName())
	l.Line("description", s.GetDescription())
	l.Line("created", g.When(s.GetCreatedAt()))
	l.State("state", prompt.Enum(s.GetState()))
	l.Line("closed", g.When(s.GetClosedAt()))
	settingLines(l, s.GetSettings())
	l.Flush()
}

var sessionList = command.Listing[*pb.ListSessionsRequest, *pb.ListSessionsResponse, *pb.Session]{
	Page:  command.Page{Use: "list", Short: "List sessions", Example: "  brokerctl session list"},
	Items: (*pb.ListSessionsResponse).GetSessions,
	View:  func(g *command.Given) output.View[*pb.Session] { return SessionView(g.Caller) },
}

var sessionConfigure = command.Spec[*pb.ConfigureSessionRequest, *pb.ConfigureSessionResponse]{
	Page: command.Page{
		Use:   "configure [NAME]",
		Short: "Change a session's settings (operators)",
		Long: `Change a session's settings; what is not given stays the same. Without NAME, the
current session is meant.`,
		Example: "  brokerctl session configure website --send-rate 50 --director lead",
	},
	Connect: func(g *command.Given) (*client.Client, error) {
		broker, err := g.Connect(g.Cmd.Context())
		if err == nil && len(g.Args) > 0 {
			broker = broker.In(g.Args[0])
		}
		return broker, err
	},
	Args:    []command.Arg{{Name: sessionName.Name, Kind: sessionName.Kind}},
	Options: settingOptions(command.RequestID),
	OneOf:   settingFlags(),
	Shown:   "session",
	Text:    sessionText[*pb.ConfigureSessionRequest, *pb.ConfigureSessionResponse],
}

// SessionView lists sessions.
func SessionView(c *command.Caller) output.View[*pb.Session] {
	return output.View[*pb.Session]{
		Columns: []table.Column{
			{Name: "SESSION", Min: 16}, {Name: "STATE", State: true}, {Name: "CREATED"}, {Name: "AGEING", Rank: 2},
			{Name: "MAILBOX LIMIT", Rank: 3}, {Name: "MAX ATTEMPTS", Rank: 4}, {Name: "SEND RATE", Rank: 5}, {Name: "DESCRIPTION", Rank: 1, Min: 24},
		},
		Row: func(s *pb.Session) []string {
			set := s.GetSettings()
			return []string{
				s.GetName(), prompt.Enum(s.GetState()), c.When(s.GetCreatedAt()), ageing(set), mailboxLimit(set),
				strconv.Itoa(int(set.GetMaxAttempts())), sendRate(set), s.GetDescription(),
			}
		},
		None: "no sessions",
	}
}
