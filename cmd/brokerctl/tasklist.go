package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// taskListOptions are the options of task list.
type taskListOptions struct {
	states []string
	labels []string
	tree   bool
	limit  int
}

// AddFlags adds the options.
func (o *taskListOptions) AddFlags(f *pflag.FlagSet, r *pb.ListTasksRequest) {
	f.StringSliceVar(&o.states, "state", nil, strings.Join(taskStates, ", ")+"; repeatable")
	f.StringVar(&r.Holder, "holder", "", "only tasks that this agent holds or has completed")
	f.StringVar(&r.Assignee, "assignee", "", "only tasks for this agent")
	f.StringVar(&r.Role, "role", "", "only tasks for this role")
	f.StringVar(&r.Creator, "creator", "", "only tasks that this agent created")
	f.StringVar(&r.Parent, "parent", "", "only the direct subtasks of this task")
	f.StringArrayVar(&o.labels, "label", nil, "only tasks with this label; repeatable")
	f.BoolVar(&r.Claimable, "claimable", false, "only tasks that the agent could claim now, in that order")
	oldestVar(f, &r.OldestFirst)
	f.BoolVar(&o.tree, "tree", false, "subtasks below their parents, and tasks after their dependencies")
	limitVar(f, &o.limit, 0)
}

// taskStates are the names of the states.
var taskStates = jsonform.EnumNames(pb.TaskState(0).Descriptor())

func newTaskListCommand(c *cli) *cobra.Command {
	o := &taskListOptions{}
	request := &pb.ListTasksRequest{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, newest first",
		Long: `List tasks with their state, and the reason for it: what a waiting task waits for,
why a task is blocked or failed.`,
		Example: `  brokerctl task list --tree
  brokerctl task list --state blocked,failed
  brokerctl --agent builder-1 task list --claimable`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for _, name := range o.states {
				state, err := parseEnum("state", pb.TaskState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.TaskState(state))
			}
			if request.Labels, err = parseLabels(o.labels); err != nil {
				return err
			}
			request.OldestFirst = request.OldestFirst || o.tree
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			tasks, err := pages(o.limit, func(size int32, token string) ([]*pb.Task, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Tasks().ListTasks(cmd.Context(), request)
				return page.GetTasks(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if o.tree {
				tree := newTaskTree(tasks)
				return list(c, cmd, tree.order, c.taskView(tree.depth))
			}
			return list(c, cmd, tasks, c.taskView(nil))
		},
	}
	o.AddFlags(cmd.Flags(), request)
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(taskStates, cobra.ShellCompDirectiveNoFileComp)))
	cmd.MarkFlagsMutuallyExclusive("tree", "oldest")
	cmd.MarkFlagsMutuallyExclusive("tree", "claimable")
	return cmd
}

// taskView lists tasks. depth indents the ids of tasks; nil indents none.
func (c *cli) taskView(depth map[string]int) view[*pb.Task] {
	return view[*pb.Task]{
		columns: []table.Column{
			{Name: "TASK", Min: 12, Typical: 20}, {Name: "STATE", State: true}, {Name: "FOR", Min: 8, Typical: 12},
			{Name: "PRIORITY", Rank: 5}, {Name: "ATTEMPTS", Rank: 4}, {Name: "PROGRESS", Rank: 3},
			{Name: "AFTER", Rank: 2, Min: 8}, {Name: "TITLE", Min: 16, Typical: 30}, {Name: "DETAIL", Rank: 1, Min: 20},
		},
		row: func(t *pb.Task) []string {
			indent := strings.Repeat("  ", depth[t.GetId()])
			return []string{
				indent + t.GetId(), prompt.Enum(t.GetState()), prompt.TaskFor(t), strconv.Itoa(int(t.GetPriority())),
				prompt.Either(t.GetAttempts() > 0, fmt.Sprintf("%d of %d", t.GetAttempts(), t.GetMaxAttempts()), ""),
				prompt.Either(t.GetProgress() > 0 && t.GetState() != pb.TaskState_TASK_STATE_DONE, prompt.Percent(t.GetProgress()), ""),
				strings.Join(t.GetDependsOn(), ", "), t.GetTitle(), c.voice().TaskDetail(t),
			}
		},
		prompt: func(w io.Writer, t *pb.Task) {
			who, detail := prompt.TaskFor(t), c.voice().TaskDetail(t)
			fmt.Fprintf(w, "%s%s %s%s: %s%s\n", strings.Repeat("  ", depth[t.GetId()]), prompt.OneLine(t.GetId()), prompt.Enum(t.GetState()),
				prompt.Either(who != "", ", "+prompt.OneLine(who), ""), prompt.OneLine(t.GetTitle()), prompt.Either(detail != "", " ("+prompt.OneLine(detail)+")", ""))
		},
		none: "no tasks",
	}
}

// A taskTree orders tasks: each after its parent and, among the subtasks of one parent, after its
// dependencies.
type taskTree struct {
	order []*pb.Task
	depth map[string]int

	tasks    map[string]*pb.Task
	subtasks map[string][]*pb.Task // by parent; those without a listed parent at ""
}

