package work

import (
	"io"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const heldLong = `ID is a task that the agent holds; without it, the only one. Exit code 6: the agent
does not hold the task; stop the work on it.`

// held is the argument of the commands about a task that the agent holds.
var held = []command.Arg{
	{Field: "id", Name: "the task's id", Kind: command.Kind{Words: heldTaskWords}, Missing: heldTask},
}

var taskUpdate = command.Spec[*pb.UpdateTaskRequest, *pb.UpdateTaskResponse]{
	Page: command.Page{
		Use:   "update [ID]",
		Short: "Report progress on a task, or change its description",
		Long: `Report progress on a task, which keeps its claim fresh. Its creator, operators and
agents that may send directives can change its title, description, priority and
labels, also while another agent holds it.

` + heldLong,
		Example: `  brokerctl --agent builder-1 task update --progress 0.4 --note "tests next"
  brokerctl --agent lead task update login-api --priority high`,
	},
	Args: held,
	Options: []command.Option{
		{Field: "progress", Usage: "how much is done, 0 to 1"},
		{Field: "note", Usage: "what was done, and what comes next"},
		{Field: "title", Usage: "the new title"},
		{Field: "description", Kind: command.Content, Usage: "the new description; @FILE reads a file, - standard input"},
		{Field: "priority", Kind: command.Priority, Usage: "1 to 10, or low (3), normal (5), high (7), critical (10)"},
		{Field: "set_labels", Name: "label", Usage: "a label to add or replace; repeatable"},
		{Field: "remove_labels", Name: "remove-label", Kind: command.Kind{Name: "KEY"},
			Usage: "the key of a label to remove; repeatable"},
		command.RequestID,
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.UpdateTaskRequest, a *pb.UpdateTaskResponse) {
		due := prompt.Either(a.GetStaleAt() != nil, "; the next update is due "+g.When(a.GetStaleAt()), "")
		prompt.Say(w, "updated %s%s", prompt.OneLine(a.GetTask().GetId()), due)
	},
}

var taskBlock = command.Spec[*pb.UpdateTaskRequest, *pb.UpdateTaskResponse]{
	Page: command.Page{
		Use:     "block [ID]",
		Short:   "Report that the agent cannot continue with a task",
		Long:    "Report that the agent cannot continue with a task. The agent keeps it.\n\n" + heldLong,
		Example: `  brokerctl --agent builder-1 task block --reason "no access to the database"`,
	},
	Args: held,
	Options: []command.Option{
		{Field: "block", Name: "reason", Usage: "why the agent cannot continue; required"}, command.RequestID,
	},
	Prepare: func(_ *command.Given, q *pb.UpdateTaskRequest) error {
		if q.GetBlock() == "" {
			return command.MissingFlag("reason", "why the agent cannot continue")
		}
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.UpdateTaskRequest, a *pb.UpdateTaskResponse) {
		prompt.Say(w, "blocked %s", prompt.OneLine(a.GetTask().GetId()))
	},
}

var taskUnblock = command.Spec[*pb.UpdateTaskRequest, *pb.UpdateTaskResponse]{
	Page: command.Page{
		Use:     "unblock [ID]",
		Short:   "Continue with a blocked task",
		Long:    heldLong,
		Example: `  brokerctl --agent builder-1 task unblock`,
	},
	Args:    held,
	Options: []command.Option{command.RequestID},
	Prepare: func(_ *command.Given, q *pb.UpdateTaskRequest) error {
		q.BlockChange = &pb.UpdateTaskRequest_Unblock{Unblock: true}
		return nil
	},
	Sets: map[string]string{"unblock": "true"},
	Text: func(_ *command.Given, w io.Writer, _ *pb.UpdateTaskRequest, a *pb.UpdateTaskResponse) {
		prompt.Say(w, "unblocked %s", prompt.OneLine(a.GetTask().GetId()))
	},
}

var taskComplete = command.Spec[*pb.CompleteTaskRequest, *pb.CompleteTaskResponse]{
	Page: command.Page{
		Use:   "complete [ID]",
		Short: "Finish a task",
		Long:  "Finish a task. Tasks for which it was the last dependency become ready.\n\n" + heldLong,
		Example: `  brokerctl --agent builder-1 task complete --result "merged as 4f2a"
  brokerctl --agent builder-1 task complete login-api --result @report.json`,
	},
	Args: held,
	Options: []command.Option{
		{Field: "result", Kind: command.Content, Usage: "the outcome; @FILE reads a file, - standard input"},
		{Field: "artifacts", Name: "artifact", Kind: command.Name,
			Usage: "an artifact that holds the outcome; repeatable"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.CompleteTaskRequest, a *pb.CompleteTaskResponse) {
		id, ready := prompt.OneLine(a.GetTask().GetId()), idsOf(a.GetReady())
		if a.GetUnchanged() {
			prompt.Say(w, "%s was already completed; the result is unchanged", id)
			return
		}
		next := prompt.Either(len(ready) > 0, "; now ready: "+prompt.OneLine(prompt.Names(ready, len(ready))), "")
		prompt.Say(w, "completed %s%s", id, next)
	},
}

// idsOf returns the ids of tasks.
func idsOf(tasks []*pb.TaskBrief) []string {
	ids := each.Of(tasks, (*pb.TaskBrief).GetId)
	return ids
}

var taskFail = command.Spec[*pb.FailTaskRequest, *pb.FailTaskResponse]{
	Page: command.Page{
		Use:   "fail [ID]",
		Short: "Report that work on a task failed",
		Long: `Report that work on a task failed. This counts as an attempt; after a delay, an
agent may claim the task again. After the last attempt, and with --fatal at once,
the task is failed, until task retry.

` + heldLong,
		Example: `  brokerctl --agent builder-1 task fail --error "tests fail: TestLogin"`,
	},
	Args: held,
	Options: []command.Option{
		{Field: "error", Kind: command.Content, Usage: "what failed; @FILE reads a file, - standard input"},
		{Field: "fatal", Usage: "another attempt is useless"},
		command.RequestID,
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.FailTaskRequest, a *pb.FailTaskResponse) {
		t := a.GetTask()
		due := prompt.Either(a.GetDueAt() != nil, " again "+g.When(a.GetDueAt()), "")
		prompt.Say(w, "failed %s, attempt %d: %s%s", prompt.OneLine(t.GetId()), a.GetAttempts(),
			prompt.Enum(t.GetState()), due)
	},
}

var taskRelease = command.Spec[*pb.ReleaseTaskRequest, *pb.ReleaseTaskResponse]{
	Page: command.Page{
		Use:   "release [ID]",
		Short: "Return a task, or decline an assignment",
		Long: `Return a task with its progress; no attempt counts. With --decline, refuse a task
that is assigned to the agent, claimed or not: the creator gets the reason.

` + heldLong,
		Example: `  brokerctl --agent builder-1 task release
  brokerctl --agent builder-1 task release api --decline --reason "no access"`,
	},
	Args: held,
	Options: []command.Option{
		{Field: "decline", Usage: "refuse the assignment; requires --reason"},
		{Field: "reason", Usage: "why"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.ReleaseTaskRequest, a *pb.ReleaseTaskResponse) {
		prompt.Say(w, "%s %s", prompt.Either(q.GetDecline(), "declined", "released"), prompt.OneLine(a.GetTask().GetId()))
	},
}

var taskCancel = command.Spec[*pb.CancelTaskRequest, *pb.CancelTaskResponse]{
	Page: command.Page{
		Use:   "cancel ID",
		Short: "Cancel an unfinished task",
		Long: `Cancel an unfinished task. Its creator, operators and agents that may send
directives can do so. Tasks that depend on it stay waiting, unless --cascade
cancels them too.`,
		Example: `  brokerctl --agent lead task cancel login-api --cascade --reason "new design"`,
	},
	Args: []command.Arg{{Field: "id", Name: "the task's id", Kind: unfinishedTask}},
	Options: []command.Option{
		{Field: "cascade", Usage: "also cancel its unfinished dependents and subtasks"},
		{Field: "reason", Usage: "why"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.CancelTaskRequest, a *pb.CancelTaskResponse) {
		if a.GetCancelled() == 0 && !a.GetMoreFollow() {
			prompt.Say(w, "%s is cancelled already", prompt.OneLine(q.GetId()))
			return
		}
		prompt.Say(w, "cancelled %s", prompt.OneLine(prompt.Names(idsOf(a.GetTasks()), int(a.GetCancelled()))))
		if a.GetMoreFollow() {
			prompt.Say(w, "the broker cancels the rest of its dependents and subtasks now")
		}
	},
}

var taskRetry = command.Spec[*pb.RetryTaskRequest, *pb.RetryTaskResponse]{
	Page: command.Page{
		Use:   "retry ID",
		Short: "Make a failed task ready again",
		Long: `Make a failed task ready again, with all its attempts. Its creator, operators and
agents that may send directives can do so.`,
		Example: `  brokerctl --agent lead task retry login-api`,
	},
	Args: []command.Arg{
		{Field: "id", Name: "the task's id", Kind: command.Kind{Words: words.TaskWords(pb.TaskState_TASK_STATE_FAILED)}},
	},
	Options: []command.Option{command.RequestID},
	Text: func(_ *command.Given, w io.Writer, _ *pb.RetryTaskRequest, a *pb.RetryTaskResponse) {
		prompt.Say(w, "%s is %s", prompt.OneLine(a.GetTask().GetId()), prompt.Enum(a.GetTask().GetState()))
	},
}
