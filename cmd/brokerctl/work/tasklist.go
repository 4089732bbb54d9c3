package work

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// TaskStates are the names of the states.
var TaskStates = jsonform.EnumNames(pb.TaskState(0).Descriptor())

var taskList = command.Listing[*pb.ListTasksRequest, *pb.ListTasksResponse, *pb.Task]{
	Page: command.Page{
		Use:   "list",
		Short: "List tasks, newest first",
		Long: `List tasks with their state, and the reason for it: what a waiting task waits for,
why a task is blocked or failed.`,
		Example: `  brokerctl task list --tree
  brokerctl task list --state blocked,failed
  brokerctl --agent builder-1 task list --claimable`,
	},
	Items: (*pb.ListTasksResponse).GetTasks,
	Options: []command.Option{
		{Field: "states", Name: "state", Usage: "{}; repeatable"},
		{Field: "holder", Kind: command.Name, Usage: "only tasks that this agent holds or has completed"},
		{Field: "assignee", Kind: words.Agent, Usage: "only tasks for this agent"},
		{Field: "role", Kind: words.Role, Usage: "only tasks for this role"},
		{Field: "creator", Kind: words.Agent, Usage: "only tasks that this agent created"},
		{Field: "parent", Kind: unfinishedTask, Usage: "only the direct subtasks of this task"},
		{Field: "labels", Name: "label", Usage: "only tasks with this label; repeatable"},
		{Field: "claimable", Usage: "only tasks that the agent could claim now, in that order"},
		command.Oldest,
		{Name: "tree", Type: "bool", Usage: "subtasks below their parents, and tasks after their dependencies"},
	},
	Apart: [][]string{{"tree", "oldest"}, {"tree", "claimable"}},
	Prepare: func(g *command.Given, q *pb.ListTasksRequest) error {
		q.OldestFirst = q.GetOldestFirst() || g.On("tree")
		return nil
	},
	Show: func(g *command.Given, tasks []*pb.Task) error {
		if !g.On("tree") {
			return output.List(&g.Output, g.Cmd, tasks, TaskView(g.Caller, nil))
		}
		tree := NewTaskTree(tasks)
		return output.List(&g.Output, g.Cmd, tree.Order, TaskView(g.Caller, tree.Depth))
	},
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

var taskWait = command.Spec[*pb.WaitTasksRequest, *pb.WaitTasksResponse]{
	Page: command.Page{
		Use:   "wait [ID...]",
		Short: "Wait until tasks are done",
		Long: `Wait until tasks are done, and print their states. The wait ends early when one of
them is blocked or unblocked, fails or is cancelled: exit code 5, with the command
that continues to wait. Exit code 4: they were not done within --wait. The broker
refuses to wait for a task that depends on one which the agent holds.`,
		Example: `  brokerctl --agent lead task wait login-api login-page --wait 10m
  brokerctl --agent lead task wait api --completed builder-1 --any`,
	},
	Call: command.Awaiting[*pb.WaitTasksRequest, *pb.WaitTasksResponse]("the tasks"),
	Args: []command.Arg{{Field: "task_ids", Name: "the task's id", Kind: unfinishedTask}},
	Options: []command.Option{
		{Field: "agents", Name: "completed", Kind: words.Agent, Comma: true,
			Usage: "also wait for this agent to report the status completed; repeatable"},
		{Field: "mode", Name: "any", Means: int32(pb.WaitMode_WAIT_MODE_ANY),
			Usage: "wait for one of them (default: for all)"},
		{Field: "wait", Value: "1m30s", Usage: "wait up to this long, 1h at most"},
		{Field: "after_revision", Name: "after", Kind: command.Revision,
			Usage: "ignore failures, blocks and cancellations up to this revision"},
	},
	Prepare: func(_ *command.Given, q *pb.WaitTasksRequest) error {
		if len(q.GetTaskIds())+len(q.GetAgents()) == 0 {
			return problem.Usagef("the task's id is missing")
		}
		return nil
	},
	After: func(g *command.Given, _ *client.Client, q *pb.WaitTasksRequest, a *pb.WaitTasksResponse) (bool, error) {
		err := g.Show(g.Cmd, a, func(w io.Writer) { printWait(w, a) })
		switch {
		case err != nil:
			return true, err
		case a.GetOutcome() == pb.WaitOutcome_WAIT_OUTCOME_ATTENTION:
			again := g.Command("task wait %s --after %d", strings.Join(q.GetTaskIds(), " "), a.GetRevision())
			return true, problem.Failf(problem.ExitConflict, "%s; %s continues to wait", prompt.Attention(a), again)
		case a.GetOutcome() != pb.WaitOutcome_WAIT_OUTCOME_DONE:
			return true, problem.Failf(problem.ExitNothing, "not done within %s", prompt.Duration(g.Duration("wait")))
		}
		return true, nil
	},
}

// printWait writes the states at the end of a wait.
func printWait(w io.Writer, a *pb.WaitTasksResponse) {
	for _, b := range a.GetTasks() {
		fmt.Fprintln(w, prompt.OneLine(prompt.TaskBrief(b)))
	}
	for _, agent := range a.GetCompletedAgents() {
		prompt.Say(w, "%s has reported completed", prompt.OneLine(agent))
	}
}
