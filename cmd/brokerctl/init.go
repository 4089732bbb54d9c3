package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// initOptions are the options of init. The global ones say what to write.
type initOptions struct {
	role  string
	force bool
}

// AddFlags adds the options.
func (o *initOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.role, "role", "", "with --agent: register the agent with this role")
	f.BoolVar(&o.force, "force", false, "overwrite a file that is there")
}

func newInitCommand(c *cli) *cobra.Command {
	o := &initOptions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a .brokerd.yaml, so that commands in this folder need no options",
		Long: `Write a .brokerd.yaml with what --agent, --session, --addr and --output say: commands in this folder and below
need none of them then. An agent that is not registered yet is registered. Exit code 69: the file was written, but no
broker answers.`,
		Example: `  brokerctl init --agent builder-1 --role builder
  brokerctl init --session website`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // the file that is replaced may be broken
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(c, cmd) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// initialized is what init says as JSON.
type initialized struct {
	File       string `json:"file"`
	Addr       string `json:"addr"` // where the broker answers
	Session    string `json:"session"`
	Agent      string `json:"agent"`
	Registered bool   `json:"registered"` // by this command
	Next       string `json:"next"`
}

func (o *initOptions) run(c *cli, cmd *cobra.Command) error {
	if o.role != "" && c.global.agent == "" {
		return usagef("--role is that of an agent: give --agent NAME too")
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if c.global.session == "" {
		c.global.session = "default"
	}
	done := initialized{File: filepath.Join(dir, configFile), Session: c.global.session, Agent: c.global.agent}
	if err := o.write(c, done.File); err != nil {
		return err
	}
	broker, err := c.connect(cmd.Context())
	if err == nil {
		done.Addr = broker.Address()
		done.Registered, err = o.register(c, cmd.Context())
	}
	if err != nil {
		code, text := c.explain(err)
		return failf(code, "wrote %s; but: %s", done.File, text)
	}
	done.Next = "brokerctl agent register NAME --role ROLE, or brokerctl init --force --agent NAME"
	if done.Agent != "" {
		done.Next = "brokerctl guide tells how to work; brokerctl next --wait 5m takes the first message"
	}
	lines := []string{"wrote " + done.File + "; the broker at " + done.Addr + " answers"}
	if done.Agent != "" {
		lines = append(lines, fmt.Sprintf("%s is %s", done.Agent, cond(done.Registered, "registered now", "registered already")))
	}
	return c.showValue(cmd, done, strings.Join(append(lines, "Next: "+done.Next), "\n"))
}

// write writes the file with what was given.
func (o *initOptions) write(c *cli, path string) error {
	doc := yaml.Node{Kind: yaml.MappingNode, HeadComment: "Read by brokerctl in this folder and below; options and environment win."}
	for _, pair := range [][2]string{
		{"addr", c.global.addr}, {"session", c.global.session}, {"agent", c.global.agent}, {"output", c.global.output},
	} {
		if pair[1] != "" {
			doc.Content = append(doc.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: pair[0]}, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: pair[1]})
		}
	}
	text, err := yaml.Marshal(&doc)
	if err != nil {
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if o.force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return failf(exitConflict, "%s is there already; change it with an editor, or overwrite it with --force", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// register registers the agent if it is not, and returns whether it did. Without an agent it sees whether the broker answers.
func (o *initOptions) register(c *cli, ctx context.Context) (bool, error) {
	broker := c.client
	if c.global.agent == "" {
		_, err := broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
		return false, err
	}
	_, err := broker.As("").Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: c.global.agent})
	if status.Code(err) != codes.NotFound {
		return false, err
	}
	_, err = broker.As(c.global.agent).Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: o.role, Lease: always(shellLease)})
	return err == nil, err
}
