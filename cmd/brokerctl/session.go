package main

import (
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "brokerd/gen/brokerd/v1"
)

func newSessionCommand(c *cli) *cobra.Command {
	return group("session", "Sessions: the scopes in which everything else lives", `A session is one project or team of agents at work; default always exists. Choose one with --session.`,
		newSessionCreateCommand(c), newSessionGetCommand(c), newSessionListCommand(c), newSessionConfigureCommand(c))
}

// settingsOptions are a session's settings.
type settingsOptions struct {
	description  string
	ageing       time.Duration
	mailboxLimit int64
	maxAttempts  int32
	requestID    string
}

// AddFlags adds the options.
func (o *settingsOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.description, "description", "", "one line for people")
	f.DurationVar(&o.ageing, "ageing", 0, "how much waiting is worth one level of priority; 0 = strict order (new sessions: 5m)")
	f.Int64Var(&o.mailboxLimit, "mailbox-limit", 0, "deliveries that may wait in one mailbox; 0 = no limit (new sessions: 10000)")
	f.Int32Var(&o.maxAttempts, "max-attempts", 0, "failed attempts until a message is a dead letter (new sessions: 3)")
}

// settings returns those that were given.
func (o *settingsOptions) settings(cmd *cobra.Command) *pb.SessionSettings {
	s := &pb.SessionSettings{
		MailboxLimit: ifSet(cmd, "mailbox-limit", o.mailboxLimit),
		MaxAttempts:  ifSet(cmd, "max-attempts", o.maxAttempts),
	}
	if d := ifSet(cmd, "ageing", o.ageing); d != nil {
		s.Ageing = always(*d)
	}
	return s
}

func newSessionCreateCommand(c *cli) *cobra.Command {
	o := &settingsOptions{}
	cmd := &cobra.Command{
		Use:               "create NAME",
		Short:             "Make a session (operators)",
		Example:           `  brokerctl session create website --description "Relaunch" --max-attempts 5`,
		Args:              exactly("the session's name"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			// The session of the call must exist, the new one does not yet.
			answer, err := broker.In("").Sessions().CreateSession(cmd.Context(), &pb.CreateSessionRequest{
				RequestId: o.requestID, Name: args[0], Description: o.description, Settings: o.settings(cmd),
			})
			if err != nil {
				return err
			}
			return c.showSession(cmd, answer.GetSession())
		},
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	return cmd
}

func newSessionGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "get [NAME]",
		Short:             "Show one session; without a name, the one at work",
		Example:           `  brokerctl session get website`,
		Args:              between(0, "the session's name"),
		ValidArgsFunction: c.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.GetSessionRequest{}
			if len(args) > 0 {
				request.Name = args[0]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Sessions().GetSession(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.showSession(cmd, answer.GetSession())
		},
	}
}

// showSession shows all that is known of a session.
func (c *cli) showSession(cmd *cobra.Command, s *pb.Session) error {
	return c.show(cmd, s, func(w io.Writer) {
		t := newTable(w)
		t.row("session", s.GetName())
		if s.GetDescription() != "" {
			t.row("description", s.GetDescription())
		}
		t.row("created", c.when(s.GetCreatedAt()))
		t.row("ageing", ageing(s))
		t.row("mailbox limit", mailboxLimit(s))
		t.row("max attempts", strconv.Itoa(int(s.GetSettings().GetMaxAttempts())))
		_ = t.flush() // to the command's own output: nobody is left to tell
	})
}

func ageing(s *pb.Session) string {
	d := s.GetSettings().GetAgeing().AsDuration()
	return cond(d > 0, short(d), "none, strict order")
}

func mailboxLimit(s *pb.Session) string {
	n := s.GetSettings().GetMailboxLimit()
	return cond(n > 0, strconv.FormatInt(n, 10), "none")
}

func newSessionListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Short:             "List sessions",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			sessions, err := pages(0, func(size int32, token string) ([]*pb.Session, string, error) {
				page, err := broker.Sessions().ListSessions(cmd.Context(), &pb.ListSessionsRequest{PageSize: size, PageToken: token})
				return page.GetSessions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, sessions, view[*pb.Session]{
				columns: []string{"SESSION", "CREATED", "AGEING", "MAILBOX LIMIT", "MAX ATTEMPTS", "DESCRIPTION"},
				row: func(s *pb.Session) []string {
					return []string{
						s.GetName(), c.ago(s.GetCreatedAt()), ageing(s), mailboxLimit(s),
						strconv.Itoa(int(s.GetSettings().GetMaxAttempts())), clip(s.GetDescription(), 60),
					}
				},
				none: "no sessions",
			})
		},
	}
}

func newSessionConfigureCommand(c *cli) *cobra.Command {
	o := &settingsOptions{}
	cmd := &cobra.Command{
		Use:               "configure [NAME]",
		Short:             "Change a session's settings (operators)",
		Long:              "Change a session's settings. What is not given stays as it is. Without a name the session at work is meant.",
		Example:           `  brokerctl session configure website --mailbox-limit 0 --ageing 1m`,
		Args:              between(0, "the session's name"),
		ValidArgsFunction: c.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.ConfigureSessionRequest{
				RequestId: o.requestID, Description: ifSet(cmd, "description", o.description), Settings: o.settings(cmd),
			}
			broker, err := c.connect(cmd.Context())
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
			return c.showSession(cmd, answer.GetSession())
		},
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	cmd.MarkFlagsOneRequired("description", "ageing", "mailbox-limit", "max-attempts")
	return cmd
}
