package messages

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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
		newDLQListCommand(c), newDLQRedriveCommand(c), newDLQDeleteCommand(c))
}

func newDLQListCommand(c *command.Caller) *cobra.Command {
	var limit int
	o := &deadFilter{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first, with the last error",
		Example: `  brokerctl dlq list --mailbox role:builder
  brokerctl dlq list --error timeout --since 1h`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := o.filter(c)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			first := &pb.ListDeadLettersResponse{}
			items, err := command.Pages(limit, func(size int32, token string) ([]*pb.InboxItem, string, error) {
				page, err := broker.Messages().ListDeadLetters(cmd.Context(), &pb.ListDeadLettersRequest{
					Mailbox: o.mailbox, Filter: filter, PageSize: size, PageToken: token, Count: token == "",
				})
				if token == "" {
					first = page
				}
				return page.GetItems(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if err := output.List(&c.Output, cmd, items, DeadView(c)); err != nil {
				return err
			}
			if n := first.GetCount(); n > int64(len(items)) && len(items) > 0 {
				of := bounded(n, first.GetCountAtLeast(), "dead letter")
				fmt.Fprintf(cmd.ErrOrStderr(), "the newest %d of %s\n", len(items), of)
			}
			return nil
		},
	}
	o.AddFlags(cmd.Flags(), "only this mailbox: an agent's name, role:NAME or channel:NAME")
	command.LimitVar(cmd.Flags(), &limit, 100)
	return cmd
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
			c.PrintPrompt(w, r)
		},
		None: "no dead letters",
	}
}

// deadFilter chooses dead letters by what they have in common.
type deadFilter struct {
	mailbox, failure        string
	types, senders, holders []string
	when                    command.TimeRange
}

// AddFlags adds the options. mailbox is the usage of --mailbox.
func (o *deadFilter) AddFlags(f *pflag.FlagSet, mailbox string) {
	f.StringVar(&o.mailbox, "mailbox", "", mailbox)
	f.StringSliceVar(&o.types, "type", nil, "only this type; repeatable")
	f.StringSliceVar(&o.senders, "from", nil, "only from this sender; repeatable")
	f.StringSliceVar(&o.holders, "holder", nil, "only last claimed by this agent; repeatable")
	f.StringVar(&o.failure, "error", "", "only with this text in the last error")
	o.when.AddFlags(f, "dead letters")
}

// filter returns the API's form; nil if no option restricts.
func (o *deadFilter) filter(c *command.Caller) (*pb.DeadLetterFilter, error) {
	since, until, err := o.when.Parse(c)
	if err != nil {
		return nil, err
	}
	f := &pb.DeadLetterFilter{
		Types: o.types, Senders: o.senders, Holders: o.holders, Error: o.failure, FromTime: since, ToTime: until,
	}
	if proto.Size(f) == 0 {
		return nil, nil
	}
	return f, nil
}

// deadOptions choose dead letters to change.
type deadOptions struct {
	deadFilter
	all, dryRun bool
	requestID   string
}

// AddFlags adds the options.
func (o *deadOptions) AddFlags(f *pflag.FlagSet) {
	o.deadFilter.AddFlags(f, "all of this mailbox; with IDs, only there")
	f.BoolVar(&o.all, "all", false, "all that no other option excludes")
	f.BoolVar(&o.dryRun, "dry-run", false, "change nothing; say how many it would be")
}

// check requires that dead letters are chosen, in one way.
func (o *deadOptions) check(c *command.Caller, ids []string) (*pb.DeadLetterFilter, error) {
	filter, err := o.filter(c)
	switch {
	case err != nil:
		return nil, err
	case len(ids) > 0 && (filter != nil || o.all):
		return nil, problem.Usagef("name dead letters, or choose all that match: not both")
	case len(ids) == 0 && o.mailbox == "" && filter == nil && !o.all:
		return nil, problem.Usagef("name dead letters by id or revision, or a whole mailbox with --mailbox, or choose with --type, " +
			"--from, --holder, --error, --since or --all; brokerctl dlq list shows them")
	case len(ids) == 0 && o.requestID != "":
		return nil, problem.Usagef("--request-id goes with ids only: all that match take as many requests as they need")
	}
	return filter, nil
}

// each repeats a change of at most 1,000 dead letters a call until no more match.
func each(change func(token string) (n int32, next string, err error)) (total int64, err error) {
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

func newDLQRedriveCommand(c *command.Caller) *cobra.Command {
	o := &deadOptions{}
	cmd := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Redeliver dead letters",
		Long:  "Redeliver dead letters: the attempts start again; ids and history stay.",
		Example: `  brokerctl dlq redrive 4711
  brokerctl dlq redrive --mailbox role:builder --dry-run
  brokerctl dlq redrive --error timeout --since 1h`,
		ValidArgsFunction: c.CompleteArgs(true, words.DeadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := o.check(c, args)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.RedriveDeadLettersResponse{}
			n, err := each(func(token string) (int32, string, error) {
				var err error
				answer, err = broker.Messages().RedriveDeadLetters(cmd.Context(), &pb.RedriveDeadLettersRequest{
					RequestId: o.requestID, Ids: args, Mailbox: o.mailbox, Filter: filter, All: o.all, DryRun: o.dryRun,
					PageToken: token,
				})
				return answer.GetRedriven(), answer.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			answer.Redriven = int32(n)
			return c.Show(cmd, answer, func(w io.Writer) {
				n := bounded(n, answer.GetAtLeast(), "dead letter")
				prompt.Say(w, "%s %s", prompt.Either(o.dryRun, "would redrive", "redrove"), n)
				printUntil(w, answer.GetToTime())
			})
		},
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	return cmd
}

func newDLQDeleteCommand(c *command.Caller) *cobra.Command {
	o := &deadOptions{}
	cmd := &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete dead letters (operators)",
		Example: `  brokerctl dlq delete 4711
  brokerctl dlq delete --mailbox builder-1 --dry-run`,
		ValidArgsFunction: c.CompleteArgs(true, words.DeadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := o.check(c, args)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.PurgeDeadLettersResponse{}
			n, err := each(func(token string) (int32, string, error) {
				var err error
				answer, err = broker.Messages().PurgeDeadLetters(cmd.Context(), &pb.PurgeDeadLettersRequest{
					RequestId: o.requestID, Ids: args, Mailbox: o.mailbox, Filter: filter, All: o.all, DryRun: o.dryRun,
					PageToken: token,
				})
				return answer.GetPurged(), answer.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			answer.Purged = int32(n)
			return c.Show(cmd, answer, func(w io.Writer) {
				n := bounded(n, answer.GetAtLeast(), "dead letter")
				prompt.Say(w, "%s %s", prompt.Either(o.dryRun, "would delete", "deleted"), n)
				printUntil(w, answer.GetToTime())
			})
		},
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	return cmd
}
