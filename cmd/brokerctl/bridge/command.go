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

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/internal/prompt"
)

const bridgeLong = `Synchronise a folder and the session in both directions, for agents that only
have files. FORMAT is the layout of the folder: %s.

The files of each agent of the folder are sent, and its mail appears in its
files. Each message crosses once, even if the bridge is killed. A file that
cannot be read as the format moves to rejected/.

It runs until SIGINT or SIGTERM and reconnects. A folder has one bridge at a
time. bridge needs operator rights.`

// NewCommand synchronises a folder and a session.
func NewCommand(c *command.Caller) *cobra.Command { return bridge.Command(c) }

var bridge = command.Procedure[command.None]{
	Page: command.Page{
		Use:     "bridge FORMAT DIR",
		Short:   "Connect agents that only have files",
		Long:    fmt.Sprintf(bridgeLong, strings.Join(Formats(), ", ")),
		Example: "  brokerctl bridge maildir ./team --role 'qa-*=critic'",
	},
	Args: []command.Arg{
		{Name: "the format", Kind: command.Kind{Fixed: Formats()}}, {Name: "the folder", Kind: command.Folder},
	},
	Options: []command.Option{
		{Name: "rescan", Type: "duration", Value: "5s", Usage: "how often the folder is read without a change"},
		{Name: "settle", Type: "duration", Value: "10s", Usage: "reject or archive a file that is unchanged for this time"},
		{Name: "role", Type: "strings", Kind: words.Role, Usage: "NAME=ROLE; NAME may have *; repeatable"},
		{Name: "blockers", Type: "bool", Usage: "blocker events of agent-messages make blockers"},
		{Name: "send-history", Type: "bool", Usage: "also send what files had before the first start"},
	},
	Run: func(g *command.Given, _ command.None) error {
		format, dir, w := g.Args[0], g.Env.Path(g.Args[1]), g.Cmd.ErrOrStderr()
		o := engine.Options{
			Dir: dir, Rescan: g.Duration("rescan"), Settle: g.Duration("settle"), SendHistory: g.On("send-history"),
			Blockers: g.On("blockers"), Log: func(line string) { fmt.Fprintf(w, "bridge: %s\n", prompt.Clean(line)) },
		}
		if !slices.Contains(Formats(), format) {
			return problem.Usagef("%q is not a format; the formats are %s", format, strings.Join(Formats(), ", "))
		}
		if o.Rescan < 10*time.Millisecond || o.Settle <= 0 {
			return problem.Usagef("--rescan must be at least 10ms and --settle more than 0")
		}
		if o.Blockers && format != "agent-messages" {
			return problem.Usagef("--blockers is for the format agent-messages; %s has no events", format)
		}
		var err error
		if o.Roles, err = rolesOf(g.Texts("role")); err != nil {
			return err
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return problem.Usagef("%s is not a folder that can be read", g.Args[1])
		}
		if o.Client, err = g.Connect(g.Cmd.Context(), g.RetryNotice(g.Cmd)); err != nil {
			return err
		}
		err = Run(g.Cmd.Context(), format, o)
		if errors.Is(err, context.Canceled) {
			return g.Cmd.Context().Err()
		}
		return err
	},
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
