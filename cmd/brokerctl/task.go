package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const taskLong = `Tasks are pieces of work with dependencies. A task is READY when its dependencies
are DONE; exactly one agent at a time claims and holds it. A message tells an agent
something, a task is done once.

States: waiting (for a dependency), ready, claimed, blocked (its holder cannot
continue), done, failed (after the last attempt), cancelled.`

func newTaskCommand(c *cli) *cobra.Command {
	return group("task", "Plan work as tasks with dependencies, claim and finish them", taskLong,
		"  brokerctl --agent builder-1 task claim --wait 90s -o prompt",
		newTaskCreateCommand(c), newTaskClaimCommand(c), newTaskUpdateCommand(c), newTaskBlockCommand(c),
		newTaskUnblockCommand(c), newTaskCompleteCommand(c), newTaskFailCommand(c), newTaskReleaseCommand(c),
		newTaskCancelCommand(c), newTaskRetryCommand(c), newTaskGetCommand(c), newTaskListCommand(c),
		newTaskWaitCommand(c), newTaskWorkCommand(c))
}

// taskWords returns the ids of unfinished tasks.
func taskWords(states ...pb.TaskState) wordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{States: states, PageSize: maxPage})
		return describeTasks(page.GetTasks()), err
	}
}

// heldTaskWords returns the ids of the tasks that the agent holds.
func heldTaskWords(ctx context.Context, broker *client.Client) ([]string, error) {
	tasks, err := heldTasks(ctx, broker)
	return describeTasks(tasks), err
}

func describeTasks(tasks []*pb.Task) []string {
	var words []string
	for _, t := range tasks {
		words = append(words, fmt.Sprintf("%s\t%s: %s", t.GetId(), prompt.Enum(t.GetState()), prompt.Clip(t.GetTitle(), 60)))
	}
	return words
}

// heldTasks returns the tasks that the calling agent holds.
func heldTasks(ctx context.Context, broker *client.Client) ([]*pb.Task, error) {
	return pages(0, func(size int32, token string) ([]*pb.Task, string, error) {
		page, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{
			Holder: broker.Identity().Agent, OldestFirst: true, PageSize: size, PageToken: token,
			States: []pb.TaskState{pb.TaskState_TASK_STATE_CLAIMED, pb.TaskState_TASK_STATE_BLOCKED},
		})
		return page.GetTasks(), page.GetNextPageToken(), err
	})
}

// heldTask returns the id in the arguments or, without one, that of the only task which the agent
// holds.
func heldTask(ctx context.Context, broker *client.Client, args []string) (string, error) {
	agent := broker.Identity().Agent
	if len(args) > 0 || agent == "" {
		return strings.Join(args, ""), nil // the broker refuses an empty id
	}
	tasks, err := heldTasks(ctx, broker)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, t := range tasks {
		ids = append(ids, t.GetId())
	}
	switch len(ids) {
	case 0:
		return "", failf(exitLost, "agent %q holds no task: it has claimed none, or it has lost the claim", agent)
	case 1:
		return ids[0], nil
	}
	return "", usagef("agent %q holds %d tasks; name one of %s", agent, len(ids), prompt.Names(ids, len(ids)))
}

func newTaskGetCommand(c *cli) *cobra.Command {
	request := &pb.GetTaskRequest{}
	var full bool
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a task",
		Example: `  brokerctl task get login-api
  brokerctl task get login-api --full -o json`,
		Args:              exactly("the task's id"),
		ValidArgsFunction: c.completeArgs(false, taskWords()),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			if full {
				request.View = pb.TaskView_TASK_VIEW_FULL
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tasks().GetTask(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) { c.printTask(w, answer) })
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "also failed attempts, dependents, subtasks, and what carries its id")
	return cmd
}

// printTask shows all that is known of a task.
func (c *cli) printTask(w io.Writer, answer *pb.GetTaskResponse) {
	l := c.newLabels(w)
	t := answer.GetTask()
	if t != nil {
		l.line("task", t.GetId())
		l.line("title", t.GetTitle())
		detail := c.voice().TaskDetail(t)
		l.state("state", prompt.Enum(t.GetState())+prompt.Either(detail != "", ", "+detail, ""))
		l.line("for", prompt.TaskFor(t))
		l.line("capabilities", strings.Join(t.GetCapabilities(), ", "))
		l.line("priority", strconv.Itoa(int(t.GetPriority())))
		l.line("labels", prompt.Labels(t.GetLabels()))
		l.line("part of", t.GetParent())
		l.line("attempts", prompt.Either(t.GetAttempts() > 0, fmt.Sprintf("%d of %d failed", t.GetAttempts(), t.GetMaxAttempts()), ""))
		l.line("progress", prompt.Either(t.GetProgress() > 0, prompt.Percent(t.GetProgress()), ""))
		l.line("note", prompt.Either(t.GetNote() != detail, t.GetNote(), ""))
		l.line("fence", prompt.Either(t.GetFence() > 0, strconv.FormatInt(t.GetFence(), 10), ""))
		l.line("artifacts", strings.Join(t.GetArtifacts(), ", "))
		l.line("created", c.when(t.GetCreatedAt())+" by "+t.GetCreator())
		l.line("claimed", c.when(t.GetClaimedAt()))
		l.line("updated", c.when(t.GetUpdatedAt()))
		l.line("update due", c.when(t.GetStaleAt()))
		l.line("finished", c.when(t.GetFinishedAt()))
		l.line("outcome", strings.Join(t.GetResultArtifacts(), ", "))
	}
	for _, a := range answer.GetHistory() {
		ended := fmt.Sprintf("%d by %s, ended %s: ", a.GetNumber(), a.GetAgent(), c.when(a.GetEndedAt()))
		l.line("attempt", ended+a.GetError())
	}
	if answer.GetDependencies() == nil {
		l.line("depends on", strings.Join(t.GetDependsOn(), ", "))
	}
	briefs := func(label string, tasks []*pb.TaskBrief) {
		for _, b := range tasks {
			l.line(label, prompt.TaskBrief(b))
		}
	}
	briefs("depends on", answer.GetDependencies())
	briefs("dependent", answer.GetDependents())
	briefs("subtask", answer.GetSubtasks())
	for _, r := range answer.GetReferences() {
		l.line(r.GetKind(), c.shortID(r.GetId(), r.GetRevision())+prompt.Either(r.GetTitle() != "", ": "+r.GetTitle(), ""))
	}
	l.flush()
	for _, text := range []string{t.GetDescription(), t.GetResult()} {
		if text != "" {
			apart(w)
			fmt.Fprintln(w, strings.TrimRight(prompt.Clean(text), "\n"))
		}
	}
}
