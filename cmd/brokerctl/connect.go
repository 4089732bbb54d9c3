package main

import (
	"context"
	"os"

	"brokerd/client"
)

// connect returns the connection of this run, with the identity that options and environment say.
func (c *cli) connect(ctx context.Context, more ...client.Option) (*client.Client, error) {
	if c.client != nil {
		return c.client, nil
	}
	opts, err := client.EnvironmentOptions()
	if err != nil {
		return nil, usagef("%v", err)
	}
	if c.global.addr != "" {
		opts = append(opts, client.WithAddress(c.global.addr))
	}
	if c.global.session != "" {
		opts = append(opts, client.WithSession(c.global.session))
	}
	if a := c.global.agent; a != "" || c.global.operator {
		opts = append(opts, client.WithAgent(a))
		if a != os.Getenv("BROKERD_AGENT") { // the incarnation in the environment is the other agent's
			opts = append(opts, client.WithIncarnation(0))
		}
	}
	c.client, err = client.Dial(ctx, append(opts, more...)...)
	return c.client, err
}

// close ends the connection, if there is one.
func (c *cli) close() {
	if c.client != nil {
		c.client.Close()
	}
}

// connectAs is connect for commands whose argument may name the agent that they act as; against --agent it wins.
func (c *cli) connectAs(ctx context.Context, args []string) (*client.Client, error) {
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
	return broker.As(args[0]), nil
}
