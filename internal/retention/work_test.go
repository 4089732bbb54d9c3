package retention_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A kindOfWork creates pieces of work of one kind.
type kindOfWork struct {
	open   func(title string) (id string) // as lead, for builder
	finish func(id string)
}

// kindsOfWork returns the kinds of joint work by the names of their archive files.
func (w *world) kindsOfWork() map[string]kindOfWork {
	lead, builder := w.In(w.session, "lead"), w.In(w.session, "builder")
	tasks, decisions, blockers := pb.NewTaskServiceClient(builder), pb.NewDecisionServiceClient(lead), pb.NewBlockerServiceClient(lead)
	handoffs, votes := pb.NewHandoffServiceClient(lead), pb.NewVoteServiceClient(lead)
	return map[string]kindOfWork{
		"tasks": {func(title string) string {
			out := apptest.Must(w, tasks.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: title}}})
			return out.GetTasks()[0].GetId()
		}, w.complete},
		"decisions": {func(title string) string {
			out := apptest.Must(w, decisions.OpenDecision,
				&pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_PLAN, Title: title,
					To: &pb.OpenDecisionRequest_Agent{Agent: "builder"}, Content: &pb.DecisionContent{Body: title}})
			return out.GetDecision().GetId()
		}, func(id string) {
			apptest.Must(w, pb.NewDecisionServiceClient(builder).Decide,
				&pb.DecideRequest{Id: id, Verdict: "approve"})
		}},
		"blockers": {func(title string) string {
			out := apptest.Must(w, blockers.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: title})
			return out.GetBlocker().GetId()
		}, func(id string) {
			apptest.Must(w, blockers.ResolveBlocker, &pb.ResolveBlockerRequest{Id: id})
		}},
		"handoffs": {func(title string) string {
			out := apptest.Must(w, handoffs.CreateHandoff,
				&pb.CreateHandoffRequest{Title: title, ToAgent: "builder"})
			return out.GetHandoff().GetId()
		}, func(id string) {
			apptest.Must(w, handoffs.CancelHandoff, &pb.CancelHandoffRequest{Id: id})
		}},
		"votes": {func(title string) string {
			out := apptest.Must(w, votes.OpenVote, &pb.OpenVoteRequest{Title: title, Options: []string{"a", "b"}})
			return out.GetVote().GetId()
		}, func(id string) {
			apptest.Must(w, votes.CloseVote, &pb.CloseVoteRequest{Id: id})
		}},
	}
}

// complete claims and completes a task as builder.
func (w *world) complete(id string) {
	w.Helper()
	tasks := w.Actor(w.session, "builder")
	claim := apptest.Must(w, tasks.ClaimTask, &pb.ClaimTaskRequest{Id: id})
	apptest.Must(w, tasks.CompleteTask, &pb.CompleteTaskRequest{Id: id, Fence: claim.GetTask().GetFence()})
}

// archivedIDs returns the ids in the archive files of a kind, sorted.
func (w *world) archivedIDs(kind string) []string {
	w.Helper()
	ids := []string{}
	lines, _ := w.lines(kind)
	for _, l := range lines {
		for _, noun := range []string{"vote", "task"} { // the line has its ballots or attempts besides
			if item, ok := l[noun].(map[string]any); ok {
				l = item
			}
		}
		ids = append(ids, fmt.Sprint(l["id"]))
	}
	slices.Sort(ids)
	return ids
}

func TestRetention_TaskStaysWhileUnfinishedTasksNeedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	tasks := w.Actor(w.session, "lead")
	apptest.Must(t, tasks.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "site", Title: "site"}, {Id: "schema", Title: "schema"}, {Id: "page", Title: "page", Parent: "site"},
		{Id: "api", Title: "api", DependsOn: []string{"schema"}}, {Id: "free", Title: "free"},
	}})
	for _, id := range []string{"schema", "site", "free"} {
		w.complete(id)
	}
	w.Clock.Advance(time.Hour + time.Minute)
	w.eventually("the task that no other needs is archived", func() bool { return len(w.archivedIDs("tasks")) > 0 })
	w.turned()
	if d := cmp.Diff([]string{"free"}, w.archivedIDs("tasks")); d != "" {
		t.Errorf("wanted (-) and archived (+) while others need them: %s", d)
	}
	w.complete("api")
	w.complete("page")
	w.Clock.Advance(time.Hour + time.Minute)
	w.eventually("all are archived", func() bool { return len(w.archivedIDs("tasks")) == 5 })
}
