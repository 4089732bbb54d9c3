package work

import (
	"io"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const taskCreateLong = `Create a task, or with -f the tasks of a YAML file, all or none. Tasks may depend
on tasks of the same file. The file has a list of tasks with the keys of the flags:

  tasks:
  - id: schema
    title: Write the schema
    role: builder
  - id: api
    title: Write the API
    description: |
      As in docs/api.md.
    depends_on: [schema]
    priority: high

More keys: assignee, capabilities, labels, parent, max_attempts, stale_after,
artifacts. With -f -, brokerctl reads standard input.`

// newTaskCreateCommand is a function because its call needs the plan that was read before: an error
// names the place in it.
func newTaskCreateCommand(c *command.Caller) *cobra.Command {
	var p plan
	return command.Spec[*pb.CreateTasksRequest, *pb.CreateTasksResponse]{
		Page: command.Page{
			Use:   "create [TITLE]",
			Short: "Create a task, or those of a file",
			Long:  taskCreateLong,
			Example: `  brokerctl --agent lead task create "Write the API" --depends-on schema
  brokerctl --agent lead task create -f plan.yaml`,
		},
		Call: func(g *command.Given, broker *client.Client, q *pb.CreateTasksRequest) (*pb.CreateTasksResponse, error) {
			a, err := broker.Tasks().CreateTasks(g.Cmd.Context(), q)
			return a, p.locate(err)
		},
		Args: []command.Arg{{Field: "tasks.title", Name: "the title", Text: true}},
		Options: []command.Option{
			{Name: "file", Short: "f", Type: "string", Kind: planFile, Usage: "create the tasks of this file"},
			{Field: "tasks.id", Kind: command.Kind{Name: "ID"},
				Usage: "id of the task (default: the broker assigns one)"},
			{Field: "tasks.description", Kind: command.Content,
				Usage: "what is to be done; @FILE reads a file, - standard input"},
			{Field: "tasks.role", Kind: words.Role, Usage: "only agents of this role may claim it"},
			{Field: "tasks.assignee", Kind: words.Agent,
				Usage: "only this agent may claim it, and gets a message when it is ready"},
			{Field: "tasks.capabilities", Name: "capability", Kind: command.Name,
				Usage: "only agents with this capability may claim it; repeatable"},
			{Field: "tasks.depends_on", Kind: unfinishedTask, Comma: true,
				Usage: "a task that must be done first; repeatable"},
			{Field: "tasks.parent", Kind: unfinishedTask, Usage: "the task of which it is a part"},
			{Field: "tasks.priority", Kind: command.Priority,
				Usage: "1 to 10, or low (3), normal (5), high (7), critical (10)"},
			{Field: "tasks.labels", Name: "label", Usage: "a label; repeatable"},
			{Field: "tasks.max_attempts", Usage: "failed attempts until it is failed, 1 to 100 (default: 3)"},
			{Field: "tasks.stale_after", Zero: true,
				Usage: "release it when its holder reports nothing for this long; 0: never (default: the session's, 2h)"},
			{Field: "tasks.artifacts", Name: "artifact", Kind: command.Name,
				Usage: "an artifact that it needs; repeatable"},
			command.RequestID,
		},
		Apart: [][]string{
			{"file", "id"}, {"file", "description"}, {"file", "role"}, {"file", "assignee"}, {"file", "capability"},
			{"file", "depends-on"}, {"file", "parent"}, {"file", "priority"}, {"file", "label"},
			{"file", "max-attempts"}, {"file", "stale-after"}, {"file", "artifact"},
		},
		Prepare: func(g *command.Given, q *pb.CreateTasksRequest) (err error) {
			file := g.Text("file")
			if file == "" {
				return command.Exactly("the title")(g.Cmd, g.Args)
			}
			p, err = readPlan(g.Caller, g.Cmd, file)
			q.Tasks = p.tasks
			return err
		},
		Text: func(g *command.Given, w io.Writer, _ *pb.CreateTasksRequest, a *pb.CreateTasksResponse) {
			for _, b := range a.GetTasks() {
				prompt.Say(w, "created %s, %s", prompt.OneLine(b.GetId()), prompt.Enum(b.GetState()))
			}
		},
		After: func(g *command.Given, _ *client.Client, _ *pb.CreateTasksRequest, a *pb.CreateTasksResponse) (bool, error) {
			g.Warn(g.Cmd, a.GetWarnings())
			return false, nil
		},
	}.Command(c)
}

var planFile = command.Kind{
	Name: "PATH[:LINE]", Fixed: []string{"yaml", "yml", "json"}, Complete: cobra.ShellCompDirectiveFilterFileExt,
}
