package work

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// taskClaimOptions are the options of task claim.
type taskClaimOptions struct {
	labels    []string
	wait      time.Duration
	further   bool
	requestID string
}

// AddFlags adds the options.
func (o *taskClaimOptions) AddFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.labels, "label", nil, "only a task with this label; repeatable")
	command.DurationVar(f, &o.wait, "wait", 0, "if there is none, wait up to this long, 1h at most")
	f.BoolVar(&o.further, "further", false, "claim a further task, also if the agent holds one")
}

func newTaskClaimCommand(c *command.Caller) *cobra.Command {
	o := &taskClaimOptions{}
	cmd := &cobra.Command{
		Use:   "claim [ID]",
		Short: "Claim a task to work on, the most urgent first",
		Long: `Claim a task to work on: the given one, or the most urgent that the agent may
claim. A task that the agent already holds comes first, so that it finds the task
again after a crash. The claim lasts until the agent completes, fails or releases
the task; task update keeps it fresh during long work.

Exit code 4: there is none, none came within --wait, or the agent is halted. Exit code 5: the given
task cannot be claimed; the error says why.`,
		Example: `  brokerctl --agent builder-1 task claim --wait 90s -o prompt
  brokerctl --agent builder-1 task claim login-api`,
		Args:              command.Between(0, "the task's id"),
		ValidArgsFunction: c.CompleteArgs(false, words.TaskWords(pb.TaskState_TASK_STATE_READY)),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	return cmd
}

func (o *taskClaimOptions) run(c *command.Caller, cmd *cobra.Command, args []string) error {
	labels, err := command.ParseLabels(o.labels)
	if err != nil {
		return err
	}
	request := &pb.ClaimTaskRequest{
		RequestId: o.requestID, Id: strings.Join(args, ""), Labels: labels, Wait: command.Duration(o.wait),
		Resume: len(args) == 0 && !o.further,
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	done := c.Progress(o.wait, "a task")
	answer, err := broker.Tasks().ClaimTask(cmd.Context(), request)
	done()
	if err != nil {
		return err
	}
	if answer.GetTask() == nil {
		return problem.Failf(problem.ExitNothing, "%s", c.Voice().WhyNoTask(answer, prompt.Either(o.wait > 0, prompt.Duration(o.wait), "")))
	}
	if answer.GetResumed() {
		inbox, err := broker.Messages().GetInboxSummary(cmd.Context(), &pb.GetInboxSummaryRequest{})
		if err != nil {
			return err
		}
		if inbox.GetHalted() {
			return problem.Failf(problem.ExitNothing, "the agent is halted until a resume; it still holds task %s", answer.GetTask().GetId())
		}
	}
	return c.Show(cmd, answer, func(w io.Writer) { printClaimedTask(c, w, answer) })
}

// printClaimedTask writes a claimed task with the commands that settle it.
func printClaimedTask(c *command.Caller, w io.Writer, answer *pb.ClaimTaskResponse) {
	t := answer.GetTask()
	if !prompt.ForModel(w) {
		PrintTask(c, w, &pb.GetTaskResponse{Task: t, History: answer.GetHistory()})
		fmt.Fprintf(w, "\nnext: %s\n", c.Voice().AfterTask(t))
		return
	}
	c.Voice().Task(w, answer)
}
