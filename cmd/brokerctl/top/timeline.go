package top

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

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
			return cmp.Compare(b.GetRevision(), a.GetRevision())
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
			sections = append(append(sections, section{title: "event", message: e}), o.subject(ctx, e)...)
		}
		return sections, nil
	},
	actions: func([]row, func(*pb.Call) string) []action { return nil },
}

// eventDetails are those details of events that name an object.
type eventDetails struct {
	Agent    string   `json:"agent"`
	Claim    string   `json:"claim"`
	Paths    []string `json:"paths"`
	Token    string   `json:"token"` // TYPE/SCOPE
	Vote     string   `json:"vote_id"`
	Decision string   `json:"decision_id"`
	Handoff  string   `json:"handoff_id"`
	Blocker  string   `json:"blocker_id"`
}

// subject reads the object that an event is about. It returns nothing for an event without one, and for
// an object that has been removed since.
func (o opening) subject(ctx context.Context, e *pb.Event) []section {
	var d eventDetails
	_ = json.Unmarshal([]byte(e.GetDetails()), &d)     // events of agents may have other details
	revision := strconv.FormatInt(e.GetRevision(), 10) // the number in the id of what the event has created
	var title string
	var m proto.Message
	var err error
	switch kind, _, _ := strings.Cut(e.GetType(), "."); kind {
	case "message":
		id := eventMessage(e, d)
		title = "message " + id
		m, err = o.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	case "task":
		title = "task " + e.GetTaskId()
		m, err = o.Tasks().GetTask(ctx, &pb.GetTaskRequest{Id: e.GetTaskId(), View: pb.TaskView_TASK_VIEW_FULL})
	case "agent":
		name := cmp.Or(d.Agent, append(e.GetRelated(), "")[0])
		title = "agent " + name
		m, err = o.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: name})
	case "lock":
		return o.locksOn(ctx, d.Paths)
	case "token":
		kind, scope, _ := strings.Cut(d.Token, "/")
		title = "token " + d.Token
		m, err = o.Tokens().GetToken(ctx, &pb.GetTokenRequest{Type: kind, Scope: scope})
	case "vote":
		id := cmp.Or(d.Vote, revision)
		title = "vote " + id
		m, err = o.Votes().GetVote(ctx, &pb.GetVoteRequest{Id: id})
	case "decision":
		id := cmp.Or(d.Decision, revision)
		title = "decision " + id
		m, err = o.Decisions().GetDecision(ctx, &pb.GetDecisionRequest{Id: id})
	case "handoff":
		id := cmp.Or(d.Handoff, revision)
		title = "handoff " + id
		m, err = o.Handoffs().GetHandoff(ctx, &pb.GetHandoffRequest{Id: id})
	case "blocker":
		id := cmp.Or(d.Blocker, revision)
		title = "blocker " + id
		m, err = o.Blockers().GetBlocker(ctx, &pb.GetBlockerRequest{Id: id})
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	return []section{{title: title, message: m}}
}

// eventMessage returns the message that an event is about.
func eventMessage(e *pb.Event, d eventDetails) string {
	switch {
	case e.GetType() == "message.sent":
		return strconv.FormatInt(e.GetRevision(), 10)
	case d.Claim != "":
		id, _, _ := strings.Cut(d.Claim, ".")
		return id
	}
	return append(e.GetRelated(), "")[0]
}

// locksOn reads the present locks on the paths of an event, and the requests that wait for them.
func (o opening) locksOn(ctx context.Context, paths []string) []section {
	var sections []section
	for _, path := range paths[:min(len(paths), mostPaths)] {
		page, err := o.Locks().ListLocks(ctx, &pb.ListLocksRequest{Path: path})
		switch {
		case err != nil:
		case len(page.GetLocks())+len(page.GetTickets()) == 0:
			sections = append(sections, section{title: "no agent holds " + path + " now"})
		default:
			page.Revision, page.NextPageToken = 0, ""
			sections = append(sections, section{title: "the locks on " + path + " and the requests that wait", message: page})
		}
	}
	return sections
}

// mostPaths is for how many paths of an event the locks are read.
const mostPaths = 8
