package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

func newDLQCommand(c *cli) *cobra.Command {
	return group("dlq", "List, redrive and delete dead letters", `Dead letters are messages whose last attempt failed. The broker keeps them with
the error of each attempt.`, "  brokerctl dlq list",
		newDLQListCommand(c), newDLQRedriveCommand(c), newDLQDeleteCommand(c))
}

func newDLQListCommand(c *cli) *cobra.Command {
	var limit int
	var mailbox string
	var when timeRange
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List dead letters, newest first, with the last error",
		Example:           "  brokerctl dlq list --mailbox role:builder",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, until, err := when.parse(c)
			if err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			items, err := pages(limit, func(size int32, token string) ([]*pb.InboxItem, string, error) {
				page, err := broker.Messages().ListDeadLetters(cmd.Context(), &pb.ListDeadLettersRequest{Mailbox: mailbox, PageSize: size, PageToken: token})
				died := slices.DeleteFunc(page.GetItems(), func(item *pb.InboxItem) bool {
					at := item.GetDelivery().GetFinishedAt().AsTime()
					return since != nil && at.Before(since.AsTime()) || until != nil && !at.Before(until.AsTime())
				})
				return died, page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, items, c.deadView())
		},
	}
	cmd.Flags().StringVar(&mailbox, "mailbox", "", "only this mailbox: an agent's name, role:NAME or channel:NAME")
	when.AddFlags(cmd.Flags(), "dead letters")
	limitVar(cmd.Flags(), &limit, 100)
	return cmd
}

// deadView lists dead letters.
func (c *cli) deadView() view[*pb.InboxItem] {
	last := func(d *pb.Delivery) string {
		if h := d.GetHistory(); len(h) > 0 {
			return strings.TrimSuffix(strings.TrimSpace(h[len(h)-1].GetError()), ":")
		}
		return ""
	}
	return view[*pb.InboxItem]{
		columns: []table.Column{
			{Name: "REV"}, {Name: "MAILBOX", Min: 12}, {Name: "DIED"}, {Name: "FROM", Rank: 3, Min: 8}, {Name: "TYPE", Rank: 4, Min: 8},
			{Name: "ATTEMPTS", Rank: 2}, {Name: "TEXT", Rank: 1, Min: 16}, {Name: "LAST ERROR", Min: 30}, {Name: "ID", Wide: true},
		},
		row: func(item *pb.InboxItem) []string {
			m, d := item.GetMessage(), item.GetDelivery()
			return []string{
				strconv.FormatInt(m.GetRevision(), 10), d.GetMailbox(), c.when(d.GetFinishedAt()), m.GetSender(), m.GetType(),
				strconv.Itoa(int(d.GetAttempts())), summary(m), last(d), m.GetId(),
			}
		},
		prompt: func(w io.Writer, item *pb.InboxItem) {
			r := rendered{message: item.GetMessage(), facts: []string{"dead in " + item.GetDelivery().GetMailbox()}}
			r.next = fmt.Sprintf("%s dlq redrive %d to have it tried again", c.again(), item.GetMessage().GetRevision())
			if h := item.GetDelivery().GetHistory(); len(h) > 0 {
				a := h[len(h)-1]
				r.facts = append(r.facts, fmt.Sprintf("attempt %d by %s failed: %s", a.GetNumber(), brief(a.GetAgent()), clip(a.GetError(), 100)))
			}
			c.printPrompt(w, r)
		},
		none: "no dead letters",
	}
}

// deadOptions choose dead letters.
type deadOptions struct {
	mailbox   string
	requestID string
}

// AddFlags adds the options.
func (o *deadOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.mailbox, "mailbox", "", "all of this mailbox; with IDs, only there")
}

// check wants something to be chosen.
func (o *deadOptions) check(ids []string) error {
	if len(ids) == 0 && o.mailbox == "" {
		return usagef("name dead letters by id or revision, or a whole mailbox with --mailbox; brokerctl dlq list shows them")
	}
	if len(ids) == 0 && o.requestID != "" {
		return usagef("--request-id goes with ids only: a whole mailbox takes as many requests as it needs")
	}
	return nil
}

// all repeats a change of at most 1,000 dead letters a call until a mailbox has no more.
func (o *deadOptions) all(ids []string, change func() (int32, error)) (total int64, err error) {
	for {
		n, err := change()
		total += int64(n)
		if err != nil || len(ids) > 0 || n < maxPage {
			return total, err
		}
	}
}

func newDLQRedriveCommand(c *cli) *cobra.Command {
	o := &deadOptions{}
	cmd := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Redeliver dead letters",
		Long:  "Redeliver dead letters: the attempts start again; ids and history stay.",
		Example: `  brokerctl dlq redrive 4711
  brokerctl dlq redrive --mailbox role:builder`,
		ValidArgsFunction: c.completeArgs(true, deadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.RedriveDeadLettersResponse{}
			n, err := o.all(args, func() (int32, error) {
				var err error
				answer, err = broker.Messages().RedriveDeadLetters(cmd.Context(), &pb.RedriveDeadLettersRequest{RequestId: o.requestID, Ids: args, Mailbox: o.mailbox})
				return answer.GetRedriven(), err
			})
			if err != nil {
				return err
			}
			answer.Redriven = int32(n)
			return c.show(cmd, answer, func(w io.Writer) { fmt.Fprintf(w, "redrove %s\n", count(n, "dead letter")) })
		},
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	return cmd
}

func newDLQDeleteCommand(c *cli) *cobra.Command {
	o := &deadOptions{}
	cmd := &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete dead letters (operators)",
		Example: `  brokerctl dlq delete 4711
  brokerctl dlq delete --mailbox builder-1`,
		ValidArgsFunction: c.completeArgs(true, deadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.PurgeDeadLettersResponse{}
			n, err := o.all(args, func() (int32, error) {
				var err error
				answer, err = broker.Messages().PurgeDeadLetters(cmd.Context(), &pb.PurgeDeadLettersRequest{RequestId: o.requestID, Ids: args, Mailbox: o.mailbox})
				return answer.GetPurged(), err
			})
			if err != nil {
				return err
			}
			answer.Purged = int32(n)
			return c.show(cmd, answer, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", count(n, "dead letter")) })
		},
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	return cmd
}
