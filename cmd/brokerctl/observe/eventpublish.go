package observe

import (
	"io"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var eventPublish = command.Spec[*pb.PublishEventRequest, *pb.PublishEventResponse]{
	Page: command.Page{
		Use:   "publish TYPE [SUMMARY]",
		Short: "Add your own event to the log",
		Long: `Add an event to the log. Agents that subscribe to the channel event/TYPE, or to
event/*, receive it as a message of type event, with a priority by severity:
debug 3, info 5, warning 6, error 7, critical 10.

TYPE is a word such as build.finished. First words that types of the broker use
(agent, message, session, …) are refused.`,
		Example: `  brokerctl --agent builder-1 event publish build.finished "All green"
  brokerctl --agent lead channel subscribe event/build.finished`,
	},
	Args: []command.Arg{{Field: "type", Name: "the type"}, {Field: "summary", Name: "the summary", Text: true}},
	Options: []command.Option{
		{Field: "details", Kind: command.JSON, Usage: "a JSON object; @FILE reads a file, - standard input"},
		{Field: "category", Usage: "{} (default: agent)"},
		{Field: "severity", Usage: "{} (default: info)"},
		{Field: "related", Comma: true, Kind: command.Kind{Name: "ID"},
			Usage: "what it is about, such as a message's revision; repeatable"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "task that it belongs to"},
		{Field: "blocker", Usage: "BlockerEncountered, BlockerResolved: also raise or resolve it"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.PublishEventRequest, a *pb.PublishEventResponse) {
		blocker := prompt.Either(a.GetBlocker() == "", "", "; blocker "+prompt.Clean(a.GetBlocker()))
		prompt.Say(w, "published %d, %s, to %s%s",
			a.GetRevision(), q.GetType(), prompt.Count(a.GetSubscribers(), "subscriber"), blocker)
	},
}
