package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
)

// NewCommand returns the command brokerctl demo.
func NewCommand(c *command.Caller, link func(context.Context, *client.Client) (string, error)) *cobra.Command {
	return command.Procedure[command.None]{
		Page: command.Page{
			Use:   "demo",
			Short: "Show a small team at work, on a separate broker",
			Long: `Start a broker in a temporary folder, and show how a lead, two builders and a reviewer
work with it: tasks for a role, a failed task and its retry, a question, a dead letter, a
message to everyone; then locks, a token, and a crash. It takes about twenty seconds.
When it ends, even if it is killed, nothing remains of it.

Every step is a brokerctl command, which the demo shows. On a terminal the demo draws a
board with a lane for each member of the team. In a pipe it prints one line per step,
with -o json one object per step.

With --here, an operator's team works on the running broker, in a session that the demo
deletes, unless it is killed.

With --dashboard, it prints a link for a browser instead. Its team works, reviews and votes
until Ctrl-C.

brokerd is started from the folder that brokerctl is in, else from PATH.`,
			Example: `  brokerctl demo
  brokerctl demo --dashboard`,
		},
		Options: []command.Option{
			{Name: "pace", Type: "double", Value: "1", Usage: "how long the agents take: 2 = twice as long, 0 = no time"},
			{Name: "here", Type: "bool", Usage: "use the running broker"},
			{Name: "dashboard", Type: "bool",
				Usage: "print a link to the dashboard, until Ctrl-C"},
		},
		Run: func(g *command.Given, _ command.None) error {
			pace := g.Float("pace")
			if !(pace >= 0 && pace <= 10) {
				return problem.Usagef("--pace is %v; 0 to 10 is allowed", pace)
			}
			if g.On("here") && g.On("dashboard") {
				return problem.Usagef("--here and --dashboard exclude each other: " +
					"brokerctl dashboard opens that of a running broker")
			}
			options, err := where(g, c)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find brokerctl: %w", err)
			}
			format, err := c.Format()
			if err != nil {
				return err
			}
			out := output.WithoutSIGPIPE(g.Cmd.OutOrStdout())
			options.Brokerctl, options.Out, options.Style = self, out, demoStyle(c, out, format == output.FormatJSON)
			options.Variables, options.Now, options.Pace = c.Env.Variables, c.Env.Now, pace
			if g.On("dashboard") {
				options.Dashboard = link
			}
			err = Run(g.Cmd.Context(), options)
			if errors.Is(err, syscall.EPIPE) { // the end of the reader is no error of the demo
				return &problem.Failure{Code: problem.ExitSignal + int(syscall.SIGPIPE)}
			}
			return err
		},
	}.Command(c)
}

// where returns the options that say on which broker the demo runs.
func where(g *command.Given, c *command.Caller) (o Options, err error) {
	if g.On("here") {
		o.Here, err = c.Connect(g.Cmd.Context())
	} else {
		o.Brokerd, err = command.FindDaemon(c)
	}
	return o, err
}

// demoStyle returns how the demo writes to out: a board on a terminal, else plain lines or JSON.
func demoStyle(c *command.Caller, out io.Writer, json bool) Style {
	f, ok := out.(*os.File)
	if !ok || json {
		return Style{JSON: json}
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return Style{}
	}
	s := Style{Width: width}
	if c.Env.Get("TERM") != "dumb" {
		s.Colour, s.Height = c.Env.Get("NO_COLOR") == "", height
	}
	return s
}
