package supervise

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
)

// longestResult is how many bytes of a command's standard output are kept as the result of a task.
const longestResult = 32 << 10

const taskWorkLong = `Claim tasks one by one and run a command for each. The command reads the task as
JSON from standard input; task work keeps the claim fresh while it runs. The
command's exit code decides about the task:

  0      done
  75     released: it is ready again, no attempt is counted
  65     fatal: it is failed, until task retry
  other  a failed attempt, recorded with the end of the command's standard
         error; the broker makes the task ready again after a delay

The command's environment has the variables of brokerctl help environment, with
BROKERD_FENCE of the claim, so that brokerctl works inside it, and
BROKERD_TASK_ID, BROKERD_TASK_TITLE, BROKERD_ATTEMPT and BROKERD_MAX_ATTEMPTS.

Signals, lost claims and exit codes are as for brokerctl work.`

// NewTaskWorkCommand returns the command brokerctl task work.
func NewTaskWorkCommand(c *command.Caller) *cobra.Command {
	return commandOnly(taskWork.Command(c), needsCommand)
}

var taskWork = command.Procedure[*pb.ClaimTaskRequest]{
	Page: command.Page{
		Use:   "work [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command for each task",
		Long:  taskWorkLong,
		Example: `  brokerctl --agent builder-1 task work -- ./build.sh
  brokerctl --agent builder-1 task work --wait 10m --result -- make test`,
	},
	Options: append([]command.Option{
		{Field: "labels", Name: "label", Usage: "only tasks with this label; repeatable"},
		{Name: "resume", Type: "bool",
			Usage: "begin with the tasks that the agent already holds; only if it has no other worker"},
		{Name: "result", Type: "bool",
			Usage: "store the end of the command's standard output as the task's result, up to 32 KiB"},
	}, workerOptions("task")...),
	Apart: workerApart,
	Run: func(g *command.Given, q *pb.ClaimTaskRequest) error {
		ctx, stop := context.WithCancel(g.Cmd.Context())
		defer stop()
		w, err := newWorker(g, ctx, stop)
		if err != nil {
			return err
		}
		w.idle()
		defer w.busy()
		err = w.broker.WorkTasks(ctx, client.TaskOptions{
			Labels: q.GetLabels(), Concurrency: w.concurrency, Resume: g.On("resume"),
			DrainTimeout: longestClaim, // the second signal bounds the time that a command takes to end
			OnLost:       func(claim *client.TaskClaim, err error) { w.lost(taskJob(claim), err) },
		}, func(ctx context.Context, claim *client.TaskClaim) error {
			j := taskJob(claim)
			output := &tail{to: io.Discard, limit: longestResult}
			if g.On("result") {
				j.output = output
			}
			err := w.handle(ctx, j)
			claim.Result = output.String()
			return err
		})
		if err != nil {
			return ownFailure(g.Caller, "work", err)
		}
		return w.outcome()
	},
}

// taskJob is the job of a claimed task.
func taskJob(claim *client.TaskClaim) job {
	t := claim.Task
	return job{
		name: "task " + t.GetId(), claim: "the claim of task " + t.GetId(), fatal: "has failed for good",
		input: t, attempt: claim.Attempt, most: int(t.GetMaxAttempts()),
		env: [][2]string{
			{"BROKERD_TASK_ID", t.GetId()},
			{"BROKERD_TASK_TITLE", t.GetTitle()},
			{"BROKERD_ATTEMPT", fmt.Sprint(claim.Attempt)},
			{"BROKERD_MAX_ATTEMPTS", fmt.Sprint(t.GetMaxAttempts())},
			{"BROKERD_FENCE", strconv.FormatInt(t.GetFence(), 10)},
		},
	}
}
