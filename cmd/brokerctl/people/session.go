package people

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

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
		newSessionCreateCommand(c), newSessionGetCommand(c), newSessionListCommand(c), newSessionConfigureCommand(c),
		newSessionCloseCommand(c), newSessionExportCommand(c), newSessionDeleteCommand(c))
}

func newSessionCreateCommand(c *command.Caller) *cobra.Command {
	o := &settingsOptions{}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a session (operators)",
		Long: `Create a session. The command takes the settings of brokerctl session configure
as flags.`,
		Annotations:       map[string]string{command.FlagsOf: "session configure"},
		Example:           `  brokerctl session create website --description "Relaunch"`,
		Args:              command.Exactly("the session's name"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := o.settings(cmd)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			// The session of the call must exist, the new one does not yet.
			answer, err := broker.In("").Sessions().CreateSession(cmd.Context(), &pb.CreateSessionRequest{
				RequestId: o.requestID, Name: args[0], Description: o.description, Settings: settings,
			})
			if err != nil {
				return err
			}
			return showSession(c, cmd, answer.GetSession())
		},
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	return cmd
}

func newSessionGetCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:               "get [NAME]",
		Short:             "Show one session; without NAME, the current one",
		Example:           `  brokerctl session get website`,
		Args:              command.Between(0, "the session's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.SessionNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.GetSessionRequest{}
			if len(args) > 0 {
				request.Name = args[0]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Sessions().GetSession(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showSession(c, cmd, answer.GetSession())
		},
	}
}

// showSession shows all that is known of a session.
func showSession(c *command.Caller, cmd *cobra.Command, s *pb.Session) error {
	return c.Show(cmd, s, func(w io.Writer) {
		l := c.NewLabels(w)
		l.Line("session", s.GetName())
		l.Line("description", s.GetDescription())
		l.Line("created", c.When(s.GetCreatedAt()))
		l.State("state", prompt.Enum(s.GetState()))
		l.Line("closed", c.When(s.GetClosedAt()))
		for _, setting := range settingRows(s.GetSettings()) {
			l.Line(setting.name, setting.value)
		}
		l.Flush()
	})
}

func newSessionListCommand(c *command.Caller) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List sessions",
		Example:           "  brokerctl session list",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			sessions, err := command.Pages(limit, func(size int32, token string) ([]*pb.Session, string, error) {
				page, err := broker.Sessions().ListSessions(cmd.Context(), &pb.ListSessionsRequest{PageSize: size, PageToken: token})
				return page.GetSessions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, sessions, SessionView(c))
		},
	}
	command.LimitVar(cmd.Flags(), &limit, 0)
	return cmd
}

func newSessionConfigureCommand(c *command.Caller) *cobra.Command {
	o := &settingsOptions{}
	cmd := &cobra.Command{
		Use:   "configure [NAME]",
		Short: "Change a session's settings (operators)",
		Long: `Change a session's settings; what is not given stays the same. Without NAME, the
current session is meant.`,
		Example:           "  brokerctl session configure website --send-rate 50 --director lead",
		Args:              command.Between(0, "the session's name"),
		ValidArgsFunction: c.CompleteArgs(false, words.SessionNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := o.settings(cmd)
			if err != nil {
				return err
			}
			request := &pb.ConfigureSessionRequest{
				RequestId: o.requestID, Description: command.IfSet(cmd, "description", o.description), Settings: settings,
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) > 0 {
				broker = broker.In(args[0])
			}
			answer, err := broker.Sessions().ConfigureSession(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showSession(c, cmd, answer.GetSession())
		},
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	cmd.MarkFlagsOneRequired(settingNames()...)
	return cmd
}

// SessionView lists sessions.
func SessionView(c *command.Caller) output.View[*pb.Session] {
	return output.View[*pb.Session]{
		Columns: []table.Column{
			{Name: "SESSION", Min: 16}, {Name: "STATE", State: true}, {Name: "CREATED"}, {Name: "AGEING", Rank: 2}, {Name: "MAILBOX LIMIT", Rank: 3},
			{Name: "MAX ATTEMPTS", Rank: 4}, {Name: "SEND RATE", Rank: 5}, {Name: "DESCRIPTION", Rank: 1, Min: 24},
		},
		Row: func(s *pb.Session) []string {
			set := s.GetSettings()
			return []string{
				s.GetName(), prompt.Enum(s.GetState()), c.When(s.GetCreatedAt()), ageing(set), mailboxLimit(set), strconv.Itoa(int(set.GetMaxAttempts())),
				sendRate(set), s.GetDescription(),
			}
		},
		None: "no sessions",
	}
}
