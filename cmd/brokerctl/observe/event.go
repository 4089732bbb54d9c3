package observe

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewEventCommand returns the commands of brokerctl event.
func NewEventCommand(c *command.Caller) *cobra.Command {
	const long = `The event log has every change, in order of revision.`
	return command.Group("event", "List, follow and publish events", long, "  brokerctl event follow",
		eventList.Command(c), eventFollow.Command(c), eventPublish.Command(c))
}

// eventFilter are the options that choose events.
var eventFilter = []command.Option{
	{Field: "filter.categories", Name: "category", Usage: "only these: {}"},
	{Field: "filter.types", Name: "type", Comma: true, Kind: command.Kind{Name: "TYPE", Words: eventTypes},
		Usage: "only these types, such as message.sent or 'message.*'; repeatable"},
	{Field: "filter.lowest_severity", Name: "severity", Usage: "this severity or a higher one: {}"},
	{Field: "filter.sources", Name: "source", Comma: true, Kind: words.Agent,
		Usage: "only caused by this agent; repeatable"},
	{Field: "filter.source_roles", Name: "source-role", Comma: true, Kind: words.Role,
		Usage: "only caused by agents of this role; repeatable"},
	{Field: "filter.task_id", Name: "task", Kind: words.Task, Usage: "only of this task"},
	command.Since("filter.since", "", "events"),
	command.Until("filter.until", "events"),
}

// eventTypes returns the types of the newest events.
func eventTypes(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Events().ListEvents(ctx, &pb.ListEventsRequest{NewestFirst: true})
	types := each.Of(page.GetEvents(), (*pb.Event).GetType)
	slices.Sort(types)
	return slices.Compact(types), err
}

// EventView lists events. As a prompt they are one line each, like the table.
func EventView(c *command.Caller) output.View[*pb.Event] {
	return output.View[*pb.Event]{
		Columns: []table.Column{
			{Name: "REV", Typical: 6}, {Name: "TIME", Typical: c.TimeWidth()}, {Name: "SEVERITY", Rank: 2, State: true},
			{Name: "TYPE", Min: 14, Typical: 20}, {Name: "SOURCE", Rank: 1, Min: 8, Typical: 12}, {Name: "SUMMARY", Min: 24, Typical: 40},
		},
		Row: func(e *pb.Event) []string {
			severity := prompt.Either(e.GetSeverity() > pb.Severity_SEVERITY_INFO, prompt.Enum(e.GetSeverity()), "")
			return []string{
				strconv.FormatInt(e.GetRevision(), 10), c.When(e.GetTime()), severity, e.GetType(), e.GetSource(), e.GetSummary(),
			}
		},
		Prompt: func(w io.Writer, e *pb.Event) {
			fmt.Fprintf(w, "event %d, %s: %s by %s: %s\n", e.GetRevision(), c.When(e.GetTime()),
				prompt.TypeOf(e, prompt.Clean), prompt.Clean(e.GetSource()), prompt.OneLine(e.GetSummary()))
		},
		None: "no events",
	}
}

var eventList = command.Listing[*pb.ListEventsRequest, *pb.ListEventsResponse, *pb.Event]{
	Page: command.Page{
		Use:   "list",
		Short: "List events in order of revision",
		Example: `  brokerctl event list --newest --limit 20
  brokerctl event list --since 1h --source builder-1 -o json`,
	},
	Items: (*pb.ListEventsResponse).GetEvents,
	Options: append([]command.Option{
		{Field: "after_revision", Name: "after", Kind: command.Revision, Usage: "only after this revision"},
		{Field: "until_revision", Kind: command.Revision, Usage: "only up to this revision; 0: no bound"},
		{Field: "newest_first", Name: "newest", Usage: "newest first"},
	}, eventFilter...),
	View: func(g *command.Given) output.View[*pb.Event] { return EventView(g.Caller) },
}

var eventFollow = command.Procedure[*pb.SubscribeEventsRequest]{
	Page: command.Page{
		Use:   "follow",
		Short: "Print events as they happen",
		Long: `Print events as they happen, without a gap, also after restarts of the broker.
Without --after, --since and --cursor it starts now; with --after 0 at the
beginning of the log. The filters of brokerctl event list apply here too.`,
		Example: `  brokerctl event follow --type 'message.*' --severity warning
  brokerctl event follow --cursor audit -o json`,
	},
	FlagsOf: "event list",
	Options: append([]command.Option{
		{Field: "after_revision", Name: "after", Kind: command.Revision,
			Usage: "start after this revision; 0: at the beginning of the log"},
		{Field: "cursor", Kind: command.Name,
			Usage: "continue where the last follow with this name stopped; the broker stores the position"},
		{Name: "limit", Type: "int", Usage: "end after this many events"},
	}, eventFilter...),
	Run: func(g *command.Given, q *pb.SubscribeEventsRequest) error {
		ctx, cancel := context.WithCancel(g.Cmd.Context())
		defer cancel()
		print, err := output.Follow(&g.Output, g.Cmd, EventView(g.Caller))
		if err != nil {
			return err
		}
		broker, err := g.Connect(ctx, g.RetryNotice(g.Cmd))
		if err != nil {
			return err
		}
		options := client.EventOptions{
			After: q.GetAfterRevision(), FromNow: q.AfterRevision == nil, Cursor: q.GetCursor(), Filter: q.GetFilter(),
		}
		n := 0
		for event, err := range broker.FollowEvents(ctx, options) {
			if err != nil {
				return err
			}
			if err := print(event); err != nil {
				return err
			}
			if n++; n == g.Int("limit") {
				return nil
			}
		}
		return ctx.Err()
	},
}
