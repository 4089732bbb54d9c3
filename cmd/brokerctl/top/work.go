package top

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// work shows the unfinished work: a task that waits is below the task that it waits for. The
// votes, decisions, handoffs and blockers follow.
var work = view{
	title: "Work", short: "Work", question: "What is left, what is undecided?", none: "no work is left",
	columns: []table.Column{
		{Name: "WORK", Min: 12}, {Name: "KIND", Rank: 2}, {Name: "STATE", State: true}, {Name: "TITLE", Min: 16},
		{Name: "AGENT", Min: 10}, {Name: "SINCE"}, {Name: "DUE", Rank: 3}, {Name: "PROGRESS", Rank: 1},
	},
	load: loadWork,
	rows: func(s snapshot) []row {
		list, _ := s.data.(workList)
		rows := list.taskRows(s)
		for _, v := range list.votes {
			rows = append(rows, row{key: v.GetId(), item: v, cells: []cell{
				text(v.GetId()), text("vote"), enum(v.GetState()), text(v.GetTitle()), text(v.GetOpener()),
				s.ago(v.GetOpenedAt()),
				s.ago(v.GetDeadline()), text(fmt.Sprintf("%d of %d", v.GetBallots(), v.GetElectors())),
			}})
		}
		for _, d := range list.decisions {
			who := toAgentOrRole(d.GetAgent(), d.GetRole())
			rows = append(rows, row{key: d.GetId(), item: d, cells: []cell{
				text(d.GetId()), enum(d.GetKind()), enum(d.GetState()), text(d.GetTitle()),
				text(d.GetOpener() + " → " + who),
				s.ago(d.GetOpenedAt()), s.ago(d.GetDeadline()), text(fmt.Sprintf("round %d", d.GetRound())),
			}})
		}
		for _, h := range list.handoffs {
			rows = append(rows, row{key: h.GetId(), item: h, cells: []cell{
				text(h.GetId()), text("handoff"), enum(h.GetState()), text(h.GetTitle()),
				text(h.GetFrom() + " → " + toAgentOrRole(h.GetToAgent(), h.GetToRole())), s.ago(h.GetCreatedAt()),
				s.ago(nil),
				text(fmt.Sprintf("%d of %d", h.GetChecked(), h.GetItems())),
			}})
		}
		for _, b := range list.blockers {
			rows = append(rows, row{key: b.GetId(), item: b, cells: []cell{
				text(b.GetId()), text("blocker"), enum(b.GetState()), text(b.GetReason()), text(b.GetAgent()),
				s.ago(b.GetRaisedAt()),
				s.ago(b.GetEscalatesAt()), text(enum(b.GetSeverity()).text),
			}})
		}
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		full, err := fullWork(ctx, o, r)
		if err != nil {
			return nil, err
		}
		return []section{{title: r.cells[1].text + " " + r.key, message: full}}, nil
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
		if len(rows) != 1 {
			return nil
		}
		switch item := rows[0].item.(type) {
		case *pb.Task:
			return taskActions(item)
		case *pb.Vote:
			return voteActions(item)
		case *pb.Decision:
			return decisionActions(item)
		case *pb.Handoff:
			return handoffActions(item)
		case *pb.Blocker:
			return blockerActions(item)
		}
		return nil
	},
}

// workList is the unfinished work of a session.
type workList struct {
	tasks     []*pb.Task
	votes     []*pb.Vote
	decisions []*pb.Decision
	handoffs  []*pb.Handoff
	blockers  []*pb.Blocker
}

