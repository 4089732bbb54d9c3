package app_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestExportSession_AwaitsTheWorkThatEndsWithTheSession(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	c := newCrew(t, "s", apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.Log = zap.New(core) }))
	lead, builder := pb.NewTaskServiceClient(c.lead), pb.NewTaskServiceClient(c.builder)
	const items = 150
	create := &pb.CreateTasksRequest{}
	for i := range items {
		c.vote(fmt.Sprint("vote ", i), nil)
		create.Tasks = append(create.Tasks, &pb.NewTask{Title: fmt.Sprint("task ", i)})
	}
	_, err := lead.CreateTasks(c.ctx, create)
	succeed(t, err)
	for range items {
		_, err := builder.ClaimTask(c.ctx, &pb.ClaimTaskRequest{})
		succeed(t, err)
	}
	const openVotes, held = `SELECT count(*) FROM items WHERE finished_at IS NULL`, `SELECT count(*) FROM tasks WHERE state = 3`
	for table, left := range map[string]string{"items": openVotes, "tasks": held} {
		testkit.Change(t, c.Dir(), fmt.Sprintf(`CREATE TRIGGER breaks_%[1]s BEFORE UPDATE ON %[1]s
			BEGIN SELECT RAISE(ABORT, 'broken') WHERE (%[2]s) <= 50; END`, table, left))
	}
	sessions := c.Actor("s", "")
	_, err = sessions.CloseSession(c.ctx, &pb.CloseSessionRequest{Name: "s"})
	succeed(t, err)
	for logs.FilterMessageSnippet("a page of the backlog failed").Len() < 2 {
		succeed(t, c.ctx.Err())
	}
	testkit.Change(t, c.Dir(), `DROP TRIGGER breaks_items`)
	testkit.Change(t, c.Dir(), `DROP TRIGGER breaks_tasks`)
	stream, err := sessions.ExportSession(c.ctx, &pb.ExportSessionRequest{Name: "s"})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for what, query := range map[string]string{"open votes": openVotes, "claimed tasks": held, "unfinished chores": `SELECT count(*) FROM work_backlog`} {
		if n := testkit.Number(t, c.Dir(), query); n != 0 {
			t.Errorf("%s after the export: %d", what, n)
		}
	}
}
