package top

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
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
		sections := each.Of(m.GetDeliveries(), func(d *pb.Delivery) section {
			return section{title: "delivery to " + d.GetMailbox(), message: d}
		})
		return append(sections, section{title: "message", message: m.GetMessage()}), nil
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
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
					return perMailbox(ids, "redrove", func(box string, ids []string) (int32, error) {
						r, err := broker.Messages().RedriveDeadLetters(ctx,
							&pb.RedriveDeadLettersRequest{Ids: ids, Mailbox: box})
						return r.GetRedriven(), err
					})
				},
			},
			{
				label: "purge " + what, effect: "Remove " + what + " for good",
				run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
					return perMailbox(ids, "purged", func(box string, ids []string) (int32, error) {
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

// perMailbox makes one call per mailbox, and says how many dead letters it concerned.
func perMailbox(ids map[string][]string, did string, do func(box string, ids []string) (int32, error)) (string, error) {
	n := int32(0)
	for _, box := range slices.Sorted(maps.Keys(ids)) {
		some, err := do(box, ids[box])
		if n += some; err != nil {
			return "", fmt.Errorf("%s: %w", box, err)
		}
	}
	return did + " " + prompt.Count(int64(n), "dead letter"), nil
}

// matchFields choose dead letters. Empty ones choose all.
func matchFields(mailbox field) []field {
	return []field{mailbox, {name: "type"}, {name: "from"}, {name: "holder"}, {name: "error"}}
}

// countedAt is the name of a value that is not a field: the time of the count. It keeps dead letters from
// after the count out of the change.
const countedAt = "counted at"

// matched returns the filter of the values.
func (v values) matched() (*pb.DeadLetterFilter, error) {
	list := func(name string) []string {
		if v[name] == "" {
			return nil
		}
		return []string{v[name]}
	}
	f := &pb.DeadLetterFilter{Types: list("type"), Senders: list("from"), Holders: list("holder"), Error: v["error"]}
	if v[countedAt] != "" {
		until, err := time.Parse(time.RFC3339Nano, v[countedAt])
		if err != nil {
			return nil, err
		}
		f.ToTime = timestamppb.New(until)
	}
	return f, nil
}

// A deadChoice says which dead letters a call concerns.
type deadChoice struct {
	mailbox string
	filter  *pb.DeadLetterFilter
	dry     bool
	page    string
}

// A deadCall redrives or purges dead letters, or counts them, and returns their number.
type deadCall func(ctx context.Context, broker *client.Client, c deadChoice) (int32, deadAnswer, error)

// A deadAnswer is what the answers of both calls have.
type deadAnswer interface {
	GetAtLeast() bool
	GetNextPageToken() string
	GetToTime() *timestamppb.Timestamp
}

// redriveAll redrives the dead letters that match, after their count.
func redriveAll(mailbox field) action {
	return allThatMatch(mailbox, "redrive", "redrove", "Redeliver all dead letters that match",
		func(ctx context.Context, broker *client.Client, c deadChoice) (int32, deadAnswer, error) {
			a, err := broker.Messages().RedriveDeadLetters(ctx, &pb.RedriveDeadLettersRequest{
				Mailbox: c.mailbox, Filter: c.filter, All: true, DryRun: c.dry, PageToken: c.page})
			return a.GetRedriven(), a, err
		})
}

// purgeAll removes the dead letters that match, after their count.
func purgeAll(mailbox field) action {
	return allThatMatch(mailbox, "purge", "purged", "Remove all dead letters that match, for good",
		func(ctx context.Context, broker *client.Client, c deadChoice) (int32, deadAnswer, error) {
			a, err := broker.Messages().PurgeDeadLetters(ctx, &pb.PurgeDeadLettersRequest{
				Mailbox: c.mailbox, Filter: c.filter, All: true, DryRun: c.dry, PageToken: c.page})
			return a.GetPurged(), a, err
		})
}

// allThatMatch makes a call on the dead letters that match. It concerns those that the count has counted,
// and none from after it.
func allThatMatch(mailbox field, verb, did, what string, do deadCall) action {
	return action{
		label: verb + " all that match", effect: what, fields: matchFields(mailbox),
		count: func(ctx context.Context, broker *client.Client, v values) (string, values, error) {
			v = maps.Clone(v)
			delete(v, countedAt) // of a count before
			filter, err := v.matched()
			if err != nil {
				return "", nil, err
			}
			n, answer, err := do(ctx, broker, deadChoice{mailbox: v["mailbox"], filter: filter, dry: true})
			if err != nil {
				return "", nil, err
			}
			v[countedAt] = answer.GetToTime().AsTime().Format(time.RFC3339Nano)
			number := prompt.Either(answer.GetAtLeast(), "at least ", "") + prompt.Count(int64(n), "dead letter")
			return fmt.Sprintf("This would %s %s.", verb, number), v, nil
		},
		run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
			filter, err := v.matched()
			if err != nil {
				return "", err
			}
			total := int64(0)
			for c := (deadChoice{mailbox: v["mailbox"], filter: filter}); ; { // a call changes a page of them
				n, answer, err := do(ctx, broker, c)
				if err != nil {
					return "", err
				}
				total += int64(n)
				if c.page = answer.GetNextPageToken(); c.page == "" {
					return did + " " + prompt.Count(total, "dead letter"), nil
				}
			}
		},
	}
}
