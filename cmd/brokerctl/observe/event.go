package observe

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// NewEventCommand returns the commands of brokerctl event.
func NewEventCommand(c *command.Caller) *cobra.Command {
	return command.Group("event", "List, follow and publish events", `The event log has every change, in order of revision.`, "  brokerctl event follow",
		newEventListCommand(c), newEventFollowCommand(c), newEventPublishCommand(c))
}

// eventOptions choose events.
type eventOptions struct {
	categories []string
	types      []string
	severity   string
	sources    []string
	roles      []string
	task       string
	when       command.TimeRange
}

// AddFlags adds the options.
func (o *eventOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.categories, "category", nil, "only these: "+strings.Join(jsonform.EnumNames(pb.EventCategory(0).Descriptor()), ", "))
	f.StringSliceVar(&o.types, "type", nil, "only these types, such as message.sent or 'message.*'; repeatable")
	f.StringVar(&o.severity, "severity", "", "this severity or a higher one: "+strings.Join(jsonform.EnumNames(pb.Severity(0).Descriptor()), ", "))
	f.StringSliceVar(&o.sources, "source", nil, "only caused by this agent; repeatable")
	f.StringSliceVar(&o.roles, "source-role", nil, "only caused by agents of this role; repeatable")
	f.StringVar(&o.task, "task", "", "only of this task")
	o.when.AddFlags(f, "events")
}

// complete adds completions.
func (o *eventOptions) complete(c *command.Caller, cmd *cobra.Command) {
	categories, severities := jsonform.EnumNames(pb.EventCategory(0).Descriptor()), jsonform.EnumNames(pb.Severity(0).Descriptor())
	command.Must(cmd.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(categories, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severities, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("type", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.Words(cmd, eventTypes)
	}))
}

// eventTypes returns the types of the newest events.
func eventTypes(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Events().ListEvents(ctx, &pb.ListEventsRequest{NewestFirst: true})
	var words []string
	for _, e := range page.GetEvents() {
		words = append(words, e.GetType())
	}
	slices.Sort(words)
	return slices.Compact(words), err
}

// filter returns the API's form.
func (o *eventOptions) filter(c *command.Caller) (*pb.EventFilter, error) {
	severity, err := output.ParseEnum("severity", pb.Severity(0).Descriptor(), o.severity)
	if err != nil {
		return nil, err
	}
	filter := &pb.EventFilter{
		Types: o.types, LowestSeverity: pb.Severity(severity), Sources: o.sources, SourceRoles: o.roles, TaskId: o.task,
	}
	if filter.Since, filter.Until, err = o.when.Parse(c); err != nil {
		return nil, err
	}
	for _, name := range o.categories {
		category, err := output.ParseEnum("category", pb.EventCategory(0).Descriptor(), name)
		if err != nil {
			return nil, err
		}
		filter.Categories = append(filter.Categories, pb.EventCategory(category))
	}
	return filter, nil
}

// EventView lists events. As a prompt they are one line each, like the table.
func EventView(c *command.Caller) output.View[*pb.Event] {
	return output.View[*pb.Event]{
		Columns: []table.Column{
			{Name: "REV", Typical: 6}, {Name: "TIME", Typical: c.TimeWidth()}, {Name: "SEVERITY", Rank: 2, State: true}, {Name: "TYPE", Min: 14, Typical: 20},
			{Name: "SOURCE", Rank: 1, Min: 8, Typical: 12}, {Name: "SUMMARY", Min: 24, Typical: 40},
		},
		Row: func(e *pb.Event) []string {
			severity := ""
			if e.GetSeverity() > pb.Severity_SEVERITY_INFO {
				severity = prompt.Enum(e.GetSeverity())
			}
			return []string{strconv.FormatInt(e.GetRevision(), 10), c.When(e.GetTime()), severity, e.GetType(), e.GetSource(), e.GetSummary()}
		},
		Prompt: func(w io.Writer, e *pb.Event) {
			fmt.Fprintf(w, "event %d, %s: %s by %s: %s\n", e.GetRevision(), c.When(e.GetTime()), prompt.TypeOf(e, prompt.Clean), prompt.Clean(e.GetSource()),
				prompt.OneLine(e.GetSummary()))
		},
		None: "no events",
	}
}

func newEventListCommand(c *command.Caller) *cobra.Command {
	o := &eventOptions{}
	request := &pb.ListEventsRequest{}
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events in order of revision",
		Example: `  brokerctl event list --newest --limit 20
  brokerctl event list --since 1h --source builder-1 -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if request.Filter, err = o.filter(c); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			events, err := command.Pages(limit, func(size int32, token string) ([]*pb.Event, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Events().ListEvents(cmd.Context(), request)
				return page.GetEvents(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, events, EventView(c))
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&request.AfterRevision, "after", 0, "only after this revision")
	cmd.Flags().Int64Var(&request.UntilRevision, "until-revision", 0, "only up to this revision; 0: no bound")
	cmd.Flags().BoolVar(&request.NewestFirst, "newest", false, "newest first")
	command.LimitVar(cmd.Flags(), &limit, 100)
	o.complete(c, cmd)
	return cmd
}

func newEventFollowCommand(c *command.Caller) *cobra.Command {
	o := &eventOptions{}
	var after int64
	var cursor string
	var limit int
	cmd := &cobra.Command{
		Use:   "follow",
		Short: "Print events as they happen",
		Long: `Print events as they happen, without a gap, also after restarts of the broker.
Without --after, --since and --cursor it starts now; with --after 0 at the
beginning of the log. The filters of brokerctl event list apply here too.`,
		Annotations: map[string]string{command.FlagsOf: "event list"},
		Example: `  brokerctl event follow --type 'message.*' --severity warning
  brokerctl event follow --cursor audit -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			filter, err := o.filter(c)
			if err != nil {
				return err
			}
			print, err := output.Follow(&c.Output, cmd, EventView(c))
			if err != nil {
				return err
			}
			broker, err := c.Connect(ctx, c.RetryNotice(cmd))
			if err != nil {
				return err
			}
			options := client.EventOptions{After: after, FromNow: !cmd.Flags().Changed("after"), Cursor: cursor, Filter: filter}
			n := 0
			for event, err := range broker.FollowEvents(ctx, options) {
				if err != nil {
					return err
				}
				if err := print(event); err != nil {
					return err
				}
				if n++; n == limit {
					return nil
				}
			}
			return ctx.Err()
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&after, "after", 0, "start after this revision; 0: at the beginning of the log")
	cmd.Flags().StringVar(&cursor, "cursor", "", "continue where the last follow with this name stopped; the broker stores the position")
	cmd.Flags().IntVar(&limit, "limit", 0, "end after this many events")
	o.complete(c, cmd)
	return cmd
}
