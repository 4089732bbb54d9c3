package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "brokerd/gen/brokerd/v1"
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
	durationVar(f, &o.wait, "wait", 0, "if there is none, wait up to this long, 1h at most")
	f.BoolVar(&o.further, "further", false, "claim a further task, also if the agent holds one")
}

func newTaskClaimCommand(c *cli) *cobra.Command {
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
		Args:              between(0, "the task's id"),
		ValidArgsFunction: c.completeArgs(false, taskWords(pb.TaskState_TASK_STATE_READY)),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	return cmd
}

func (o *taskClaimOptions) run(c *cli, cmd *cobra.Command, args []string) error {
	labels, err := parseLabels(o.labels)
	if err != nil {
		return err
	}
	request := &pb.ClaimTaskRequest{
		RequestId: o.requestID, TaskId: strings.Join(args, ""), Labels: labels, Wait: duration(o.wait),
		Resume: len(args) == 0 && !o.further,
	}
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	done := c.progress(o.wait, "a task")
	answer, err := broker.Tasks().ClaimTask(cmd.Context(), request)
	done()
	if err != nil {
		return err
	}
	if answer.GetTask() == nil {
		return failf(exitNothing, "%s", c.whyNoTask(answer, o.wait))
	}
	if answer.GetResumed() {
		inbox, err := broker.Messages().GetInboxSummary(cmd.Context(), &pb.GetInboxSummaryRequest{})
		if err != nil {
			return err
		}
		if inbox.GetHalted() {
			return failf(exitNothing, "the agent is halted until a resume; it still holds task %s", answer.GetTask().GetId())
		}
	}
	return c.show(cmd, answer, func(w io.Writer) { c.printClaimedTask(w, answer) })
}

// whyNoTask says why there was no task to claim.
func (c *cli) whyNoTask(answer *pb.ClaimTaskResponse, wait time.Duration) string {
	s := "no task to claim" + cond(wait > 0, " within "+short(wait), "")
	switch answer.GetEmptyReason() {
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_NO_MATCH:
		s += ": the ready tasks are for other roles, agents or capabilities"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_DELAYED:
		s += ": the ready tasks wait for their next attempt"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_HALTED:
		s += ": the agent is halted until a resume"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_DRAINING:
		s += ": an operator drains the broker, which delivers no new work"
	}
	if due := answer.GetNextDue(); due != nil {
		s += "; the next is due " + c.when(due)
	}
	return s
}

// printClaimedTask writes a claimed task with the commands that settle it.
func (c *cli) printClaimedTask(w io.Writer, answer *pb.ClaimTaskResponse) {
	t := answer.GetTask()
	if !isPrompt(w) {
		c.printTask(w, &pb.GetTaskResponse{Task: t, History: answer.GetHistory()})
		fmt.Fprintf(w, "\nnext: %s\n", c.afterTaskClaim(t))
		return
	}
	head := []string{
		fmt.Sprintf("attempt %d of %d", answer.GetAttempt(), t.GetMaxAttempts()),
		"priority " + strconv.Itoa(int(t.GetPriority())),
		"created by " + brief(t.GetCreator()),
	}
	if answer.GetResumed() {
		head = append(head, "held before")
	}
	var text strings.Builder
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s: %s\n", label, oneLine(value))
		}
	}
	line("Title", t.GetTitle())
	line("Labels", labels(t.GetLabels()))
	line("Part of", t.GetParent())
	line("After", strings.Join(t.GetDependsOn(), ", "))
	line("Artifacts", strings.Join(t.GetArtifacts(), ", "))
	line("Progress", cond(t.GetProgress() > 0, percent(t.GetProgress()), ""))
	line("Note", t.GetNote())
	for _, a := range answer.GetHistory() {
		line("Failed", fmt.Sprintf("attempt %d by %s: %s", a.GetNumber(), brief(a.GetAgent()), clip(a.GetError(), 200)))
	}
	if t.GetDescription() != "" {
		fmt.Fprintln(&text, strings.TrimRight(clean(t.GetDescription()), "\n"))
	}
	framed(w, fmt.Sprintf("task %s: %s", t.GetId(), strings.Join(head, ", ")), text.String())
	say(w, "Next: %s", c.afterTaskClaim(t))
}

// afterTaskClaim lists the commands for a claimed task.
func (c *cli) afterTaskClaim(t *pb.Task) string {
	id := shellWord(t.GetId())
	s := fmt.Sprintf("%s when done; %s if it failed; %s while you cannot continue; %s to return it",
		c.command("task complete %s --result TEXT", id), c.also("task fail %s --error WHY", id),
		c.also("task block %s --reason WHY", id), c.also("task release %s", id))
	if stale := t.GetStaleAfter(); stale != nil {
		s += fmt.Sprintf("; %s at least every %s", c.also("task update %s --note TEXT", id), short(stale.AsDuration()))
	}
	return s
}
