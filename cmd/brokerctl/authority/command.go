package authority

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// leastValidity is the shortest validity that leaves time to install a certificate.
const leastValidity = time.Minute

// tlsOptions are the options of credential tls.
type tlsOptions struct {
	hosts    []string
	validity time.Duration
	renew    bool
}

// AddFlags adds the options.
func (o *tlsOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.hosts, "host", nil, "a name or address of the daemon's machine (repeatable; default: this machine)")
	command.DurationVar(f, &o.validity, "for", DefaultValidity, "how long server and agent certificates are valid (default: 365d)")
	f.BoolVar(&o.renew, "renew", false, "replace certificates: those named by --host and AGENT, else all but the root")
}

// NewCommand returns the command brokerctl credential tls.
func NewCommand(c *command.Caller) *cobra.Command {
	o := &tlsOptions{}
	cmd := &cobra.Command{
		Use:   "tls DIR [AGENT...]",
		Short: "Make certificates for TLS without another authority",
		Long: `Keep a small certificate authority in DIR. It makes what DIR lacks: the root
(ca.pem, ca.key), the daemon's certificate (server.pem, server.key), and for each
AGENT of the session one that identifies it (agents/SESSION/AGENT.pem and .key).
No daemon is needed. Existing files stay, unless --renew replaces them; a running
daemon reads the new ones by itself. Keep ca.key secret: it can make certificates
of every agent.

  brokerd --listen HOST:7421 --tls-cert DIR/server.pem \
    --tls-key DIR/server.key --tls-client-ca DIR/ca.pem

Exit code 5: server.pem exists and is not for a --host.`,
		Example: `  brokerctl credential tls tls --host broker.example builder-1 critic-1
  brokerctl credential tls tls --renew`,
		Args: command.AtLeast("the folder"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args[0], args[1:]) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func (o *tlsOptions) run(c *command.Caller, cmd *cobra.Command, dir string, agents []string) error {
	if o.validity < leastValidity {
		return problem.Usagef("--for must be at least %s", prompt.Duration(leastValidity))
	}
	s, err := c.Settings()
	if err != nil {
		return err
	}
	session := s.Session.Value
	if session == "" {
		session = "default"
	}
	a, root, err := Open(c.Env.Path(dir), c.Env.Now())
	if err != nil {
		return problem.Failf(problem.ExitConflict, "%v", err)
	}
	done := []Certificate{root}
	term := Term{Validity: o.validity, Replace: o.renew}
	var named [][2]string
	for _, agent := range agents {
		named = append(named, [2]string{session, agent})
	}
	if o.renew && len(named) == 0 && len(o.hosts) == 0 {
		if named, err = a.Issued(); err != nil {
			return err
		}
		agents = nil
	}
	if !o.renew || len(o.hosts) > 0 || len(agents) == 0 {
		server, err := a.Server(o.hosts, term)
		if err != nil {
			return certificateError(err)
		}
		done = append(done, server)
	}
	for _, agent := range named {
		issued, err := a.Agent(agent[0], agent[1], term)
		if err != nil {
			return certificateError(err)
		}
		done = append(done, issued)
	}
	return showCertificates(c, cmd, done)
}

func certificateError(err error) error {
	if errors.Is(err, ErrExists) {
		return problem.Failf(problem.ExitConflict, "%v; --renew replaces it", err)
	}
	return problem.Failf(problem.ExitUsage, "%v", err)
}

// CertificateFiles is the JSON output of credential tls, one per certificate.
type CertificateFiles struct {
	Kind        string    `json:"kind"` // root, server or agent
	Session     string    `json:"session"`
	Agent       string    `json:"agent"`
	Hosts       []string  `json:"hosts"` // of the server
	Certificate string    `json:"certificate"`
	Key         string    `json:"key"`
	ExpiresAt   time.Time `json:"expires_at"`
	Written     bool      `json:"written"` // by this command
}

func showCertificates(c *command.Caller, cmd *cobra.Command, all []Certificate) error {
	format, err := c.Format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if format == output.FormatJSON {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		for _, v := range all {
			shown := CertificateFiles{v.Kind, v.Session, v.Agent, slices.Concat([]string{}, v.Hosts), v.File, v.Key, v.Expires, v.Written}
			if err := e.Encode(shown); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.NewTable(out, table.Column{Name: "CERTIFICATE"}, table.Column{Name: "FOR", Rank: 1, Min: 12, Typical: 30},
		table.Column{Name: "EXPIRES", Typical: c.TimeWidth()}, table.Column{Name: "STATE"})
	for _, v := range all {
		whom := strings.Join(v.Hosts, ", ")
		if v.Agent != "" {
			whom = v.Agent + " in " + v.Session
		}
		t.Row(v.File, whom, c.When(timestamppb.New(v.Expires)), prompt.Either(v.Written, "written", "kept"))
	}
	return t.Flush()
}
