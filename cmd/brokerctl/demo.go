package main

import (
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

	"brokerd/cmd/brokerctl/demo"
)

// demoOptions are the options of demo.
type demoOptions struct {
	pace float64
}

// AddFlags adds the options.
func (o *demoOptions) AddFlags(f *pflag.FlagSet) {
	f.Float64Var(&o.pace, "pace", 1, "how long the agents take over their work: 2 = twice as long, 0 = no time at all")
}

func newDemoCommand(c *cli) *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a small team at work, on a broker of its own",
		Long: `Start a broker in a temporary folder, let a lead, two builders and a reviewer work through it in front of you, and
remove it again: tasks for whoever has the time, a failure and its next attempt, a question and its reply, a dead
letter, a message to everyone; then locks, a token, and a crash. It takes about fifteen seconds, and touches no
other broker. Nothing remains of it, even if it is interrupted or killed.

brokerd is started from the folder that brokerctl is in, else from PATH. Colour is used on a terminal, unless
NO_COLOR is set.`,
		Example: `  brokerctl demo
  brokerctl demo --pace 0.2 | less`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !(o.pace >= 0 && o.pace <= 10) {
				return usagef("--pace is %v; 0 to 10 is allowed", o.pace)
			}
			program, err := findDaemon()
			if err != nil {
				return err
			}
			out := withoutSIGPIPE(cmd.OutOrStdout())
			err = demo.Run(cmd.Context(), demo.Options{
				Program: program, Out: out, Style: style(out), Now: c.env.Now, Pace: o.pace,
			})
			if errors.Is(err, syscall.EPIPE) { // the end of the reader is no error of the demo
				return &failure{code: exitSignal + int(syscall.SIGPIPE)}
			}
			return err
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// findDaemon returns the path of brokerd: beside brokerctl, else in PATH.
func findDaemon() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "brokerd")); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("brokerd")
	if err != nil {
		return "", fmt.Errorf("brokerd is neither beside brokerctl nor in PATH; build both with `make build`")
	}
	return path, nil
}

// style is how to write for whoever reads out: with colour and within the width of a terminal, or plainly.
func style(out io.Writer) demo.Style {
	f, ok := out.(*os.File)
	if !ok {
		return demo.Style{}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return demo.Style{}
	}
	return demo.Style{
		Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Width:  int(size.Col),
	}
}
