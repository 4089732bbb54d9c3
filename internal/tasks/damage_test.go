package tasks_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// newLogged is newDaemon with the errors that the daemon logs.
func newLogged(t *testing.T) (*daemon, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.ErrorLevel)
	clock := watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
	return &daemon{apptest.Start(t, apptest.With(func(c *app.Config) {
		c.Clock, c.StopTimeout, c.Log = clock, apptest.Patience, zap.New(core)
	})), clock}, logs
}

func TestClaim_ADamagedTaskAtTheHeadOfTheQueueStopsNoClaim(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"labels", "capabilities"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			d, logs := newLogged(t)
			lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
			labels := map[string]string{"area": "web"}
			createAll(lead, &pb.NewTask{Id: "first", Title: "x", Priority: 9, Labels: labels}, &pb.NewTask{Id: "second", Title: "x", Priority: 9},
				&pb.NewTask{Id: "third", Title: "x", Labels: labels}, &pb.NewTask{Id: "fourth", Title: "x"})
			d.database(`CREATE TABLE sound AS SELECT id, labels, capabilities FROM tasks`)
			d.Restart(func() { d.database(`UPDATE tasks SET ` + column + ` = '{' WHERE id IN ('first', 'second')`) })
			defer d.database(`UPDATE tasks SET (labels, capabilities) = (SELECT s.labels, s.capabilities FROM sound s WHERE s.id = tasks.id)`,
				`DROP TABLE sound`)
			want(t, "the claim without labels", claim(a), "third")
			got := apptest.Must(t, b.ClaimTask, &pb.ClaimTaskRequest{Labels: labels})
			want(t, "the claim with a label, for which no other is left", got.GetTask().GetId(), "")
			want(t, "the next claim", claim(b), "fourth")
			want(t, "the claim of an empty queue", claim(b), "")
			ended, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{})
			create(lead, "fifth")
			o := <-ended
			apptest.NoError(t, o.err)
			want(t, "the claim that waits", o.answer.GetTask().GetId(), "fifth")
			want(t, "damaged rows in the log", logs.FilterMessageSnippet("damaged JSON").Len(), 2)
			wantFound(t, d, "first", "second")
		})
	}
}

// wantFound wants the check of the database to report tasks whose JSON is not readable.
func wantFound(t *testing.T, d *daemon, ids ...string) {
	t.Helper()
	o := d.Root()
	out := apptest.Must(t, o.CheckDatabase, &pb.CheckDatabaseRequest{})
	for _, id := range ids {
		if all := strings.Join(out.GetProblems(), "\n"); !strings.Contains(all, `"`+id+`" breaks a rule of tasks: its labels and its capabilities are readable`) {
			t.Errorf("the check does not report task %s: %s", id, all)
		}
	}
}

func TestClaim_ADamagedQueueStopsNoOther(t *testing.T) {
	t.Parallel()
	d, logs := newLogged(t)
	lead, a := d.member("lead", "lead"), d.agent("a", "go")
	createAll(lead, &pb.NewTask{Id: "damaged", Title: "x", Capabilities: []string{"go"}}, &pb.NewTask{Id: "t", Title: "x"})
	d.Restart(func() { d.database(`UPDATE task_queues SET capabilities = '{' WHERE capabilities <> ''`) })
	defer d.database(`UPDATE task_queues SET capabilities = '["go"]' WHERE capabilities <> ''`)
	want(t, "the claim", claim(a), "t")
	want(t, "damaged rows in the log", logs.FilterMessageSnippet("damaged JSON").Len(), 1)
}

func TestTask_ADamagedOneStopsNoOtherOfItsHolderOrItsDependency(t *testing.T) {
	t.Parallel()
	d, _ := newLogged(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "need", "held", "sound", "damaged: need", "next: need")
	take(a, "held")
	take(a, "sound")
	take(a, "need")
	d.Restart(func() { d.database(`UPDATE tasks SET labels = '{' WHERE id IN ('held', 'damaged')`) })
	defer d.database(`UPDATE tasks SET labels = NULL`, `UPDATE tasks SET missing = 0, state = 2, ready_at = 1 WHERE id = 'damaged'`)
	out := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Resume: true})
	want(t, "the claim that continues", out.GetTask().GetId(), "sound")
	complete(a, "need")
	wantState(lead, ready, "next")
}

func TestCancelTask_ACascadeSkipsADamagedTask(t *testing.T) {
	t.Parallel()
	d, _ := newLogged(t)
	lead := d.member("lead", "lead")
	create(lead, "root", "damaged: root", "next: root")
	d.Restart(func() { d.database(`UPDATE tasks SET labels = '{' WHERE id = 'damaged'`) })
	out := apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "root", Cascade: true})
	want(t, "tasks that are cancelled", int(out.GetCancelled()), 2)
	wantState(lead, cancelled, "root", "next")
	d.database(`UPDATE tasks SET labels = NULL WHERE id = 'damaged'`)
}
