package work

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const taskLong = `Tasks are pieces of work with dependencies. A task is READY when its dependencies
are DONE; exactly one agent at a time claims and holds it. A message tells an agent
something, a task is done once.

States: waiting (for a dependency), ready, claimed, blocked (its holder cannot
continue), done, failed (after the last attempt), cancelled.`

// NewTaskCommand returns the commands of brokerctl task.
func NewTaskCommand(c *command.Caller) *cobra.Command {
	return command.Group("task", "Plan work as tasks with dependencies, claim and finish them", taskLong,
		"  brokerctl --agent builder-1 task claim --wait 90s -o prompt",
		newTaskCreateCommand(c), taskClaim.Command(c), taskUpdate.Command(c), taskBlock.Command(c),
		taskUnblock.Command(c), taskComplete.Command(c), taskFail.Command(c), taskRelease.Command(c),
		taskCancel.Command(c), taskRetry.Command(c), taskGet.Command(c), taskList.Command(c), taskWait.Command(c))
}

var unfinishedTask = command.Kind{Name: "TASK", Words: words.TaskWords(words.Unfinished...)}

// heldTaskWords returns the ids of the tasks that the agent holds.
func heldTaskWords(ctx context.Context, broker *client.Client) ([]string, error) {
	tasks, err := heldTasks(ctx, broker)
	return words.DescribeTasks(tasks), err
}

// heldTasks returns the tasks that the calling agent holds.
func heldTasks(ctx context.Context, broker *client.Client) ([]*pb.Task, error) {
	return command.Pages(0, func(size int32, token string) ([]*pb.Task, string, error) {
		page, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{
			Holder: broker.Identity().Agent, OldestFirst: true, PageSize: size, PageToken: token,
			States: []pb.TaskState{pb.TaskState_TASK_STATE_CLAIMED, pb.TaskState_TASK_STATE_BLOCKED},
		})
		return page.GetTasks(), page.GetNextPageToken(), err
	})
}

// heldTask returns the id of the only task which the agent holds.
func heldTask(g *command.Given) (string, error) {
	broker, err := g.Connect(g.Cmd.Context())
	if err != nil {
		return "", err
	}
	agent := broker.Identity().Agent
	if agent == "" {
		return "", nil // the broker refuses an empty id
	}
	tasks, err := heldTasks(g.Cmd.Context(), broker)
	if err != nil {
		return "", err
	}
	ids := each.Of(tasks, (*pb.Task).GetId)
	switch len(ids) {
	case 0:
		return "", problem.Failf(problem.ExitLost, "agent %q holds no task: it has claimed none, or it has lost the claim", agent)
	case 1:
		return ids[0], nil
	}
	return "", problem.Usagef("agent %q holds %d tasks; name one of %s", agent, len(ids), prompt.Names(ids, len(ids)))
}

var taskGet = command.Spec[*pb.GetTaskRequest, *pb.GetTaskResponse]{
	Page: command.Page{
		Use:   "get ID",
		Short: "Show a task",
		Example: `  brokerctl task get login-api
  brokerctl task get login-api --full -o json`,
	},
	Args: []command.Arg{{Field: "id", Name: "the task's id", Kind: words.Task}},
	Options: []command.Option{
		{Field: "view", Name: "full", Means: int32(pb.TaskView_TASK_VIEW_FULL),
			Usage: "also failed attempts, dependents, subtasks, and what carries its id"},
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.GetTaskRequest, a *pb.GetTaskResponse) {
		PrintTask(g.Caller, w, a)
	},
}

// PrintTask shows all that is known of a task.
func PrintTask(c *command.Caller, w io.Writer, answer *pb.GetTaskResponse) {
	l := c.NewLabels(w)
	t := answer.GetTask()
	if t != nil {
		l.Line("task", t.GetId())
		l.Line("title", t.GetTitle())
		detail := c.Voice().TaskDetail(t)
		l.State("state", prompt.Enum(t.GetState())+prompt.Either(detail != "", ", "+detail, ""))
		l.Line("for", prompt.TaskFor(t))
		l.Line("capabilities", strings.Join(t.GetCapabilities(), ", "))
		l.Line("priority", strconv.Itoa(int(t.GetPriority())))
		l.Line("labels", prompt.Labels(t.GetLabels()))
		l.Line("part of", t.GetParent())
		l.Line("attempts", prompt.Either(t.GetAttempts() > 0, fmt.Sprintf("%d of %d failed", t.GetAttempts(), t.GetMaxAttempts()), ""))
		l.Line("progress", prompt.Either(t.GetProgress() > 0, prompt.Percent(t.GetProgress()), ""))
		l.Line("note", prompt.Either(t.GetNote() != detail, t.GetNote(), ""))
		l.Line("fence", prompt.Either(t.GetFence() > 0, strconv.FormatInt(t.GetFence(), 10), ""))
		l.Line("artifacts", strings.Join(t.GetArtifacts(), ", "))
		l.Line("created", c.When(t.GetCreatedAt())+" by "+t.GetCreator())
		l.Line("claimed", c.When(t.GetClaimedAt()))
		l.Line("updated", c.When(t.GetUpdatedAt()))
		l.Line("update due", c.When(t.GetStaleAt()))
		l.Line("finished", c.When(t.GetFinishedAt()))
		l.Line("outcome", strings.Join(t.GetResultArtifacts(), ", "))
	}
	for _, a := range answer.GetHistory() {
		ended := fmt.Sprintf("%d by %s, ended %s: ", a.GetNumber(), a.GetAgent(), c.When(a.GetEndedAt()))
		l.Line("attempt", ended+a.GetError())
	}
	if answer.GetDependencies() == nil {
		l.Line("depends on", strings.Join(t.GetDependsOn(), ", "))
	}
	briefs := func(label string, tasks []*pb.TaskBrief) {
		for _, b := range tasks {
			l.Line(label, prompt.TaskBrief(b))
		}
	}
	briefs("depends on", answer.GetDependencies())
	briefs("dependent", answer.GetDependents())
	briefs("subtask", answer.GetSubtasks())
	for _, r := range answer.GetReferences() {
		l.Line(r.GetKind(), c.ShortID(r.GetId(), r.GetRevision())+prompt.Either(r.GetTitle() != "", ": "+r.GetTitle(), ""))
	}
	l.Flush()
	for _, text := range []string{t.GetDescription(), t.GetResult()} {
		if text != "" {
			output.Apart(w)
			fmt.Fprintln(w, strings.TrimRight(prompt.Clean(text), "\n"))
		}
	}
}
