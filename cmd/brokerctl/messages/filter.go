package messages

import (
	"context"

	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
)

// filterOptions choose messages; receive, inbox and message list share them.
type filterOptions struct {
	types, channels, senders  []string
	correlation, thread, task string
	lowestPriority            string
}

// AddFlags adds the options.
func (o *filterOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.types, "type", nil, "only this type; repeatable")
	f.StringSliceVar(&o.channels, "channel", nil, "only this channel, as receiver or label; repeatable")
	f.StringSliceVar(&o.senders, "from", nil, "only from this sender; repeatable")
	f.StringVar(&o.correlation, "correlation", "", "only with this correlation id")
	f.StringVar(&o.thread, "thread", "", "only of this thread")
	f.StringVar(&o.task, "task", "", "only of this task")
	f.StringVar(&o.lowestPriority, "lowest-priority", "", "only this priority or a higher one")
}

// filter returns the API's form. A thread may be named by one of its messages.
func (o *filterOptions) filter(ctx context.Context, c *command.Caller) (*pb.MessageFilter, error) {
	lowest, err := command.ParsePriority("lowest-priority", o.lowestPriority)
	if err != nil {
		return nil, err
	}
	thread, err := threadOf(c, ctx, o.thread)
	if err != nil {
		return nil, err
	}
	return &pb.MessageFilter{
		Types: o.types, Channels: o.channels, Senders: o.senders,
		CorrelationId: o.correlation, ThreadId: thread, TaskId: o.task, LowestPriority: lowest,
	}, nil
}
