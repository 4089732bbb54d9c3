package work

import (
	"fmt"
	"io"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var taskClaim = command.Spec[*pb.ClaimTaskRequest, *pb.ClaimTaskResponse]{
	Page: command.Page{
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
	},
	Call: command.Awaiting[*pb.ClaimTaskRequest, *pb.ClaimTaskResponse]("a task"),
	Args: []command.Arg{
		{Field: "id", Name: "the task's id", Kind: command.Kind{Words: words.TaskWords(pb.TaskState_TASK_STATE_READY)}},
	},
	Options: []command.Option{
		{Field: "labels", Name: "label", Usage: "only a task with this label; repeatable"},
		{Field: "wait", Usage: "if there is none, wait up to this long, 1h at most"},
		{Name: "further", Type: "bool", Usage: "claim a further task, also if the agent holds one"},
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ClaimTaskRequest) error {
		q.Resume = q.GetId() == "" && !g.On("further")
		return nil
	},
	After: func(g *command.Given, broker *client.Client, _ *pb.ClaimTaskRequest, a *pb.ClaimTaskResponse) (bool, error) {
		if a.GetTask() == nil {
			wait := g.Duration("wait")
			why := g.Voice().WhyNoTask(a, prompt.Either(wait > 0, prompt.Duration(wait), ""))
			return true, problem.Failf(problem.ExitNothing, "%s", why)
		}
		if !a.GetResumed() {
			return false, nil
		}
		inbox, err := broker.Messages().GetInboxSummary(g.Cmd.Context(), &pb.GetInboxSummaryRequest{})
		if err == nil && inbox.GetHalted() {
			err = problem.Failf(problem.ExitNothing, "the agent is halted until a resume; it still holds task %s",
				a.GetTask().GetId())
		}
		return false, err
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.ClaimTaskRequest, a *pb.ClaimTaskResponse) {
		printClaimedTask(g.Caller, w, a)
	},
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
