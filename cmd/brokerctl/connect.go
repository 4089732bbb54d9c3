package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"brokerd/client"
	"brokerd/internal/prompt"
)

// connect returns the connection of this run, with the identity that options, environment and file say.
func (c *cli) connect(ctx context.Context, more ...client.Option) (*client.Client, error) {
	if c.client != nil {
		return c.client, nil
	}
	s, err := c.settings()
	if err == nil {
		err = s.refused
	}
	if err != nil {
		return nil, err
	}
	env := c.env.client()
	env.Getenv = func(name string) string { // the settings have the credential, or another one
		return prompt.Either(name == "BROKERD_CREDENTIAL_FILE", "", c.env.get(name))
	}
	opts, err := env.Options()
	if err != nil {
		return nil, usagef("%v", err)
	}
	if len(s.unchosen) > 0 && !needsNoAgent(c.path) {
		return nil, usagef("%s has several agents (%s) and nothing chooses one: export BROKERD_AGENT=NAME; in a coding agent: "+
			"brokerctl init --agent NAME; as operator: --agent ''", s.file, strings.Join(s.unchosen, ", "))
	}
	opts = append(opts, client.WithAddress(s.addr.value), client.WithSession(s.session.value), client.WithAgent(s.agent.value), client.WithTLS(s.tls))
	if s.otherAgent { // the incarnation in the environment is not this one's, nor the lock
		opts = append(opts, client.WithIncarnation(0), client.WithFence(0))
	}
	if file := s.credentialFile; file.value != "" {
		secret, err := client.ReadCredential(file.value)
		if err != nil {
			return nil, usagef("%s: %v", file.from, err)
		}
		opts = append(opts, client.WithCredential(secret))
	}
	c.env.Variables = slices.Concat(c.env.Variables, s.forChildren(c.env))
	c.client, err = client.Dial(ctx, append(opts, more...)...)
	if errors.As(err, new(*client.AddressError)) {
		return nil, usagef("%s: %v", s.addr.from, err)
	}
	if noBroker := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED); !noBroker || !c.mayStart(s) {
		return c.client, err
	}
	c.starting = true
	if _, err := c.up(ctx, nil); err != nil {
		return nil, err
	}
	return c.client, nil // up has connected
}

// mayStart reports whether this command starts a broker if none runs: a part of a coding agent, where the settings ask for
// it and name no other broker.
func (c *cli) mayStart(s settings) bool {
	path := strings.Fields(c.path)
	if !s.start || s.addr.value != "" || c.starting || len(path) < 2 {
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

// close ends the connection, if there is one.
func (c *cli) close() {
	if c.client != nil {
		c.client.Close()
	}
}

// connectAs is connect for commands whose argument may name the agent that they act as. The argument
// replaces BROKERD_AGENT; a different --agent is an error.
func (c *cli) connectAs(ctx context.Context, args []string) (*client.Client, error) {
	if len(args) > 0 && c.global.agent != "" && args[0] != "" && args[0] != c.global.agent {
		return nil, usagef("NAME is %q and --agent is %q; give only one of them", args[0], c.global.agent)
	}
	if s, err := c.settings(); err == nil && len(args) > 0 && args[0] != "" && len(s.unchosen) > 0 {
		c.found.unchosen = nil // the argument chooses
	}
	broker, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	if len(args) == 0 || args[0] == broker.Identity().Agent {
		return broker, nil
	}
	if args[0] == "" {
		return nil, usagef("the agent's name is empty")
	}
	c.found.agent = setting{args[0], "NAME"} // for errors
	return broker.As(args[0]), nil
}
