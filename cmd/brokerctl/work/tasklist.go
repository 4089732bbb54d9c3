package work

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

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
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
	f.StringSliceVar(&o.states, "state", nil, strings.Join(TaskStates, ", ")+"; repeatable")
	f.StringVar(&r.Holder, "holder", "", "only tasks that this agent holds or has completed")
	f.StringVar(&r.Assignee, "assignee", "", "only tasks for this agent")
	f.StringVar(&r.Role, "role", "", "only tasks for this role")
	f.StringVar(&r.Creator, "creator", "", "only tasks that this agent created")
	f.StringVar(&r.Parent, "parent", "", "only the direct subtasks of this task")
	f.StringArrayVar(&o.labels, "label", nil, "only tasks with this label; repeatable")
	f.BoolVar(&r.Claimable, "claimable", false, "only tasks that the agent could claim now, in that order")
	command.OldestVar(f, &r.OldestFirst)
	f.BoolVar(&o.tree, "tree", false, "subtasks below their parents, and tasks after their dependencies")
	command.LimitVar(f, &o.limit, 0)
}

// TaskStates are the names of the states.
var TaskStates = jsonform.EnumNames(pb.TaskState(0).Descriptor())

func newTaskListCommand(c *command.Caller) *cobra.Command {
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
				state, err := output.ParseEnum("state", pb.TaskState(0).Descriptor(), name)
				if err != nil {
					return err
				}
				request.States = append(request.States, pb.TaskState(state))
			}
			if request.Labels, err = command.ParseLabels(o.labels); err != nil {
				return err
			}
			request.OldestFirst = request.OldestFirst || o.tree
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			tasks, err := command.Pages(o.limit, func(size int32, token string) ([]*pb.Task, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Tasks().ListTasks(cmd.Context(), request)
				return page.GetTasks(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if o.tree {
				tree := NewTaskTree(tasks)
				return output.List(&c.Output, cmd, tree.Order, TaskView(c, tree.Depth))
			}
			return output.List(&c.Output, cmd, tasks, TaskView(c, nil))
		},
	}
	o.AddFlags(cmd.Flags(), request)
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(TaskStates, cobra.ShellCompDirectiveNoFileComp)))
	cmd.MarkFlagsMutuallyExclusive("tree", "oldest")
	cmd.MarkFlagsMutuallyExclusive("tree", "claimable")
	return cmd
}

// TaskView lists tasks. depth indents the ids of tasks; nil indents none.
func TaskView(c *command.Caller, depth map[string]int) output.View[*pb.Task] {
	return output.View[*pb.Task]{
		Columns: []table.Column{
			{Name: "TASK", Min: 12, Typical: 20}, {Name: "STATE", State: true}, {Name: "FOR", Min: 8, Typical: 12},
			{Name: "PRIORITY", Rank: 5}, {Name: "ATTEMPTS", Rank: 4}, {Name: "PROGRESS", Rank: 3},
			{Name: "AFTER", Rank: 2, Min: 8}, {Name: "TITLE", Min: 16, Typical: 30}, {Name: "DETAIL", Rank: 1, Min: 20},
		},
		Row: func(t *pb.Task) []string {
			indent := strings.Repeat("  ", depth[t.GetId()])
			return []string{
				indent + t.GetId(), prompt.Enum(t.GetState()), prompt.TaskFor(t), strconv.Itoa(int(t.GetPriority())),
				prompt.Either(t.GetAttempts() > 0, fmt.Sprintf("%d of %d", t.GetAttempts(), t.GetMaxAttempts()), ""),
				prompt.Either(t.GetProgress() > 0 && t.GetState() != pb.TaskState_TASK_STATE_DONE, prompt.Percent(t.GetProgress()), ""),
				strings.Join(t.GetDependsOn(), ", "), t.GetTitle(), c.Voice().TaskDetail(t),
			}
		},
		Prompt: func(w io.Writer, t *pb.Task) {
			who, detail := prompt.TaskFor(t), c.Voice().TaskDetail(t)
			fmt.Fprintf(w, "%s%s %s%s: %s%s\n", strings.Repeat("  ", depth[t.GetId()]), prompt.OneLine(t.GetId()), prompt.Enum(t.GetState()),
				prompt.Either(who != "", ", "+prompt.OneLine(who), ""), prompt.OneLine(t.GetTitle()), prompt.Either(detail != "", " ("+prompt.OneLine(detail)+")", ""))
		},
		None: "no tasks",
	}
}

// A taskTree orders tasks: each after its parent and, among the subtasks of one parent, after its
// dependencies.
type taskTree struct {
	Order []*pb.Task
	Depth map[string]int

	tasks    map[string]*pb.Task
	subtasks map[string][]*pb.Task // by parent; those without a listed parent at ""
}

// NewTaskTree puts subtasks below their parents, and tasks after those that they depend on.
func NewTaskTree(tasks []*pb.Task) *taskTree {
	tree := &taskTree{Depth: map[string]int{}, tasks: map[string]*pb.Task{}, subtasks: map[string][]*pb.Task{}}
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
		tree.Order = append(tree.Order, t)
		tree.Depth[t.GetId()] = depth
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
	command.DurationVar(f, &o.wait, "wait", 90*time.Second, "wait up to this long, 1h at most")
	f.Int64Var(&r.AfterRevision, "after", 0, "ignore failures, blocks and cancellations up to this revision")
}

func newTaskWaitCommand(c *command.Caller) *cobra.Command {
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
		ValidArgsFunction: c.CompleteArgs(true, words.TaskWords(words.Unfinished...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args)+len(o.agents) == 0 {
				return problem.Usagef("the task's id is missing")
			}
			request.TaskIds, request.Agents, request.Wait = args, o.agents, command.Duration(o.wait)
			request.Mode = pb.WaitMode_WAIT_MODE_ALL
			if o.any {
				request.Mode = pb.WaitMode_WAIT_MODE_ANY
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			done := c.Progress(o.wait, "the tasks")
			answer, err := broker.Tasks().WaitTasks(cmd.Context(), request)
			done()
			if err != nil {
				return err
			}
			err = c.Show(cmd, answer, func(w io.Writer) {
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
				again := c.Command("task wait %s --after %d", strings.Join(args, " "), answer.GetRevision())
				return problem.Failf(problem.ExitConflict, "%s; %s continues to wait", prompt.Attention(answer), again)
			case answer.GetOutcome() != pb.WaitOutcome_WAIT_OUTCOME_DONE:
				return problem.Failf(problem.ExitNothing, "not done within %s", prompt.Duration(o.wait))
			}
			return nil
		},
	}
	o.AddFlags(cmd.Flags(), request)
	return cmd
}
