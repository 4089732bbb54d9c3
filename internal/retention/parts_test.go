package retention_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// sql changes the database behind the daemon's back.
func (w *world) sql(statement string) {
	w.Helper()
	testkit.Change(w, w.Dir(), statement)
}

// number returns the one number that a query finds in the database.
func (w *world) number(query string) int {
	w.Helper()
	return int(testkit.Number(w, w.Dir(), query))
}

func TestTurn_APartThatCannotBeArchivedStopsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(&pb.SessionSettings{MessageRetention: durationpb.New(time.Hour), EventRetention: durationpb.New(time.Hour)})
	board := w.Actor(w.session, "lead")
	made := apptest.Must(t, board.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "damaged"}}})
	apptest.Must(t, board.CancelTask, &pb.CancelTaskRequest{Id: made.Tasks[0].Id})
	deals := w.Actor(w.session, "lead")
	raised := apptest.Must(t, deals.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "r"})
	apptest.Must(t, deals.ResolveBlocker, &pb.ResolveBlockerRequest{Id: raised.Blocker.Id})
	w.sql(`UPDATE tasks SET labels = 'no JSON'`)
	w.Clock.Advance(2 * time.Hour)
	w.eventually("the blocker and the events are archived", func() bool {
		w.Clock.Advance(time.Second)
		blockers, _ := w.lines("blockers")
		events, _ := w.lines("events")
		return len(blockers) == 1 && len(events) > 0
	})
	w.sql(`UPDATE tasks SET labels = NULL`)
	w.eventually("the task is archived", func() bool {
		w.Clock.Advance(time.Minute)
		tasks, _ := w.lines("tasks")
		return len(tasks) == 1
	})
}

func TestTurn_RemovesDeregisteredAgentsWhoseIncarnationGrowsAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(&pb.SessionSettings{MessageRetention: durationpb.New(time.Hour)})
	builder := w.Actor(w.session, "builder")
	w.register("builder", "builder") // incarnations 2 and 3
	apptest.Must(t, builder.SaveCheckpoint, &pb.SaveCheckpointRequest{Kind: pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM})
	apptest.Must(t, builder.DeregisterAgent, &pb.DeregisterAgentRequest{})
	w.Clock.Advance(30 * time.Minute)
	w.register("tester", "reviewer")
	apptest.Must(t, w.as("tester").DeregisterAgent, &pb.DeregisterAgentRequest{})
	w.Clock.Advance(31 * time.Minute)
	w.eventually("the agent is archived", func() bool {
		w.Clock.Advance(10 * time.Millisecond)
		lines, _ := w.lines("agents")
		return len(lines) == 1 && lines[0]["name"] == "builder" && lines[0]["incarnation"] == 3.0
	})
	w.eventually("its checkpoints are removed", func() bool { // after the archive is written
		return w.number(`SELECT count(*) FROM agent_checkpoints`) == 0
	})
	w.Restart()
	got := apptest.Must(t, builder.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	if got.Agent.Incarnation != 4 {
		t.Error("registered again with incarnation", got.Agent.Incarnation)
	}
	if n := w.number(`SELECT count(*) FROM agents WHERE name = 'tester'`); n != 1 {
		t.Error("the agent that deregistered later is removed too")
	}
}

func TestTurn_AnAgentThatRegistersAgainInTimeStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(&pb.SessionSettings{MessageRetention: durationpb.New(time.Hour)})
	apptest.Must(t, w.as("builder").DeregisterAgent,
		&pb.DeregisterAgentRequest{})
	w.Clock.Advance(59 * time.Minute)
	w.register("builder")
	w.Clock.Advance(3 * time.Hour)
	w.turned()
	if lines, _ := w.lines("agents"); len(lines) != 0 {
		t.Error("archived:", lines)
	}
}
