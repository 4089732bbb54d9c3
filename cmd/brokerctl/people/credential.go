package people

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const credentialLong = `Clients present a credential over TCP, from the file that
BROKERD_CREDENTIAL_FILE names, or a client certificate.`

// NewCredentialCommand returns the commands of brokerctl credential.
func NewCredentialCommand(c *command.Caller) *cobra.Command {
	return command.Group("credential", "Issue and revoke credentials and certificates", credentialLong, "  brokerctl credential list",
		newCredentialIssueCommand(c), credentialList.Command(c), credentialRevoke.Command(c))
}

// credentialIssueOptions are the options of credential issue.
type credentialIssueOptions struct {
	request    pb.IssueCredentialRequest
	ttl        time.Duration
	expiresAt  string
	out        string
	anySession bool
}

// AddFlags adds the options.
func (o *credentialIssueOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.request.Role, "role", "", "the only role that the agent may register with")
	f.BoolVar(&o.anySession, "any-session", false, "observer: read in every session")
	command.DurationVar(f, &o.ttl, "ttl", 0, "how long it is valid, 1s to 3650d (default: without limit)")
	f.StringVar(&o.expiresAt, "expires-at", "", "the time at which it ends, in RFC 3339")
	f.StringVar(&o.request.Description, "description", "", "text for people")
	f.StringVar(&o.out, "out", "", "write the secret to this new file, which only its owner can read")
	command.AddRequestID(cmd, &o.request.RequestId)
	cmd.MarkFlagsMutuallyExclusive("ttl", "expires-at")
}

func newCredentialIssueCommand(c *command.Caller) *cobra.Command {
	o := &credentialIssueOptions{}
	cmd := &cobra.Command{
		Use:   "issue agent NAME | observer | operator",
		Short: "Issue a credential and print its secret once (operators)",
		Long: `Issue a credential. An agent's and an observer's are for the current session.
Only this command prints the secret.`,
		Example: `  brokerctl credential issue agent builder-1 --role builder --out b1.credential
  brokerctl credential issue observer --any-session --ttl 30d`,
		Args: command.Between(1, "the access: agent, observer or operator", "the agent's name"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return []string{"agent", "observer", "operator"}, cobra.ShellCompDirectiveNoFileComp
			case len(args) == 1 && args[0] == "agent":
				return c.Words(cmd, words.AgentNames)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if err := o.fill(c, args, cmp.Or(broker.Identity().Session, "default")); err != nil {
				return err
			}
			answer, err := o.issue(cmd.Context(), c, broker)
			if err != nil {
				return err
			}
			if o.request.Agent != "" && o.request.Role == "" {
				o.warn(cmd, broker)
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				issued := answer.GetCredential()
				prompt.Say(w, "issued %s for %s, expires %s", prompt.Clean(issued.GetId()), credentialHolder(issued), cmp.Or(c.When(issued.GetExpiresAt()), "never"))
				if o.out == "" {
					prompt.Say(w, "secret: %s", answer.GetSecret())
				} else {
					prompt.Say(w, "the secret is in %s", o.out)
				}
			})
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// fill completes the request from the command line.
func (o *credentialIssueOptions) fill(c *command.Caller, args []string, session string) error {
	access, err := output.ParseEnum("access", pb.CredentialAccess(0).Descriptor(), args[0])
	if err != nil {
		return err
	}
	o.request.Access = pb.CredentialAccess(access)
	isAgent := o.request.Access == pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT
	switch {
	case isAgent && len(args) == 1:
		return problem.Usagef("the agent's name is missing: credential issue agent NAME")
	case !isAgent && len(args) > 1:
		return problem.Usagef("argument %q is one too many: only an agent has a name", args[1])
	case o.anySession && o.request.Access != pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER:
		return problem.Usagef("--any-session is for observers")
	}
	if isAgent {
		o.request.Agent = args[1]
	}
	if o.request.Access != pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR && !o.anySession {
		o.request.Session = session
	}
	if o.ttl != 0 {
		o.request.Expiry = &pb.IssueCredentialRequest_Ttl{Ttl: command.Duration(o.ttl)}
	}
	at, err := c.ParseTime("expires-at", o.expiresAt, 1)
	if at != nil {
		o.request.Expiry = &pb.IssueCredentialRequest_ExpiresAt{ExpiresAt: at}
	}
	return err
}

// issue issues the credential, and moves its secret into the file of --out. It creates the file before
// the call, so that a secret never lacks its place.
func (o *credentialIssueOptions) issue(ctx context.Context, c *command.Caller, broker *client.Client) (*pb.IssueCredentialResponse, error) {
	if o.out == "" {
		return o.call(ctx, broker)
	}
	out := c.Env.Path(o.out)
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, problem.Usagef("--out: %s exists already", filepath.Clean(o.out))
	}
	if err != nil {
		return nil, err
	}
	answer, err := o.call(ctx, broker)
	if err == nil {
		_, err = f.WriteString(answer.GetSecret() + "\n")
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(out))
	}
	answer.Secret = ""
	return answer, nil
}

