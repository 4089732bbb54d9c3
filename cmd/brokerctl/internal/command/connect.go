package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// Connect returns the connection of this run, with the identity that options, environment and file say.
func (c *Caller) Connect(ctx context.Context, more ...client.Option) (*client.Client, error) {
	if c.Client != nil {
		return c.Client, nil
	}
	s, err := c.Settings()
	if err == nil {
		err = s.Refused
	}
	if err != nil {
		return nil, err
	}
	env := c.Env.Client()
	env.Getenv = func(name string) string { // the settings have the credential, or another one
		return prompt.Either(name == "BROKERD_CREDENTIAL_FILE", "", c.Env.Get(name))
	}
	opts, err := env.Options()
	if err != nil {
		return nil, problem.Usagef("%v", err)
	}
	if len(s.Unchosen) > 0 && !needsNoAgent(c.path) {
		return nil, problem.Usagef("%s has several agents (%s) and nothing chooses one: export BROKERD_AGENT=NAME; in a coding agent: "+
			"brokerctl init --agent NAME; as operator: --agent ''", s.File, strings.Join(s.Unchosen, ", "))
	}
	opts = append(opts, client.WithPatience(patience), client.WithAddress(s.Addr.Value),
		client.WithSession(s.Session.Value), client.WithAgent(s.Agent.Value), client.WithTLS(s.TLS))
	if s.OtherAgent { // the incarnation in the environment is not this one's, nor the lock
		opts = append(opts, client.WithIncarnation(0), client.WithFence(0))
	}
	if file := s.CredentialFile; file.Value != "" {
		secret, err := client.ReadCredential(file.Value)
		if err != nil {
			return nil, problem.Usagef("%s: %v", file.From, err)
		}
		opts = append(opts, client.WithCredential(secret))
	}
	c.Env.Variables = slices.Concat(c.Env.Variables, s.ForChildren(c.Env))
	c.Client, err = client.Dial(ctx, append(opts, more...)...)
	if errors.As(err, new(*client.AddressError)) {
		return nil, problem.Usagef("%s: %v", s.Addr.From, err)
	}
	if noBroker := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED); !noBroker || !c.mayStart(s) {
		return c.Client, err
	}
	c.starting = true
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return c.Client, nil // start has connected
}

// patience is how long a command that has connected waits for a broker that restarts, or for another replica that takes
// the lead.
const patience = 10 * time.Second

// CallTimeout bounds a call beside a command.
const CallTimeout = 10 * time.Second

// mayStart reports whether this command starts a broker if none runs: a part of a coding agent, where the settings ask for
// it and name no other broker.
func (c *Caller) mayStart(s setting.Settings) bool {
	path := strings.Fields(c.path)
	if !s.Start || s.Addr.Value != "" || c.starting || len(path) < 2 {
		return false
	}
	changesNothing := c.flags.Changed("dry-run") || c.flags.Changed("check")
	return path[1] == "mcp" || path[1] == "hook" || path[1] == "setup" && !changesNothing
}

// agentless are the commands that do not need to know which agent of a folder calls: those that read what is not an
// agent's own, and those of operators. A name is that of a group, or of a command in any group.
var agentless = strings.Fields("admin bench bridge call credential dashboard dlq down explain mailbox overview ping session status top type up " +
	"configure download export follow get halt history list nudge report resume revoke shutdown terminate validate")

// needsNoAgent reports whether a command, such as `brokerctl task list`, works in a folder with several agents of which
// none is chosen. One that writes would otherwise do so as operator.
func needsNoAgent(command string) bool {
	path := strings.Fields(command)
	return len(path) > 1 && (slices.Contains(agentless, path[1]) || slices.Contains(agentless, path[len(path)-1]))
}

// Close ends the connection, if there is one.
func (c *Caller) Close() {
	if c.Client != nil {
		c.Client.Close()
	}
}

// ConnectAs is connect for commands whose argument may name the agent that they act as. The argument
// replaces BROKERD_AGENT; a different --agent is an error.
func (c *Caller) ConnectAs(ctx context.Context, args []string) (*client.Client, error) {
	if len(args) > 0 && c.Global.Agent != "" && args[0] != "" && args[0] != c.Global.Agent {
		return nil, problem.Usagef("NAME is %q and --agent is %q; give only one of them", args[0], c.Global.Agent)
	}
	if s, err := c.Settings(); err == nil && len(args) > 0 && args[0] != "" && len(s.Unchosen) > 0 {
		c.Found.Unchosen = nil // the argument chooses
	}
	broker, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if len(args) == 0 || args[0] == broker.Identity().Agent {
		return broker, nil
	}
	if args[0] == "" {
		return nil, problem.Usagef("the agent's name is empty")
	}
	c.Found.Agent = setting.Value{Value: args[0], From: "NAME"} // for errors
	return broker.As(args[0]), nil
}

// RetryNotice says on standard error when a stream was lost and is opened again.
func (c *Caller) RetryNotice(cmd *cobra.Command) client.Option {
	w := cmd.ErrOrStderr()
	return client.WithRetryNotice(func(err error, in time.Duration) {
		_, text := c.Explain(err)
		fmt.Fprintf(w, "brokerctl: %s; trying again in %s\n", prompt.OneLine(text), in.Round(time.Millisecond))
	})
}

// Away reports whether a call failed because the broker does not answer now.
func Away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.ResourceExhausted:
		return client.RetryDelay(err) > 0
	}
	return false
}
