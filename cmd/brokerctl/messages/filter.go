package messages

import (
	"strings"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
)

// filter are the options that choose messages; receive, inbox and message list share them.
var filter = []command.Option{
	{Field: "filter.types", Name: "type", Comma: true, Kind: words.MessageType, Usage: "only this type; repeatable"},
	{Field: "filter.channels", Name: "channel", Comma: true, Kind: words.Channel,
		Usage: "only this channel, as receiver or label; repeatable"},
	{Field: "filter.senders", Name: "from", Comma: true, Kind: words.Agent, Usage: "only from this sender; repeatable"},
	{Field: "filter.correlation_id", Name: "correlation", Kind: anID, Usage: "only with this correlation id"},
	{Field: "filter.thread_id", Name: "thread", Kind: threadName, Usage: "only of this thread"},
	{Field: "filter.task_id", Name: "task", Kind: words.Task, Usage: "only of this task"},
	{Field: "filter.lowest_priority", Kind: command.Priority, Usage: "only this priority or a higher one"},
}

// look are the options for the order of a read, and whether it shows the queues too; inbox and receive share them.
var look = []command.Option{
	{Field: "order", Usage: "arrival, or priority: the order in which claim takes (default: arrival)"},
	{Field: "include_queues", Name: "queues",
		Usage: "also show messages that wait in the queues of the agent's role and channels"},
}

// Kinds of values that have a name only.
var (
	anID       = command.Kind{Name: "ID"}
	threadName = command.Kind{Name: "THREAD"}
)

// nameThread replaces the id of a message by that of its thread.
func nameThread(g *command.Given, f *pb.MessageFilter) (err error) {
	if f.GetThreadId() != "" {
		f.ThreadId, err = threadOf(g.Caller, g.Cmd.Context(), f.GetThreadId())
	}
	return err
}

// apart is each of some options with each of others, which exclude each other.
func apart(some, others string) (pairs [][]string) {
	for _, one := range strings.Fields(some) {
		for _, other := range strings.Fields(others) {
			pairs = append(pairs, []string{one, other})
		}
	}
	return pairs
}
