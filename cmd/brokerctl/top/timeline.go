package top

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

// timeline shows the newest events: those of the frame, and the loaded ones before them.
var timeline = view{
	title: "Timeline", short: "Timeline", question: "What just happened?", none: "nothing has happened yet",
	columns: []table.Column{
		{Name: "REV"}, {Name: "TIME"}, {Name: "SEVERITY", State: true, Rank: 2}, {Name: "TYPE", Min: 14},
		{Name: "SOURCE", Rank: 1, Min: 8}, {Name: "SUMMARY", Min: 24},
	},
	load: func(ctx context.Context, broker *client.Client) (any, error) {
		page, err := broker.Events().ListEvents(ctx, &pb.ListEventsRequest{PageSize: 500, NewestFirst: true})
		return page.GetEvents(), err
	},
	rows: func(s snapshot) []row {
		events := slices.Clone(s.frame.GetEvents())
		loaded, _ := s.data.([]*pb.Event)
		for _, e := range loaded {
			events = append(events, &pb.OverviewEvent{
				Revision: e.GetRevision(), Time: e.GetTime(), Severity: e.GetSeverity(), Type: e.GetType(),
				Source:  e.GetSource(),
				Summary: e.GetSummary(),
			})
		}
		slices.SortStableFunc(events, func(a, b *pb.OverviewEvent) int {
			return cmp.Compare(b.GetRevision(),
				a.GetRevision())
		})
		same := func(a, b *pb.OverviewEvent) bool { return a.GetRevision() == b.GetRevision() }
		events = slices.CompactFunc(events, same)
		var rows []row
		for _, e := range events {
			rev := number(e.GetRevision())
			rows = append(rows, row{key: rev.text, item: e, cells: []cell{
				rev, s.ago(e.GetTime()), enum(e.GetSeverity()), text(e.GetType()), text(e.GetSource()),
				text(e.GetSummary()),
			}})
		}
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		revision := r.item.(*pb.OverviewEvent).GetRevision()
		page, err := o.Events().ListEvents(ctx, &pb.ListEventsRequest{AfterRevision: revision - 1,
			UntilRevision: revision})
		if err != nil {
			return nil, err
		}
		var sections []section
		for _, e := range page.GetEvents() {
			sections = append(sections, section{title: "event", message: e})
			if m, err := o.subject(ctx, e); err == nil && m != nil { // it may have ended since
				sections = append(sections, *m)
			}
		}
		return sections, nil
	},
	actions: func([]row, func(string) string) []action { return nil },
}

// subject reads what an event is about: the message, the task, or the agent that it names.
func (o opening) subject(ctx context.Context, e *pb.Event) (*section, error) {
	kind, _, _ := strings.Cut(e.GetType(), ".")
	id := e.GetTaskId()
	if len(e.GetRelated()) > 0 && kind != "task" {
		id = e.GetRelated()[0]
	}
	switch {
	case id == "":
		return nil, nil
	case kind == "message":
		m, err := o.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
		return &section{title: "message " + id, message: m}, err
	case kind == "task":
		t, err := o.Tasks().GetTask(ctx, &pb.GetTaskRequest{TaskId: id, View: pb.TaskView_TASK_VIEW_FULL})
		return &section{title: "task " + id, message: t}, err
	case kind == "agent":
		a, err := o.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: id})
		return &section{title: "agent " + id, message: a}, err
	}
	return nil, nil
}