func newTaskTree(tasks []*pb.Task) *taskTree {
	tree := &taskTree{depth: map[string]int{}, tasks: map[string]*pb.Task{}, subtasks: map[string][]*pb.Task{}}
	for _, t := range tasks {
		tree.tasks[t.GetId()] = t
	}
	for _, t := range tasks {
		parent := tree.parent(t)
		tree.subtasks[parent] = append(tree.subtasks[parent], t)
	}
	tree.add("", 0)
	return tree
}

// parent returns the parent of a task, if that is listed too.
func (tree *taskTree) parent(t *pb.Task) string {
	if tree.tasks[t.GetParent()] == nil {
		return ""
	}
	return t.GetParent()
}

// add appends the subtasks of a task, each with its own.
func (tree *taskTree) add(parent string, depth int) {
	level := map[string]int{} // the longest chain of dependencies before a subtask
	var levelOf func(t *pb.Task) int
	levelOf = func(t *pb.Task) int {
		if n, known := level[t.GetId()]; known {
			return n
		}
		n := 0
		for _, id := range t.GetDependsOn() {
			if d := tree.tasks[id]; d != nil && tree.parent(d) == parent {
				n = max(n, levelOf(d)+1)
			}
		}
		level[t.GetId()] = n
		return n
	}
	subtasks := tree.subtasks[parent]
	slices.SortStableFunc(subtasks, func(a, b *pb.Task) int { return cmp.Compare(levelOf(a), levelOf(b)) })
	for _, t := range subtasks {
		tree.order = append(tree.order, t)
		tree.depth[t.GetId()] = depth
		tree.add(t.GetId(), depth+1)
	}
}

// taskWaitOptions are the options of task wait.
type taskWaitOptions struct {
	agents []string
	any    bool
	wait   time.Duration
}

// AddFlags adds the options.
func (o *taskWaitOptions) AddFlags(f *pflag.FlagSet, r *pb.WaitTasksRequest) {
	f.StringSliceVar(&o.agents, "completed", nil, "also wait for this agent to report the status completed; repeatable")
	f.BoolVar(&o.any, "any", false, "wait for one of them (default: for all)")
	durationVar(f, &o.wait, "wait", 90*time.Second, "wait up to this long, 1h at most")
	f.Int64Var(&r.AfterRevision, "after", 0, "ignore failures, blocks and cancellations up to this revision")
}

func newTaskWaitCommand(c *cli) *cobra.Command {
	o := &taskWaitOptions{}
	request := &pb.WaitTasksRequest{}
	cmd := &cobra.Command{
		Use:   "wait [ID...]",
		Short: "Wait until tasks are done",
		Long: `Wait until tasks are done, and print their states. The wait ends early when one of
them is blocked or unblocked, fails or is cancelled: exit code 5, with the command
that continues to wait. Exit code 4: they were not done within --wait. The broker
refuses to wait for a task that depends on one which the agent holds.`,
		Example: `  brokerctl --agent lead task wait login-api login-page --wait 10m
  brokerctl --agent lead task wait api --completed builder-1 --any`,
		ValidArgsFunction: c.completeArgs(true, taskWords(unfinished...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args)+len(o.agents) == 0 {
				return usagef("the task's id is missing")
			}
			request.TaskIds, request.Agents, request.Wait = args, o.agents, duration(o.wait)
			request.Mode = pb.WaitMode_WAIT_MODE_ALL
			if o.any {
				request.Mode = pb.WaitMode_WAIT_MODE_ANY
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			done := c.progress(o.wait, "the tasks")
			answer, err := broker.Tasks().WaitTasks(cmd.Context(), request)
			done()
			if err != nil {
				return err
			}
			err = c.show(cmd, answer, func(w io.Writer) {
				for _, b := range answer.GetTasks() {
					fmt.Fprintln(w, prompt.OneLine(prompt.TaskBrief(b)))
				}
				for _, agent := range answer.GetCompletedAgents() {
					prompt.Say(w, "%s has reported completed", prompt.OneLine(agent))
				}
			})
			switch {
			case err != nil:
				return err
			case answer.GetOutcome() == pb.WaitOutcome_WAIT_OUTCOME_ATTENTION:
				again := c.command("task wait %s --after %d", strings.Join(args, " "), answer.GetRevision())
				return failf(exitConflict, "%s; %s continues to wait", prompt.Attention(answer), again)
			case answer.GetOutcome() != pb.WaitOutcome_WAIT_OUTCOME_DONE:
				return failf(exitNothing, "not done within %s", prompt.Duration(o.wait))
			}
			return nil
		},
	}
	o.AddFlags(cmd.Flags(), request)
	return cmd
}

// unfinished are the states of tasks that may still be done without RetryTask.
var unfinished = []pb.TaskState{
	pb.TaskState_TASK_STATE_WAITING, pb.TaskState_TASK_STATE_READY, pb.TaskState_TASK_STATE_CLAIMED,
	pb.TaskState_TASK_STATE_BLOCKED,
}
