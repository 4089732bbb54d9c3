package authority

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// leastValidity is the shortest validity that leaves time to install a certificate.
const leastValidity = time.Minute

// Command is brokerctl credential tls.
var Command = command.Procedure[command.None]{
	Page: command.Page{
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
	},
	Args: []command.Arg{{Name: "the folder", Kind: command.Folder}, {}},
	Options: []command.Option{
		{Name: "host", Type: "strings", Comma: true,
			Usage: "a name or address of the daemon's machine (repeatable; default: this machine)"},
		{Name: "for", Type: "duration", Value: prompt.Duration(DefaultValidity),
			Usage: "how long server and agent certificates are valid (default: 365d)"},
		{Name: "renew", Type: "bool",
			Usage: "replace certificates: those named by --host and AGENT, else all but the root"},
	},
	Run: makeCertificates,
}

func makeCertificates(g *command.Given, _ command.None) error {
	c, agents := g.Caller, g.Args[1:]
	hosts := slices.DeleteFunc(g.Texts("host"), func(host string) bool { return host == "" }) // --host '' is none
	term := Term{Validity: g.Duration("for"), Replace: g.On("renew")}
	if term.Validity < leastValidity {
		return problem.Usagef("--for must be at least %s", prompt.Duration(leastValidity))
	}
	s, err := c.Settings()
	if err != nil {
		return err
	}
	session := cmp.Or(s.Session.Value, "default")
	a, root, err := Open(c.Env.Path(g.Args[0]), c.Env.Now())
	if err != nil {
		return problem.Failf(problem.ExitConflict, "%v", err)
	}
	done := []Certificate{root}
	named := each.Of(agents, func(agent string) [2]string { return [2]string{session, agent} })
	if term.Replace && len(named) == 0 && len(hosts) == 0 {
		if named, err = a.Issued(); err != nil {
			return err
		}
	}
	if !term.Replace || len(hosts) > 0 || len(agents) == 0 {
		server, err := a.Server(hosts, term)
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
	return showCertificates(c, g.Cmd, done)
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
			shown := CertificateFiles{
				v.Kind, v.Session, v.Agent, slices.Concat([]string{}, v.Hosts), v.File, v.Key, v.Expires, v.Written,
			}
			if err := e.Encode(shown); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.NewTable(out, table.Column{Name: "CERTIFICATE"}, table.Column{Name: "FOR", Rank: 1, Min: 12, Typical: 30},
		table.Column{Name: "EXPIRES", Typical: c.TimeWidth()}, table.Column{Name: "STATE"})
	for _, v := range all {
		whom := prompt.Either(v.Agent != "", v.Agent+" in "+v.Session, strings.Join(v.Hosts, ", "))
		t.Row(v.File, whom, c.When(timestamppb.New(v.Expires)), prompt.Either(v.Written, "written", "kept"))
	}
	return t.Flush()
}
