package shared

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// keyWords returns the keys of the namespace that begin so.
func keyWords(g *command.Given, begun string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.State().ListState(ctx, &pb.ListStateRequest{
			Namespace: cmp.Or(g.Text("namespace"), "default"), KeyPrefix: begun, PageSize: command.MaxPage,
		})
		return each.Of(page.GetEntries(), (*pb.StateEntry).GetKey), err
	}
}

// StateView lists versions of keys.
func StateView(c *command.Caller) output.View[*pb.StateEntry] {
	return output.View[*pb.StateEntry]{
		Columns: []table.Column{
			{Name: "KEY", Min: 12, Typical: 24}, {Name: "VERSION", Rank: 2}, {Name: "REV", Typical: 6},
			{Name: "AUTHOR", Rank: 1, Min: 8, Typical: 12}, {Name: "CHANGED", Typical: c.TimeWidth()},
			{Name: "OWNER", Rank: 3, Min: 8, Typical: 12}, {Name: "TASK", Rank: 4, Min: 8, Typical: 12},
			{Name: "VALUE", Min: 30, Typical: 40},
		},
		Row: func(e *pb.StateEntry) []string {
			return []string{
				prompt.KeyName(e), strconv.FormatInt(e.GetVersion(), 10), strconv.FormatInt(e.GetRevision(), 10),
				e.GetAuthor(), c.When(e.GetChangedAt()), e.GetOwner(), e.GetTaskId(), prompt.StateSummary(e),
			}
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
	Args:  []command.Arg{{Field: "key_prefix", Name: "the prefix", Text: true, Kind: command.Kind{Find: keyWords}}},
	Options: []command.Option{
		{Field: "namespace", Kind: namespace, Usage: `only this namespace (default: all but "global" and "bridge")`},
		{Field: "owner", Kind: words.Agent, Usage: "only keys of this agent"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only keys of this task"},
	},
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
	Items:   (*pb.ListStateHistoryResponse).GetVersions,
	Args:    oneKey,
	Options: []command.Option{ofKey},
	Newest:  true,
	View:    func(g *command.Given) output.View[*pb.StateEntry] { return StateView(g.Caller) },
}

var stateFollow = command.Procedure[*pb.WatchStateRequest]{
	Page: command.Page{
		Use:   "follow [PREFIX]",
		Short: "Print changes as they happen",
		Long: `Print changes of keys as they happen, each once and in order, also after restarts
of the broker. Without --after it starts now; with --after 0 at the beginning, if
the broker still keeps all changes since.`,
		Example: "  brokerctl state follow plan/ --after 4711",
	},
	Args: []command.Arg{{Field: "key_prefix", Name: "the prefix", Text: true, Kind: command.Kind{Find: keyWords}}},
	Options: []command.Option{
		{Field: "namespace", Kind: namespace, Usage: `only this namespace (default: all but "global")`},
		{Field: "after_revision", Name: "after", Kind: command.Revision, Usage: "start after this revision; 0: at the beginning"},
		{Name: "limit", Type: "int", Usage: "end after this many changes"},
	},
	Run: func(g *command.Given, q *pb.WatchStateRequest) error {
		ctx, cancel := context.WithCancel(g.Cmd.Context())
		defer cancel()
		print, err := output.Follow(&g.Output, g.Cmd, StateView(g.Caller))
		if err != nil {
			return err
		}
		broker, err := g.Connect(ctx, g.RetryNotice(g.Cmd))
		if err != nil {
			return err
		}
		options := client.WatchOptions{
			Namespace: q.GetNamespace(), Prefix: q.GetKeyPrefix(), After: q.GetAfterRevision(), FromNow: q.AfterRevision == nil,
		}
		n := 0
		for changes, err := range broker.WatchState(ctx, options) {
			if err != nil {
				return err
			}
			for _, e := range changes {
				if err := print(e); err != nil {
					return err
				}
				if n++; n == g.Int("limit") {
					return nil
				}
			}
		}
		return ctx.Err()
	},
}
