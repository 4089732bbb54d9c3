package messages

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewDLQCommand returns the commands of brokerctl dlq.
func NewDLQCommand(c *command.Caller) *cobra.Command {
	return command.Group("dlq", "List, redrive and delete dead letters", `Dead letters are messages whose last attempt failed. The broker keeps them with
the error of each attempt.`, "  brokerctl dlq list",
		dlqList.Command(c), dlqRedrive.Command(c), dlqDelete.Command(c))
}

// dlqList is no listing: the first page says how many there are.
var dlqList = command.Spec[*pb.ListDeadLettersRequest, *pb.ListDeadLettersResponse]{
	Page: command.Page{
		Use:   "list",
		Short: "List dead letters, newest first, with the last error",
		Example: `  brokerctl dlq list --mailbox role:builder
  brokerctl dlq list --error timeout --since 1h`,
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.ListDeadLettersRequest,
	) (*pb.ListDeadLettersResponse, error) {
		first := &pb.ListDeadLettersResponse{}
		items, err := command.Pages(g.Int("limit"), func(size int32, token string) ([]*pb.InboxItem, string, error) {
			q.PageSize, q.PageToken, q.Count = size, token, token == ""
			page, err := broker.Messages().ListDeadLetters(g.Cmd.Context(), q)
			if token == "" {
				first = page
			}
			return page.GetItems(), page.GetNextPageToken(), err
		})
		return &pb.ListDeadLettersResponse{Items: items, Count: first.GetCount(), CountAtLeast: first.GetCountAtLeast()}, err
	},
	Options: append(deadFilter("only this mailbox: an agent's name, role:NAME or channel:NAME"),
		command.Limit),
	After: func(
		g *command.Given, _ *client.Client, _ *pb.ListDeadLettersRequest, a *pb.ListDeadLettersResponse,
	) (bool, error) {
		if err := output.List(&g.Output, g.Cmd, a.GetItems(), DeadView(g.Caller)); err != nil {
			return true, err
		}
		if shown := len(a.GetItems()); a.GetCount() > int64(shown) && shown > 0 {
			of := bounded(a.GetCount(), a.GetCountAtLeast(), "dead letter")
			fmt.Fprintf(g.Cmd.ErrOrStderr(), "the newest %d of %s; --limit 0 lists all\n", shown, of)
		}
		return true, nil
	},
}

// bounded is count for a number that the broker may have ended early.
func bounded(n int64, more bool, noun string) string {
	return prompt.Either(more, "at least ", "") + prompt.Count(n, noun)
}

// DeadView lists dead letters.
func DeadView(c *command.Caller) output.View[*pb.InboxItem] {
	last := func(d *pb.Delivery) string {
		if h := d.GetHistory(); len(h) > 0 {
			return strings.TrimSuffix(strings.TrimSpace(h[len(h)-1].GetError()), ":")
		}
		return ""
	}
	return output.View[*pb.InboxItem]{
		Columns: []table.Column{
			{Name: "REV"}, {Name: "MAILBOX", Min: 12}, {Name: "DIED"}, {Name: "FROM", Rank: 3, Min: 8}, {Name: "TYPE", Rank: 4, Min: 8},
			{Name: "ATTEMPTS", Rank: 2}, {Name: "TEXT", Rank: 1, Min: 16}, {Name: "LAST ERROR", Min: 30}, {Name: "ID", Wide: true},
		},
		Row: func(item *pb.InboxItem) []string {
			m, d := item.GetMessage(), item.GetDelivery()
			return []string{
				strconv.FormatInt(m.GetRevision(), 10), d.GetMailbox(), c.When(d.GetFinishedAt()), m.GetSender(), m.GetType(),
				strconv.Itoa(int(d.GetAttempts())), prompt.Summary(m), last(d), m.GetId(),
			}
		},
		Prompt: func(w io.Writer, item *pb.InboxItem) {
			r := prompt.Rendered{Message: item.GetMessage(), Facts: []string{"dead in " + item.GetDelivery().GetMailbox()}}
			r.Next = fmt.Sprintf("%s dlq redrive %d to have it tried again", c.Global.Again(), item.GetMessage().GetRevision())
			if h := item.GetDelivery().GetHistory(); len(h) > 0 {
				a := h[len(h)-1]
				r.Facts = append(r.Facts, fmt.Sprintf("attempt %d by %s failed", a.GetNumber(), prompt.Brief(a.GetAgent())))
				r.Fault = prompt.Clip(a.GetError(), 100)
			}
			c.Voice().Message(w, r)
		},
		None: "no dead letters",
	}
}

// deadFilter are the options that choose dead letters by what they have in common. mailbox is the usage of --mailbox.
func deadFilter(mailbox string) []command.Option {
	return []command.Option{
		{Field: "mailbox", Kind: words.Mailbox, Usage: mailbox},
		{Field: "filter.types", Name: "type", Kind: words.MessageType, Comma: true, Usage: "only this type; repeatable"},
		{Field: "filter.senders", Name: "from", Kind: words.Agent, Comma: true, Usage: "only from this sender; repeatable"},
		{Field: "filter.holders", Name: "holder", Kind: command.Name, Comma: true,
			Usage: "only last claimed by this agent; repeatable"},
		{Field: "filter.error", Usage: "only with this text in the last error"},
		command.Since("filter.from_time", "", "dead letters"),
		command.Until("filter.to_time", "dead letters"),
	}
}

