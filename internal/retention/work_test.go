package retention_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

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
				&pb.DecideRequest{DecisionId: id, Verdict: "approve"})
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
			apptest.Must(w, votes.CloseVote, &pb.CloseVoteRequest{VoteId: id})
		}},
	}
}

// complete claims and completes a task as builder.
func (w *world) complete(id string) {
	w.Helper()
	tasks := pb.NewTaskServiceClient(w.In(w.session, "builder"))
	claim := apptest.Must(w, tasks.ClaimTask, &pb.ClaimTaskRequest{TaskId: id})
	apptest.Must(w, tasks.CompleteTask, &pb.CompleteTaskRequest{TaskId: id, Fence: claim.GetTask().GetFence()})
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

func TestRetention_FinishedWorkOfEachKindIsArchivedExportedAndDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(merged(short(), &pb.SessionSettings{SendRate: proto.Float64(0)}))
	kinds := w.kindsOfWork()
	finished, open := map[string][]string{}, map[string]string{}
	for name, kind := range kinds {
		for i := range 3 {
			id := kind.open(fmt.Sprintf("finished %d", i))
			kind.finish(id)
			finished[name] = append(finished[name], id)
		}
		open[name] = kind.open("unfinished")
		slices.Sort(finished[name])
	}
	w.Clock.Advance(time.Hour + time.Minute)
	for name := range kinds {
		w.eventually(name+" are archived", func() bool { return len(w.archivedIDs(name)) == 3 })
		if d := cmp.Diff(finished[name], w.archivedIDs(name)); d != "" {
			t.Errorf("finished (-) and archived (+) %s: %s", name, d)
		}
	}
	apptest.Must(t, w.Root().CloseSession, &pb.CloseSessionRequest{Name: w.session})
	out := apptest.Must(t, w.Root().DeleteSession, &pb.DeleteSessionRequest{Name: w.session})
	for name := range kinds {
		text, err := os.ReadFile(filepath.Join(w.Dir(), out.GetArchive(), name+".jsonl"))
		apptest.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != 4 || strings.Count(string(text), `{"archived":true,`) != 3 || !strings.Contains(lines[3], `"`+open[name]+`"`) ||
			!strings.HasPrefix(lines[3], `{"archived":false,`) {
			t.Errorf("the export has these %s:\n%s", name, text)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(w.Dir(), "archive", w.session, "*")); len(files) > 0 {
		t.Errorf("the deletion left %v", files)
	}
}

func TestRetention_TaskStaysWhileUnfinishedTasksNeedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	tasks := pb.NewTaskServiceClient(w.In(w.session, "lead"))
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