// warn reports the roles of directors that the agent may take, because its credential has no role.
func (o *credentialIssueOptions) warn(cmd *cobra.Command, broker *client.Client) {
	answer, err := broker.Sessions().GetSession(cmd.Context(), &pb.GetSessionRequest{Name: o.request.Session})
	if roles := answer.GetSession().GetSettings().GetDirectors().GetNames(); err == nil && len(roles) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: this credential has no role, so %s may register as %s and then direct other "+
			"agents (halt, terminate, ...): bind it with --role ROLE\n", prompt.OneLine(o.request.Agent), strings.Join(roles, ", "))
	}
}

func (o *credentialIssueOptions) call(ctx context.Context, broker *client.Client) (*pb.IssueCredentialResponse, error) {
	answer, err := broker.Credentials().IssueCredential(ctx, &o.request)
	if err != nil || !answer.GetAlreadyIssued() {
		return answer, err
	}
	id := answer.GetCredential().GetId()
	return nil, problem.Failf(problem.ExitConflict, "this request has issued %s before, and the broker does not keep the secret: "+
		"if it is lost, run brokerctl credential revoke %[1]s and issue another one", id)
}

var credentialList = command.Listing[*pb.ListCredentialsRequest, *pb.ListCredentialsResponse, *pb.Credential]{
	Page: command.Page{
		Use:   "list",
		Short: "List credentials with their last use (operators)",
		Long: `List the active credentials of all sessions, or with --all those of the last 30
days that have ended too.`,
		Example: "  brokerctl credential list --all",
	},
	Call:    command.Of((*client.Client).Credentials, pb.CredentialServiceClient.ListCredentials),
	Items:   (*pb.ListCredentialsResponse).GetCredentials,
	Options: []command.Option{{Name: "all", Type: "bool", Usage: "ended ones too"}},
	Prepare: func(g *command.Given, q *pb.ListCredentialsRequest) error {
		if !g.On("all") {
			q.States = activeCredentials
		}
		return nil
	},
	View: credentialView,
}

var activeCredentials = []pb.CredentialState{pb.CredentialState_CREDENTIAL_STATE_ACTIVE}

func credentialView(g *command.Given) output.View[*pb.Credential] {
	return output.View[*pb.Credential]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "FOR", Min: 16}, {Name: "ROLE", Rank: 3}, {Name: "STATE", State: true}, {Name: "EXPIRES"}, {Name: "LAST USED", Rank: 1},
			{Name: "FROM", Rank: 2}, {Name: "ISSUED", Rank: 4}, {Name: "DESCRIPTION", Rank: 1, Min: 16},
		},
		Row: func(x *pb.Credential) []string {
			return []string{
				x.GetId(), credentialHolder(x), x.GetRole(), prompt.Enum(x.GetState()), g.When(x.GetExpiresAt()), g.When(x.GetLastUsedAt()), x.GetLastUsedFrom(),
				g.When(x.GetIssuedAt()), x.GetDescription(),
			}
		},
		None: "no credentials",
	}
}

// credentialHolder names the client that a credential is for.
func credentialHolder(x *pb.Credential) string {
	text := prompt.Enum(x.GetAccess())
	if x.GetAgent() != "" {
		text += " " + prompt.Clean(x.GetAgent())
	}
	if x.GetSession() != "" {
		text += " in " + prompt.Clean(x.GetSession())
	}
	return text
}

var credentialRevoke = command.Spec[*pb.RevokeCredentialRequest, *pb.RevokeCredentialResponse]{
	Page: command.Page{
		Use:     "revoke ID",
		Short:   "End a credential and its streams (operators)",
		Example: `  brokerctl credential revoke c-4711 --reason "laptop lost"`,
	},
	Call:    command.Of((*client.Client).Credentials, pb.CredentialServiceClient.RevokeCredential),
	Args:    []command.Arg{{Field: "id", Name: "the credential's id", Kind: command.Kind{Words: credentialWords}}},
	Options: []command.Option{{Field: "reason", Usage: "text for clients that present it"}, command.RequestID},
	Shown:   "credential",
	Text: func(g *command.Given, w io.Writer, _ *pb.RevokeCredentialRequest, a *pb.RevokeCredentialResponse) {
		ended := a.GetCredential()
		prompt.Say(w, "%s for %s: %s %s",
			prompt.Clean(ended.GetId()), credentialHolder(ended),
			prompt.Enum(ended.GetState()), g.When(ended.GetEndedAt()))
	},
}

// credentialWords returns the ids of the active credentials.
func credentialWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Credentials().ListCredentials(ctx,
		&pb.ListCredentialsRequest{States: activeCredentials, PageSize: command.MaxPage})
	var words []string
	for _, x := range page.GetCredentials() {
		words = append(words, x.GetId()+"\t"+credentialHolder(x))
	}
	return words, err
}