// loadWork reads the unfinished work, and the failed tasks. Of each kind it reads one page.
func loadWork(ctx context.Context, broker *client.Client) (any, error) {
	const size = 500
	var list workList
	tasks, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{PageSize: size, OldestFirst: true, States: []pb.TaskState{
		pb.TaskState_TASK_STATE_WAITING, pb.TaskState_TASK_STATE_READY, pb.TaskState_TASK_STATE_CLAIMED,
		pb.TaskState_TASK_STATE_BLOCKED, pb.TaskState_TASK_STATE_FAILED,
	}})
	if err != nil {
		return nil, err
	}
	list.tasks = tasks.GetTasks()
	votes, err := broker.Votes().ListVotes(ctx, &pb.ListVotesRequest{PageSize: size, OldestFirst: true,
		States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}})
	if err != nil {
		return nil, err
	}
	list.votes = votes.GetVotes()
	decisions, err := broker.Decisions().ListDecisions(ctx,
		&pb.ListDecisionsRequest{PageSize: size, OldestFirst: true, States: []pb.DecisionState{
			pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_REVISING,
			pb.DecisionState_DECISION_STATE_ESCALATED,
		}})
	if err != nil {
		return nil, err
	}
	list.decisions = decisions.GetDecisions()
	handoffs, err := broker.Handoffs().ListHandoffs(ctx, &pb.ListHandoffsRequest{
		PageSize: size, OldestFirst: true, States: []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING},
	})
	if err != nil {
		return nil, err
	}
	list.handoffs = handoffs.GetHandoffs()
	blockers, err := broker.Blockers().ListBlockers(ctx,
		&pb.ListBlockersRequest{PageSize: size, OldestFirst: true, States: []pb.BlockerState{
			pb.BlockerState_BLOCKER_STATE_OPEN, pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED,
		}})
	if err != nil {
		return nil, err
	}
	list.blockers = blockers.GetBlockers()
	return list, nil
}

// taskRows returns the tasks as trees: a task that waits is below the task that it waits for, if that is listed.
func (l workList) taskRows(s snapshot) []row {
	listed, waiting := map[string]bool{}, map[string][]*pb.Task{}
	for _, t := range l.tasks {
		listed[t.GetId()] = true
	}
	var first []*pb.Task
	for _, t := range l.tasks {
		if before := t.GetWaitsFor().GetId(); listed[before] {
			waiting[before] = append(waiting[before], t)
		} else {
			first = append(first, t)
		}
	}
	var rows func(tasks []*pb.Task) []row
	rows = func(tasks []*pb.Task) []row {
		var all []row
		for _, t := range tasks {
			since := t.GetReadyAt()
			if at := t.GetClaimedAt(); t.GetHolder() != "" {
				since = at
			}
			if since == nil {
				since = t.GetCreatedAt()
			}
			progress := text("")
			if p := t.GetProgress(); p > 0 {
				progress = cell{fmt.Sprintf("%.0f %%", p*100), int64(p * 1000)}
			}
			who := cmp.Or(t.GetHolder(), toAgentOrRole(t.GetAssignee(), t.GetRole()))
			all = append(all, row{key: "task " + t.GetId(), item: t, under: rows(waiting[t.GetId()]), cells: []cell{
				text(t.GetId()), text("task"), enum(t.GetState()), text(t.GetTitle()), text(who), s.ago(since),
				s.ago(t.GetStaleAt()), progress,
			}})
		}
		return all
	}
	return rows(first)
}

// toAgentOrRole names the agent or role on the other side.
func toAgentOrRole(agent, role string) string {
	return prompt.Either(agent == "" && role != "", "role:"+role, agent)
}

// fullWork reads all of a piece of work.
func fullWork(ctx context.Context, o opening, r row) (proto.Message, error) {
	switch r.item.(type) {
	case *pb.Vote:
		return o.Votes().GetVote(ctx, &pb.GetVoteRequest{Id: r.key})
	case *pb.Decision:
		return o.Decisions().GetDecision(ctx, &pb.GetDecisionRequest{Id: r.key})
	case *pb.Handoff:
		return o.Handoffs().GetHandoff(ctx, &pb.GetHandoffRequest{Id: r.key})
	case *pb.Blocker:
		return o.Blockers().GetBlocker(ctx, &pb.GetBlockerRequest{Id: r.key})
	}
	id := strings.TrimPrefix(r.key, "task ")
	return o.Tasks().GetTask(ctx, &pb.GetTaskRequest{Id: id, View: pb.TaskView_TASK_VIEW_FULL})
}
