package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// bridgeOptions are the options of bridge.
type bridgeOptions struct {
	rescan, settle time.Duration
	sendHistory    bool
	roles          []string
	blockers       bool
}

// AddFlags adds the options.
func (o *bridgeOptions) AddFlags(f *pflag.FlagSet) {
	command.DurationVar(f, &o.rescan, "rescan", 5*time.Second, "how often the folder is read without a change")
	command.DurationVar(f, &o.settle, "settle", 10*time.Second, "reject or archive a file that is unchanged for this time")
	f.StringArrayVar(&o.roles, "role", nil, "NAME=ROLE; NAME may have *; repeatable")
	f.BoolVar(&o.blockers, "blockers", false, "blocker events of agent-messages make blockers")
	f.BoolVar(&o.sendHistory, "send-history", false, "also send what files had before the first start")
}

const bridgeLong = `Synchronise a folder and the session in both directions, for agents that only
have files. FORMAT is the layout of the folder: %s.

The files of each agent of the folder are sent, and its mail appears in its
files. Each message crosses once, even if the bridge is killed. A file that
cannot be read as the format moves to rejected/.

It runs until SIGINT or SIGTERM and reconnects. A folder has one bridge at a
time. bridge needs operator rights.`

// NewCommand synchronises a folder and a session.
func NewCommand(c *command.Caller) *cobra.Command {
	o := &bridgeOptions{}
	cmd := &cobra.Command{
		Use:     "bridge FORMAT DIR",
		Short:   "Connect agents that only have files",
		Long:    fmt.Sprintf(bridgeLong, strings.Join(Formats(), ", ")),
		Example: "  brokerctl bridge maildir ./team --role 'qa-*=critic'",
		Args:    command.Exactly("the format", "the folder"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return Formats(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(Formats(), args[0]) {
				return problem.Usagef("%q is not a format; the formats are %s", args[0], strings.Join(Formats(), ", "))
			}
			if o.rescan < 10*time.Millisecond || o.settle <= 0 {
				return problem.Usagef("--rescan must be at least 10ms and --settle more than 0")
			}
			if o.blockers && args[0] != "agent-messages" {
				return problem.Usagef("--blockers is for the format agent-messages; %s has no events", args[0])
			}
			roles, err := rolesOf(o.roles)
			if err != nil {
				return err
			}
			if info, err := os.Stat(c.Env.Path(args[1])); err != nil || !info.IsDir() {
				return problem.Usagef("%s is not a folder that can be read", args[1])
			}
			broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
			if err != nil {
				return err
			}
			w := cmd.ErrOrStderr()
			err = Run(cmd.Context(), args[0], engine.Options{
				Client: broker, Dir: c.Env.Path(args[1]), Rescan: o.rescan, Settle: o.settle, SendHistory: o.sendHistory,
				Roles: roles, Blockers: o.blockers,
				Log: func(line string) { fmt.Fprintf(w, "bridge: %s\n", prompt.Clean(line)) },
			})
			if errors.Is(err, context.Canceled) {
				return cmd.Context().Err()
			}
			return err
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// rolesOf reads the values of --role.
func rolesOf(texts []string) ([]engine.Role, error) {
	var roles []engine.Role
	for _, text := range texts {
		names, role, _ := strings.Cut(text, "=")
		if names == "" || !setting.ValidName.MatchString(role) {
			return nil, problem.Usagef("--role %s: use NAME=ROLE; for a role, %s", text, setting.NameForm)
		}
		roles = append(roles, engine.Role{Names: names, Role: role})
	}
	return roles, nil
}