// deadOptions choose dead letters to change.
var deadOptions = append(deadFilter("all of this mailbox; with IDs, only there"),
	command.Option{Field: "all", Usage: "all that no other option excludes"},
	command.Option{Field: "dry_run", Usage: "change nothing; say how many it would be"},
	command.RequestID)

// deadIDs is the argument that names dead letters to change.
var deadIDs = []command.Arg{{Field: "ids", Kind: command.Kind{Words: words.DeadWords}}}

// A deadRequest changes dead letters.
type deadRequest interface {
	GetRequestId() string
	GetIds() []string
	GetMailbox() string
	GetFilter() *pb.DeadLetterFilter
	GetAll() bool
}

// chosen requires that dead letters are chosen, in one way.
func chosen(q deadRequest) error {
	ids, filter := len(q.GetIds()) > 0, proto.Size(q.GetFilter()) > 0
	switch {
	case ids && (filter || q.GetAll()):
		return problem.Usagef("name dead letters, or choose all that match: not both")
	case !ids && q.GetMailbox() == "" && !filter && !q.GetAll():
		return problem.Usagef("name dead letters by id or revision, or a whole mailbox with --mailbox, or choose with " +
			"--type, --from, --holder, --error, --since or --all; brokerctl dlq list shows them")
	case !ids && q.GetRequestId() != "":
		return problem.Usagef("--request-id goes with ids only: all that match take as many requests as they need")
	}
	return nil
}

// allPages repeats a change of at most 1,000 dead letters a call until no more match.
func allPages(change func(token string) (n int32, next string, err error)) (total int64, err error) {
	for token := ""; ; {
		n, next, err := change(token)
		total += int64(n)
		if token = next; err != nil || token == "" {
			return total, err
		}
	}
}

// printUntil says which option keeps the dead letters from after a dry run out of the change.
func printUntil(w io.Writer, until *timestamppb.Timestamp) {
	if until != nil {
		prompt.Say(w, "to leave out those that follow, add --until %s", until.AsTime().Format(time.RFC3339Nano))
	}
}

var dlqRedrive = command.Spec[*pb.RedriveDeadLettersRequest, *pb.RedriveDeadLettersResponse]{
	Page: command.Page{
		Use:   "redrive [ID...]",
		Short: "Redeliver dead letters",
		Long:  "Redeliver dead letters: the attempts start again; ids and history stay.",
		Example: `  brokerctl dlq redrive 4711
  brokerctl dlq redrive --mailbox role:builder --dry-run
  brokerctl dlq redrive --error timeout --since 1h`,
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.RedriveDeadLettersRequest,
	) (a *pb.RedriveDeadLettersResponse, err error) {
		n, err := allPages(func(token string) (int32, string, error) {
			q.PageToken = token
			a, err = broker.Messages().RedriveDeadLetters(g.Cmd.Context(), q)
			return a.GetRedriven(), a.GetNextPageToken(), err
		})
		if err == nil {
			a.Redriven = int32(n)
		}
		return a, err
	},
	Args:    deadIDs,
	Options: deadOptions,
	Prepare: func(_ *command.Given, q *pb.RedriveDeadLettersRequest) error { return chosen(q) },
	Text: func(_ *command.Given, w io.Writer, q *pb.RedriveDeadLettersRequest, a *pb.RedriveDeadLettersResponse) {
		n := bounded(int64(a.GetRedriven()), a.GetAtLeast(), "dead letter")
		prompt.Say(w, "%s %s", prompt.Either(q.GetDryRun(), "would redrive", "redrove"), n)
		printUntil(w, a.GetToTime())
	},
}

var dlqDelete = command.Spec[*pb.PurgeDeadLettersRequest, *pb.PurgeDeadLettersResponse]{
	Page: command.Page{
		Use:   "delete [ID...]",
		Short: "Delete dead letters (operators)",
		Example: `  brokerctl dlq delete 4711
  brokerctl dlq delete --mailbox builder-1 --dry-run`,
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.PurgeDeadLettersRequest,
	) (a *pb.PurgeDeadLettersResponse, err error) {
		n, err := allPages(func(token string) (int32, string, error) {
			q.PageToken = token
			a, err = broker.Messages().PurgeDeadLetters(g.Cmd.Context(), q)
			return a.GetPurged(), a.GetNextPageToken(), err
		})
		if err == nil {
			a.Purged = int32(n)
		}
		return a, err
	},
	Args:    deadIDs,
	Options: deadOptions,
	Prepare: func(_ *command.Given, q *pb.PurgeDeadLettersRequest) error { return chosen(q) },
	Text: func(_ *command.Given, w io.Writer, q *pb.PurgeDeadLettersRequest, a *pb.PurgeDeadLettersResponse) {
		n := bounded(int64(a.GetPurged()), a.GetAtLeast(), "dead letter")
		prompt.Say(w, "%s %s", prompt.Either(q.GetDryRun(), "would delete", "deleted"), n)
		printUntil(w, a.GetToTime())
	},
}
