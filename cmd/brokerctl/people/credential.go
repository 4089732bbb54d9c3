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

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
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

// newCredentialIssueCommand returns the command credential issue. Its usage has alternatives, of which only an agent has a
// second argument.
func newCredentialIssueCommand(c *command.Caller) *cobra.Command {
	cmd := credentialIssue.Command(c)
	cmd.Args = command.Between(1, credentialIssue.Args[0].Name, credentialIssue.Args[1].Name)
	return cmd
}

var credentialIssue = command.Spec[*pb.IssueCredentialRequest, *pb.IssueCredentialResponse]{
	Page: command.Page{
		Use:   "issue agent NAME | observer | operator",
		Short: "Issue a credential and print its secret once (operators)",
		Long: `Issue a credential. An agent's and an observer's are for the current session.
Only this command prints the secret.`,
		Example: `  brokerctl credential issue agent builder-1 --role builder --out b1.credential
  brokerctl credential issue observer --any-session --ttl 30d`,
	},
	Call: issue,
	Args: []command.Arg{
		{Field: "access", Name: "the access: agent, observer or operator",
			Kind: command.Kind{Fixed: []string{"agent", "observer", "operator"}}},
		{Field: "agent", Name: "the agent's name", After: func(before []string) (k command.Kind) {
			if before[0] == "agent" {
				k = words.Agent
			}
			return k
		}},
	},
	Options: []command.Option{
		{Field: "role", Kind: words.Role, Usage: "the only role that the agent may register with"},
		{Name: "any-session", Type: "bool", Usage: "observer: read in every session"},
		{Field: "ttl", Usage: "how long it is valid, 1s to 3650d (default: without limit)"},
		{Field: "expires_at", Kind: command.Kind{Name: "TEXT", Read: command.Ahead.Read},
			Usage: "the time at which it ends, in RFC 3339"},
		{Field: "description", Usage: "text for people"},
		{Name: "out", Type: "string", Usage: "write the secret to this new file, which only its owner can read"},
		command.RequestID,
	},
	Apart: [][]string{{"ttl", "expires-at"}},
	Prepare: func(g *command.Given, q *pb.IssueCredentialRequest) error {
		isAgent := q.GetAccess() == pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT
		switch {
		case isAgent && q.GetAgent() == "":
			return problem.Usagef("the agent's name is missing: credential issue agent NAME")
		case !isAgent && q.GetAgent() != "":
			return problem.Usagef("argument %q is one too many: only an agent has a name", q.GetAgent())
		case g.On("any-session") && q.GetAccess() != pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER:
			return problem.Usagef("--any-session is for observers")
		}
		return nil
	},
	After: func(
		g *command.Given, broker *client.Client, q *pb.IssueCredentialRequest, _ *pb.IssueCredentialResponse,
	) (bool, error) {
		if q.GetAgent() != "" && q.GetRole() == "" {
			warnOfDirectors(g, broker, q)
		}
		return false, nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.IssueCredentialRequest, a *pb.IssueCredentialResponse) {
		issued := a.GetCredential()
		prompt.Say(w, "issued %s for %s, expires %s",
			prompt.Clean(issued.GetId()), credentialHolder(issued), cmp.Or(g.When(issued.GetExpiresAt()), "never"))
		if out := g.Text("out"); out == "" {
			prompt.Say(w, "secret: %s", a.GetSecret())
		} else {
			prompt.Say(w, "the secret is in %s", out)
		}
	},
}

// issue issues the credential, and moves its secret into the file of --out. It creates the file before
// the call, so that a secret never lacks its place.
func issue(
	g *command.Given, broker *client.Client, q *pb.IssueCredentialRequest,
) (*pb.IssueCredentialResponse, error) {
	if q.GetAccess() != pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR && !g.On("any-session") {
		q.Session = cmp.Or(broker.Identity().Session, "default")
	}
	if g.Text("out") == "" {
		return issueOnce(g.Cmd.Context(), broker, q)
	}
	out := g.Env.Path(g.Text("out"))
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, problem.Usagef("--out: %s exists already", filepath.Clean(g.Text("out")))
	}
	if err != nil {
		return nil, err
	}
	answer, err := issueOnce(g.Cmd.Context(), broker, q)
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

// issueOnce fails if an earlier call of the request has the secret.
func issueOnce(
	ctx context.Context, broker *client.Client, q *pb.IssueCredentialRequest,
) (*pb.IssueCredentialResponse, error) {
	answer, err := broker.Credentials().IssueCredential(ctx, q)
	if err != nil || !answer.GetAlreadyIssued() {
		return answer, err
	}
	id := answer.GetCredential().GetId()
	return nil, problem.Failf(problem.ExitConflict, "this request has issued %s before, and the broker does not keep the secret: "+
		"if it is lost, run brokerctl credential revoke %[1]s and issue another one", id)
}

// warnOfDirectors reports the roles of directors that the agent may take, because its credential has no role.
func warnOfDirectors(g *command.Given, broker *client.Client, q *pb.IssueCredentialRequest) {
	answer, err := broker.Sessions().GetSession(g.Cmd.Context(), &pb.GetSessionRequest{Name: q.GetSession()})
	if roles := answer.GetSession().GetSettings().GetDirectors().GetNames(); err == nil && len(roles) > 0 {
		fmt.Fprintf(g.Cmd.ErrOrStderr(), "warning: this credential has no role, so %s may register as %s and then direct other "+
			"agents (halt, terminate, ...): bind it with --role ROLE\n", prompt.OneLine(q.GetAgent()), strings.Join(roles, ", "))
	}
}

var credentialList = command.Listing[*pb.ListCredentialsRequest, *pb.ListCredentialsResponse, *pb.Credential]{
	Page: command.Page{
		Use:   "list",
		Short: "List credentials with their last use (operators)",
		Long: `List the active credentials of all sessions, or with --all those of the last 30
days that have ended too.`,
		Example: "  brokerctl credential list --all",
	},
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
	return prompt.Enum(x.GetAccess()) + prompt.Either(x.GetAgent() != "", " "+prompt.Clean(x.GetAgent()), "") +
		prompt.Either(x.GetSession() != "", " in "+prompt.Clean(x.GetSession()), "")
}

var credentialRevoke = command.Spec[*pb.RevokeCredentialRequest, *pb.RevokeCredentialResponse]{
	Page: command.Page{
		Use:     "revoke ID",
		Short:   "End a credential and its streams (operators)",
		Example: `  brokerctl credential revoke c-4711 --reason "laptop lost"`,
	},
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
	return each.Of(page.GetCredentials(), func(x *pb.Credential) string {
		return x.GetId() + "\t" + credentialHolder(x)
	}), err
}
