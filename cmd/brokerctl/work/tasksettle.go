package work

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const heldLong = `ID is a task that the agent holds; without it, the only one. Exit code 6: the agent
does not hold the task; stop the work on it.`

// A heldChange changes a task. It returns the answer of the broker and a text about it.
type heldChange func(
	ctx context.Context, broker *client.Client, id string,
) (answer proto.Message, text string, err error)

// onHeldTask makes cmd a command about a task that the agent holds.
func onHeldTask(c *command.Caller, cmd *cobra.Command, change heldChange) *cobra.Command {
	cmd.Use += " [ID]"
	cmd.Long = strings.TrimSpace(cmd.Long + "\n\n" + heldLong)
	cmd.Args = command.Between(0, "the task's id")
	cmd.ValidArgsFunction = c.CompleteArgs(false, heldTaskWords)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		id, err := heldTask(cmd.Context(), broker, args)
		if err != nil {
			return err
		}
		answer, text, err := change(cmd.Context(), broker, id)
		if err != nil {
			return err
		}
		return c.Show(cmd, answer, func(w io.Writer) { prompt.Say(w, "%s", prompt.OneLine(text)) })
	}
	return cmd
}

func newTaskUpdateCommand(c *command.Caller) *cobra.Command {
	request := &pb.UpdateTaskRequest{}
	var progress float64
	var note, title, description, priority string
	var set []string
	cmd := &cobra.Command{
		Use:   "update",
		Short: "Report progress on a task, or change its description",
		Long: `Report progress on a task, which keeps its claim fresh. Its creator, operators and
agents that may send directives can change its title, description, priority and
labels, also while another agent holds it.`,
		Example: `  brokerctl --agent builder-1 task update --progress 0.4 --note "tests next"
  brokerctl --agent lead task update login-api --priority high`,
	}
	f := cmd.Flags()
	f.Float64Var(&progress, "progress", 0, "how much is done, 0 to 1")
	f.StringVar(&note, "note", "", "what was done, and what comes next")
	f.StringVar(&title, "title", "", "the new title")
	f.StringVar(&description, "description", "", "the new description; @FILE reads a file, - standard input")
	f.StringVar(&priority, "priority", "", "1 to 10, or low (3), normal (5), high (7), critical (10)")
	f.StringArrayVar(&set, "label", nil, "a label to add or replace; repeatable")
	f.StringArrayVar(&request.RemoveLabels, "remove-label", nil, "the key of a label to remove; repeatable")
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		number, err := command.ParsePriority("priority", priority)
		if err != nil {
			return nil, "", err
		}
		whole, err := c.Text(cmd, "description", description)
		if err != nil {
			return nil, "", err
		}
		request.Id, request.Progress, request.Note = id, command.IfSet(cmd, "progress", progress), command.IfSet(cmd, "note", note)
		request.Title, request.Description = command.IfSet(cmd, "title", title), command.IfSet(cmd, "description", whole)
		request.Priority = command.IfSet(cmd, "priority", number)
		if request.SetLabels, err = command.ParseLabels(set); err != nil {
			return nil, "", err
		}
		answer, err := broker.Tasks().UpdateTask(ctx, request)
		due := ""
		if answer.GetStaleAt() != nil {
			due = "; the next update is due " + c.When(answer.GetStaleAt())
		}
		return answer, "updated " + answer.GetTask().GetId() + due, err
	})
}

