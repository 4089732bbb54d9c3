package tasks_test

import (
	"fmt"
	"testing"

	"github.com/jonboulle/clockwork"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/testkit"
)

func TestFailTask_KeepsTheNewestHundredAttemptsOfATaskThatIsRetriedOften(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "t", Title: "x", MaxAttempts: 2}, &pb.NewTask{Id: "other", Title: "x"})
	take(a, "other")
	fail(a, "other", true)
	const rounds = 105
	for i := range rounds {
		take(a, "t")
		apptest.Must(t, a.FailTask, &pb.FailTaskRequest{Id: "t", Error: fmt.Sprint("error ", i), Fatal: true})
		apptest.Must(t, lead.RetryTask, &pb.RetryTaskRequest{Id: "t"})
	}
	history := full(lead, "t").GetHistory()
	want(t, "attempts in the answer", len(history), 100)
	want(t, "the oldest of them", history[0].GetError(), "error 5")
	want(t, "the newest", history[99].GetError(), "error 104")
	want(t, "attempts of both tasks", d.number(`SELECT count(*) FROM task_attempts`), 101)
}

func TestMigrations_KeepTheNewestHundredAttemptsOfATask(t *testing.T) {
	t.Parallel()
	dir, clock, all := t.TempDir(), clockwork.NewRealClock(), tasks.Migrations()
	before := testkit.Store(t, dir, clock, all[:2])
	apptest.NoError(t, before.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
			INSERT INTO task_attempts (revision, task, number, agent, claimed_at, ended_at, error)
			SELECT i, i % 3, 1, 'a', 1, 1, '' FROM n WHERE i % 3 <> 2 OR i < 100`)
		return nil
	}))
	apptest.NoError(t, before.Close())
	var left, oldest int
	apptest.NoError(t, testkit.Store(t, dir, clock, all).Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`
			SELECT count(*), min(CASE WHEN task = 1 THEN revision END)
			FROM task_attempts`).Scan(&left, &oldest)
	}))
	want(t, "attempts of three tasks", left, 100+100+33)
	want(t, "the oldest attempt of a task that had 167", oldest, 1+3*67)
}
