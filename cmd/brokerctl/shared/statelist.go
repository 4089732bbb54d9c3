package shared

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// completeKey completes the first argument, a key.
func completeKey(c *command.Caller) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.Words(cmd, keyWords(&command.Given{Caller: c, Cmd: cmd}, begun))
	}
}

// keyWords returns the keys of the namespace that begin so.
func keyWords(g *command.Given, begun string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.State().ListState(ctx, &pb.ListStateRequest{
			Namespace: cmp.Or(g.Text("namespace"), "default"), KeyPrefix: begun, PageSize: command.MaxPage,
		})
		var words []string
		for _, e := range page.GetEntries() {
			words = append(words, e.GetKey())
		}
		return words, err
	}
}

// StateView lists versions of keys.
func StateView(c *command.Caller) output.View[*pb.StateEntry] {
	return output.View[*pb.StateEntry]{
		Columns: []table.Column{
			{Name: "KEY", Min: 12, Typical: 24}, {Name: "VERSION", Rank: 2}, {Name: "REV", Typical: 6}, {Name: "AUTHOR", Rank: 1, Min: 8, Typical: 12},
			{Name: "CHANGED", Typical: c.TimeWidth()}, {Name: "OWNER", Rank: 3, Min: 8, Typical: 12}, {Name: "TASK", Rank: 4, Min: 8, Typical: 12},
			{Name: "VALUE", Min: 30, Typical: 40},
		},
		Row: func(e *pb.StateEntry) []string {
			return []string{prompt.KeyName(e), strconv.FormatInt(e.GetVersion(), 10), strconv.FormatInt(e.GetRevision(), 10), e.GetAuthor(),
				c.When(e.GetChangedAt()), e.GetOwner(), e.GetTaskId(), prompt.StateSummary(e)}
		},
		Prompt: func(w io.Writer, e *pb.StateEntry) {
			fmt.Fprintln(w, c.Voice().StateLine(e))
		},
		None: "no keys",
	}
}

var stateList = command.Listing[*pb.ListStateRequest, *pb.ListStateResponse, *pb.StateEntry]{
	Page: command.Page{
		Use:     "list [PREFIX]",
		Short:   "List keys and their values",
		Long:    `List keys with their values: of one namespace, or of all but "global" and "bridge".`,
		Example: "  brokerctl state list plan/",
	},
	Call: func(g *command.Given, broker *client.Client, q *pb.ListStateRequest) (*pb.ListStateResponse, error) {
		page, err := broker.State().ListState(g.Cmd.Context(), q)
		if err == nil && q.GetNamespace() == "" { // the bridges' keys are for no user
			page.Entries = slices.DeleteFunc(page.Entries, func(e *pb.StateEntry) bool {
				return e.GetNamespace() == setting.BridgeNamespace
			})
		}
		return page, err
	},
	Items: (*pb.ListStateResponse).GetEntries,
	Args:  []command.Arg{{Field: "key_prefix", Name: "the prefix", Kind: command.Kind{Find: keyWords}}},
	Options: []command.Option{
		{Field: "namespace", Kind: namespace, Usage: `only this namespace (default: all but "global" and "bridge")`},
		{Field: "owner", Kind: words.Agent, Usage: "only keys of this agent"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only keys of this task"},
	},
	Limit: 100,
	Prepare: func(_ *command.Given, q *pb.ListStateRequest) error {
		q.Values = true
		return nil
	},
	View: func(g *command.Given) output.View[*pb.StateEntry] { return StateView(g.Caller) },
}

var stateHistory = command.Listing[*pb.ListStateHistoryRequest, *pb.ListStateHistoryResponse, *pb.StateEntry]{
	Page: command.Page{
		Use:   "history KEY",
		Short: "List the versions of a key, newest first",
		Long: `List the versions of a key that are kept, newest first: at least the last 100,
with deletions. The versions of a document are its entries.`,
		Example: `  brokerctl state history plan/step`,
	},
	Call:    command.Of((*client.Client).State, pb.StateServiceClient.ListStateHistory),
	Items:   (*pb.ListStateHistoryResponse).GetVersions,
	Args:    oneKey,
	Options: []command.Option{ofKey},
	Limit:   100,
	View:    func(g *command.Given) output.View[*pb.StateEntry] { return StateView(g.Caller) },
}

func newStateFollowCommand(c *command.Caller) *cobra.Command {
	var o client.WatchOptions
	var limit int
	cmd := &cobra.Command{
		Use:   "follow [PREFIX]",
		Short: "Print changes as they happen",
		Long: `Print changes of keys as they happen, each once and in order, also after restarts
of the broker. Without --after it starts now; with --after 0 at the beginning, if
the broker still keeps all changes since.`,
		Example:           "  brokerctl state follow plan/ --after 4711",
		Args:              command.Between(0, "the prefix"),
		ValidArgsFunction: completeKey(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			print, err := output.Follow(&c.Output, cmd, StateView(c))
			if err != nil {
				return err
			}
			broker, err := c.Connect(ctx, c.RetryNotice(cmd))
			if err != nil {
				return err
			}
			o.Prefix, o.FromNow = strings.Join(args, ""), !cmd.Flags().Changed("after")
			n := 0
			for changes, err := range broker.WatchState(ctx, o) {
				if err != nil {
					return err
				}
				for _, e := range changes {
					if err := print(e); err != nil {
						return err
					}
					if n++; n == limit {
						return nil
					}
				}
			}
			return ctx.Err()
		},
	}
	cmd.Flags().StringVar(&o.Namespace, "namespace", "", `only this namespace (default: all but "global")`)
	cmd.Flags().Int64Var(&o.After, "after", 0, "start after this revision; 0: at the beginning")
	cmd.Flags().IntVar(&limit, "limit", 0, "end after this many changes")
	return cmd
}