func newTaskBlockCommand(c *command.Caller) *cobra.Command {
	request := &pb.UpdateTaskRequest{}
	var reason string
	cmd := &cobra.Command{
		Use:     "block",
		Short:   "Report that the agent cannot continue with a task",
		Long:    "Report that the agent cannot continue with a task. The agent keeps it.",
		Example: `  brokerctl --agent builder-1 task block --reason "no access to the database"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the agent cannot continue; required")
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		if reason == "" {
			return nil, "", problem.Usagef("--reason is missing: why the agent cannot continue")
		}
		request.Id, request.BlockChange = id, &pb.UpdateTaskRequest_Block{Block: reason}
		answer, err := broker.Tasks().UpdateTask(ctx, request)
		return answer, "blocked " + answer.GetTask().GetId(), err
	})
}

func newTaskUnblockCommand(c *command.Caller) *cobra.Command {
	request := &pb.UpdateTaskRequest{BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}}
	cmd := &cobra.Command{
		Use:     "unblock",
		Short:   "Continue with a blocked task",
		Example: `  brokerctl --agent builder-1 task unblock`,
	}
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		request.Id = id
		answer, err := broker.Tasks().UpdateTask(ctx, request)
		return answer, "unblocked " + answer.GetTask().GetId(), err
	})
}

func newTaskCompleteCommand(c *command.Caller) *cobra.Command {
	request := &pb.CompleteTaskRequest{}
	var result string
	cmd := &cobra.Command{
		Use:   "complete",
		Short: "Finish a task",
		Long:  "Finish a task. Tasks for which it was the last dependency become ready.",
		Example: `  brokerctl --agent builder-1 task complete --result "merged as 4f2a"
  brokerctl --agent builder-1 task complete login-api --result @report.json`,
	}
	cmd.Flags().StringVar(&result, "result", "", "the outcome; @FILE reads a file, - standard input")
	cmd.Flags().StringArrayVar(&request.Artifacts, "artifact", nil, "an artifact that holds the outcome; repeatable")
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		var err error
		request.Id = id
		if request.Result, err = c.Text(cmd, "result", result); err != nil {
			return nil, "", err
		}
		answer, err := broker.Tasks().CompleteTask(ctx, request)
		if answer.GetUnchanged() {
			return answer, answer.GetTask().GetId() + " was already completed; the result is unchanged", nil
		}
		var ready []string
		for _, b := range answer.GetReady() {
			ready = append(ready, b.GetId())
		}
		next := prompt.Either(len(ready) > 0, "; now ready: "+prompt.Names(ready, len(ready)), "")
		return answer, "completed " + answer.GetTask().GetId() + next, err
	})
}

func newTaskFailCommand(c *command.Caller) *cobra.Command {
	request := &pb.FailTaskRequest{}
	var fault string
	cmd := &cobra.Command{
		Use:   "fail",
		Short: "Report that work on a task failed",
		Long: `Report that work on a task failed. This counts as an attempt; after a delay, an
agent may claim the task again. After the last attempt, and with --fatal at once,
the task is failed, until task retry.`,
		Example: `  brokerctl --agent builder-1 task fail --error "tests fail: TestLogin"`,
	}
	cmd.Flags().StringVar(&fault, "error", "", "what failed; @FILE reads a file, - standard input")
	cmd.Flags().BoolVar(&request.Fatal, "fatal", false, "another attempt is useless")
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		var err error
		request.Id = id
		if request.Error, err = c.Text(cmd, "error", fault); err != nil {
			return nil, "", err
		}
		answer, err := broker.Tasks().FailTask(ctx, request)
		b := answer.GetTask()
		s := fmt.Sprintf("failed %s, attempt %d: %s", b.GetId(), answer.GetAttempts(), prompt.Enum(b.GetState()))
		return answer, s + prompt.Either(answer.GetDueAt() != nil, " again "+c.When(answer.GetDueAt()), ""), err
	})
}

func newTaskReleaseCommand(c *command.Caller) *cobra.Command {
	request := &pb.ReleaseTaskRequest{}
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Return a task, or decline an assignment",
		Long: `Return a task with its progress; no attempt counts. With --decline, refuse a task
that is assigned to the agent, claimed or not: the creator gets the reason.`,
		Example: `  brokerctl --agent builder-1 task release
  brokerctl --agent builder-1 task release api --decline --reason "no access"`,
	}
	cmd.Flags().BoolVar(&request.Decline, "decline", false, "refuse the assignment; requires --reason")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why")
	command.AddRequestID(cmd, &request.RequestId)
	return onHeldTask(c, cmd, func(ctx context.Context, broker *client.Client, id string) (proto.Message, string, error) {
		request.Id = id
		answer, err := broker.Tasks().ReleaseTask(ctx, request)
		return answer, prompt.Either(request.GetDecline(), "declined ", "released ") + answer.GetTask().GetId(), err
	})
}

func newTaskCancelCommand(c *command.Caller) *cobra.Command {
	request := &pb.CancelTaskRequest{}
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel an unfinished task",
		Long: `Cancel an unfinished task. Its creator, operators and agents that may send
directives can do so. Tasks that depend on it stay waiting, unless --cascade
cancels them too.`,
		Example:           `  brokerctl --agent lead task cancel login-api --cascade --reason "new design"`,
		Args:              command.Exactly("the task's id"),
		ValidArgsFunction: c.CompleteArgs(false, words.TaskWords(words.Unfinished...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tasks().CancelTask(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				var ids []string
				for _, b := range answer.GetTasks() {
					ids = append(ids, b.GetId())
				}
				if answer.GetCancelled() == 0 && !answer.GetMoreFollow() {
					prompt.Say(w, "%s is cancelled already", prompt.OneLine(args[0]))
					return
				}
				prompt.Say(w, "cancelled %s", prompt.OneLine(prompt.Names(ids, int(answer.GetCancelled()))))
				if answer.GetMoreFollow() {
					prompt.Say(w, "the broker cancels the rest of its dependents and subtasks now")
				}
			})
		},
	}
	cmd.Flags().BoolVar(&request.Cascade, "cascade", false, "also cancel its unfinished dependents and subtasks")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newTaskRetryCommand(c *command.Caller) *cobra.Command {
	request := &pb.RetryTaskRequest{}
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Make a failed task ready again",
		Long: `Make a failed task ready again, with all its attempts. Its creator, operators and
agents that may send directives can do so.`,
		Example:           `  brokerctl --agent lead task retry login-api`,
		Args:              command.Exactly("the task's id"),
		ValidArgsFunction: c.CompleteArgs(false, words.TaskWords(pb.TaskState_TASK_STATE_FAILED)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Id = args[0]
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tasks().RetryTask(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s is %s", prompt.OneLine(answer.GetTask().GetId()), prompt.Enum(answer.GetTask().GetState()))
			})
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
