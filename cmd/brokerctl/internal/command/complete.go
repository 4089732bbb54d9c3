package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

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

// CompleteFiles completes names of files, as shells do by themselves.
func CompleteFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}
