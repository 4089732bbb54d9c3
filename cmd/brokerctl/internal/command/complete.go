package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
)

// completeTimeout bounds the wait of a shell; if the broker does not answer by then, there are no
// completions.
const completeTimeout = time.Second

// A WordList asks the broker for words to complete, each alone or with a tab and a description.
type WordList func(context.Context, *client.Client) ([]string, error)

// Words returns the words of a list.
func (c *Caller) Words(cmd *cobra.Command, list WordList) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	c.Found = nil // cobra parses the flags of the command line only after it has started its own command for completions
	broker, err := c.Connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words, err := list(ctx, broker)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// CompleteArgs completes the arguments of a command, each from the list of its place. The last list
// also completes all arguments after it if there are to be more.
func (c *Caller) CompleteArgs(more bool, lists ...WordList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		if more {
			at = min(at, len(lists)-1)
		}
		if at >= len(lists) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.Words(cmd, lists[at])
	}
}

// CompleteFlags gives each flag without a completion the one that its name stands for: a list, fixed words or files.
func (c *Caller) CompleteFlags(root *cobra.Command, lists map[string]WordList) {
	fixed := map[string][]string{
		"priority": {"low", "normal", "high", "critical"}, "lowest-priority": {"low", "normal", "high", "critical"},
		"namespace": {"default", "global"}, "since": {"10m", "1h", "1d"},
	}
	files := map[string]cobra.ShellCompDirective{
		"file":     cobra.ShellCompDirectiveDefault,
		"worktree": cobra.ShellCompDirectiveFilterDirs, "dir": cobra.ShellCompDirectiveFilterDirs,
	}
	for _, cmd := range AllCommands(root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, has := cmd.GetFlagCompletionFunc(f.Name); has || f.Value.Type() == "bool" {
				return
			}
			complete := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				if list := lists[f.Name]; list != nil {
					return c.Words(cmd, list)
				}
				if directive, ok := files[f.Name]; ok {
					return nil, directive
				}
				return fixed[f.Name], cobra.ShellCompDirectiveNoFileComp
			}
			Must(cmd.RegisterFlagCompletionFunc(f.Name, complete))
		})
	}
}

// CompleteFiles completes names of files, as shells do by themselves.
func CompleteFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}
