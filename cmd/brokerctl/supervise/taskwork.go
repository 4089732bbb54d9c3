package supervise

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
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

// taskWorkOptions are the options of task work.
type taskWorkOptions struct {
	workerOptions
	labels []string
	resume bool
	result bool
}

// NewTaskWorkCommand returns the command brokerctl task work.
func NewTaskWorkCommand(c *command.Caller) *cobra.Command {
	o := &taskWorkOptions{}
	cmd := &cobra.Command{
		Use:   "work [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command for each task",
		Long:  taskWorkLong,

		DisableFlagsInUseLine: true,
		Example: `  brokerctl --agent builder-1 task work -- ./build.sh
  brokerctl --agent builder-1 task work --wait 10m --result -- make test`,
		Args: commandOnly,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd, "task")
	cmd.Flags().StringArrayVar(&o.labels, "label", nil, "only tasks with this label; repeatable")
	cmd.Flags().BoolVar(&o.resume, "resume", false,
		"begin with the tasks that the agent already holds; only if it has no other worker")
	cmd.Flags().BoolVar(&o.result, "result", false,
		"store the end of the command's standard output as the task's result, up to 32 KiB")
	return cmd
}

func (o *taskWorkOptions) run(c *command.Caller, cmd *cobra.Command, args []string) error {
	labels, err := command.ParseLabels(o.labels)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	w, err := o.worker(ctx, c, cmd, args, stop)
	if err != nil {
		return err
	}
	w.idle()
	defer w.busy()
	err = w.broker.WorkTasks(ctx, client.TaskOptions{
		Labels: labels, Concurrency: o.concurrency, Resume: o.resume,
		DrainTimeout: longestClaim, // the second signal bounds the time that a command takes to end
		OnLost:       func(claim *client.TaskClaim, err error) { w.lost(taskJob(claim), err) },
	}, func(ctx context.Context, claim *client.TaskClaim) error {
		j := taskJob(claim)
		output := &tail{to: io.Discard, limit: longestResult}
		if o.result {
			j.output = output
		}
		err := w.handle(ctx, j)
		claim.Result = output.String()
		return err
	})
	if err != nil {
		return ownFailure(c, "work", err)
	}
	return w.outcome()
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
