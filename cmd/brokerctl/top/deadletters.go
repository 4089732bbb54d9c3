package top

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

// deadLetters shows the messages that the broker has given up, the newest first.
var deadLetters = view{
	title: "Dead letters", short: "Dead", question: "What failed, and why?", none: "there are no dead letters",
	marks: true,
	columns: []table.Column{
		{Name: "MESSAGE"}, {Name: "DEAD"}, {Name: "MAILBOX", Min: 10}, {Name: "FROM", Rank: 2, Min: 8},
		{Name: "HOLDER", Rank: 3, Min: 8},
		{Name: "ATTEMPTS", Rank: 4}, {Name: "SUBJECT", Min: 14}, {Name: "ERROR", Min: 16},
	},
	load: func(ctx context.Context, broker *client.Client) (any, error) {
		page, err := broker.Messages().ListDeadLetters(ctx, &pb.ListDeadLettersRequest{PageSize: 500})
		return page.GetItems(), err
	},
	rows: func(s snapshot) []row {
		items, _ := s.data.([]*pb.InboxItem)
		var rows []row
		for _, i := range items {
			m, d := i.GetMessage(), i.GetDelivery()
			failure := ""
			if h := d.GetHistory(); len(h) > 0 {
				failure = h[len(h)-1].GetError()
			}
			rows = append(rows, row{key: m.GetId() + " " + d.GetMailbox(), item: i, cells: []cell{
				number(m.GetRevision()), s.ago(d.GetFinishedAt()), text(d.GetMailbox()), text(m.GetSender()),
				text(d.GetHolder()),
				{fmt.Sprintf("%d/%d", d.GetAttempts(), d.GetMaxAttempts()), int64(d.GetAttempts())},
				text(m.GetSubject()), text(failure),
			}})
		}
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		m, err := o.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: r.item.(*pb.InboxItem).GetMessage().GetId()})
		if err != nil {
			return nil, err
		}
		var sections []section
		for _, d := range m.GetDeliveries() {
			sections = append(sections, section{title: "delivery to " + d.GetMailbox(), message: d})
		}
		return append(sections, section{title: "message", message: m.GetMessage()}), nil
	},
	actions: func(rows []row, _ func(string) string) []action {
		if len(rows) == 0 {
			return nil
		}
		what, ids := "this dead letter", map[string][]string{} // ids of messages by mailbox
		for _, r := range rows {
			item := r.item.(*pb.InboxItem)
			box := item.GetDelivery().GetMailbox()
			ids[box] = append(ids[box], item.GetMessage().GetId())
		}
		if len(rows) > 1 {
			what = strconv.Itoa(len(rows)) + " marked dead letters"
		}
		box := rows[0].item.(*pb.InboxItem).GetDelivery().GetMailbox()
		return []action{
			{
				label: "redrive " + what, effect: "Redeliver " + what + "; the attempts start again",
				run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
					return each(ids, "redrove", func(box string, ids []string) (int32, error) {
						r, err := broker.Messages().RedriveDeadLetters(ctx,
							&pb.RedriveDeadLettersRequest{Ids: ids, Mailbox: box})
						return r.GetRedriven(), err
					})
				},
			},
			{
				label: "purge " + what, effect: "Remove " + what + " for good",
				run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
					return each(ids, "purged", func(box string, ids []string) (int32, error) {
						r, err := broker.Messages().PurgeDeadLetters(ctx,
							&pb.PurgeDeadLettersRequest{Ids: ids, Mailbox: box})
						return r.GetPurged(), err
					})
				},
			},
			redriveAll(field{name: "mailbox", value: box}),
			purgeAll(field{name: "mailbox", value: box}),
		}
	},
}

// each makes one call per mailbox, and says how many dead letters it concerned.
func each(ids map[string][]string, did string, do func(box string, ids []string) (int32, error)) (string, error) {
	n := int32(0)
	for _, box := range slices.Sorted(maps.Keys(ids)) {
		some, err := do(box, ids[box])
		if n += some; err != nil {
			return "", fmt.Errorf("%s: %w", box, err)
		}
	}
	return fmt.Sprintf("%s %d", did, n), nil
}

// matchFields choose dead letters. Empty ones choose all.
func matchFields(mailbox field) []field {
	return []field{mailbox, {name: "type"}, {name: "from"}, {name: "holder"}, {name: "error"}}
}

// matched returns the filter of the fields, nil if they do not restrict.
func (v values) matched() *pb.DeadLetterFilter {
	list := func(name string) []string {
		if v[name] == "" {
			return nil
		}
		return []string{v[name]}
	}
	if v["type"]+v["from"]+v["holder"]+v["error"] == "" {
		return nil
	}
	return &pb.DeadLetterFilter{Types: list("type"), Senders: list("from"), Holders: list("holder"), Error: v["error"]}
}

// redriveAll redrives the dead letters that match, after their count.
func redriveAll(mailbox field) action {
	redrive := func(dry bool) effect {
		return func(ctx context.Context, broker *client.Client, v values) (string, error) {
			f := v.matched()
			r := &pb.RedriveDeadLettersRequest{Mailbox: v["mailbox"], Filter: f, All: v["mailbox"] == "" && f == nil,
				DryRun: dry}
			return all("redrive", "redrove", dry, func(token string) (int32, bool, string, error) {
				r.PageToken = token
				a, err := broker.Messages().RedriveDeadLetters(ctx, r)
				return a.GetRedriven(), a.GetAtLeast(), a.GetNextPageToken(), err
			})
		}
	}
	return action{
		label: "redrive all that match", effect: "Redeliver all dead letters that match", fields: matchFields(mailbox),
		count: redrive(true), run: redrive(false),
	}
}

// purgeAll removes the dead letters that match, after their count.
func purgeAll(mailbox field) action {
	purge := func(dry bool) effect {
		return func(ctx context.Context, broker *client.Client, v values) (string, error) {
			f := v.matched()
			r := &pb.PurgeDeadLettersRequest{Mailbox: v["mailbox"], Filter: f, All: v["mailbox"] == "" && f == nil,
				DryRun: dry}
			return all("purge", "purged", dry, func(token string) (int32, bool, string, error) {
				r.PageToken = token
				a, err := broker.Messages().PurgeDeadLetters(ctx, r)
				return a.GetPurged(), a.GetAtLeast(), a.GetNextPageToken(), err
			})
		}
	}
	return action{
		label: "purge all that match", effect: "Remove all dead letters that match, for good",
		fields: matchFields(mailbox),
		count:  purge(true), run: purge(false),
	}
}

// all makes the calls that concern all dead letters that match. A dry run is one call: it counts for
// those that follow.
func all(verb, did string, dry bool, do func(token string) (n int32, more bool, next string, err error)) (string,
	error) {
	total := int64(0)
	for token := ""; ; {
		n, more, next, err := do(token)
		total += int64(n)
		switch {
		case err != nil:
			return "", err
		case dry:
			return fmt.Sprintf("This would %s %s.", verb,
				upTo(total, map[bool]int64{true: 0, false: total + 1}[more]).text), nil
		case next == "":
			return fmt.Sprintf("%s %d", did, total), nil
		}
		token = next
	}
}
