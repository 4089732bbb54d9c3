package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"brokerd/client"
	"brokerd/cmd/brokerctl/demo"
	pb "brokerd/gen/brokerd/v1"
)

// demoOptions are the options of demo.
type demoOptions struct {
	pace      float64
	dashboard bool
}

// AddFlags adds the options.
func (o *demoOptions) AddFlags(f *pflag.FlagSet) {
	f.Float64Var(&o.pace, "pace", 1, "how long the agents take: 2 = twice as long, 0 = no time")
	f.BoolVar(&o.dashboard, "dashboard", false, "print a link to the dashboard, and keep the team at work until Ctrl-C")
}

func newDemoCommand(c *cli) *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a small team at work, on a separate broker",
		Long: `Start a broker in a temporary folder, and show how a lead, two builders and a reviewer
work with it: tasks for a role, a failed task and its retry, a question, a dead letter, a
message to everyone; then locks, a token, and a crash. It takes about twenty seconds and
does not touch other brokers. When it ends, even if it is interrupted or killed, nothing
remains of it.

Every step is a brokerctl command, which the demo shows. On a terminal the demo draws a
board with a lane for each member of the team. In a pipe it prints one line per step,
with -o json one object per step. Colour needs a terminal without NO_COLOR.

With --dashboard, the demo prints a link for a browser instead. Its team plans, builds,
reviews, votes and sometimes fails, until Ctrl-C.

brokerd is started from the folder that brokerctl is in, else from PATH.`,
		Example: `  brokerctl demo
  brokerctl demo --dashboard`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !(o.pace >= 0 && o.pace <= 10) {
				return usagef("--pace is %v; 0 to 10 is allowed", o.pace)
			}
			brokerd, err := c.findDaemon()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find brokerctl: %w", err)
			}
			format, err := c.format()
			if err != nil {
				return err
			}
			out := withoutSIGPIPE(cmd.OutOrStdout())
			options := demo.Options{
				Brokerd: brokerd, Brokerctl: self, Out: out, Style: c.demoStyle(out, format == formatJSON),
				Variables: c.env.Variables, Now: c.env.Now, Pace: o.pace,
			}
			if o.dashboard {
				options.Dashboard = demoLink
			}
			err = demo.Run(cmd.Context(), options)
			if errors.Is(err, syscall.EPIPE) { // the end of the reader is no error of the demo
				return &failure{code: exitSignal + int(syscall.SIGPIPE)}
			}
			return err
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// demoLink returns the lines with a link to the dashboard of the demo's broker.
func demoLink(ctx context.Context, broker *client.Client) (string, error) {
	login, err := createLogin(ctx, broker, pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR, false)
	return login.link.text(), err
}

// findDaemon returns the path of brokerd: beside brokerctl, else in PATH.
func (c *cli) findDaemon() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "brokerd")); err == nil {
			return beside, nil
		}
	}
	path, err := c.env.lookPath("brokerd")
	if err != nil {
		return "", fmt.Errorf("brokerd is neither beside brokerctl nor in PATH; build both with `make build`")
	}
	return path, nil
}

// demoStyle returns how the demo writes to out: a board on a terminal, else plain lines or JSON.
func (c *cli) demoStyle(out io.Writer, json bool) demo.Style {
	f, ok := out.(*os.File)
	if !ok || json {
		return demo.Style{JSON: json}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return demo.Style{}
	}
	s := demo.Style{Width: int(size.Col)}
	if c.env.get("TERM") != "dumb" {
		s.Colour, s.Height = c.env.get("NO_COLOR") == "", int(size.Row)
	}
	return s
}
