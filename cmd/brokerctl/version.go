package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"brokerd"
	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
)

// daemonPatience is how long version waits for the daemon.
const daemonPatience = 2 * time.Second

// versions is what version prints.
type versions struct {
	brokerd.Build
	Daemon string `json:"daemon"` // the version of the daemon; empty if none answers
}

func newVersionCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of brokerctl and of the daemon",
		Long: `version prints the version of brokerctl, and that of the daemon if a daemon
answers within 2 seconds.`,
		Example: `  brokerctl version
  brokerctl version -o json | jq -r .version`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Build: brokerd.ThisBuild(), Daemon: daemonVersion(c, cmd.Context())}
			text := fmt.Sprintf("brokerctl %s, %s", v.Build, v.Go)
			text += "\nbrokerd " + cmp.Or(v.Daemon, "does not answer")
			return c.ShowValue(cmd, v, text)
		},
	}
}

// daemonVersion returns the version of the daemon; it is empty if no daemon answers an operator.
func daemonVersion(c *command.Caller, ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, daemonPatience)
	defer cancel()
	broker, err := c.Connect(ctx)
	if err != nil {
		return ""
	}
	answer, err := broker.In("").As("").Admin().GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return ""
	}
	return answer.GetVersion()
}
