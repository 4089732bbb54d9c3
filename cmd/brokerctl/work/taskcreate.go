package work

import (
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
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

// taskCreateOptions are the options of task create.
type taskCreateOptions struct {
	file        string
	description string
	labels      []string
	priority    string
	staleAfter  time.Duration
}

// AddFlags adds the options.
func (o *taskCreateOptions) AddFlags(f *pflag.FlagSet, t *pb.NewTask) {
	f.StringVarP(&o.file, "file", "f", "", "create the tasks of this file")
	f.StringVar(&t.Id, "id", "", "id of the task (default: the broker assigns one)")
	f.StringVar(&o.description, "description", "", "what is to be done; @FILE reads a file, - standard input")
	f.StringVar(&t.Role, "role", "", "only agents of this role may claim it")
	f.StringVar(&t.Assignee, "assignee", "", "only this agent may claim it, and gets a message when it is ready")
	f.StringArrayVar(&t.Capabilities, "capability", nil, "only agents with this capability may claim it; repeatable")
	f.StringSliceVar(&t.DependsOn, "depends-on", nil, "a task that must be done first; repeatable")
	f.StringVar(&t.Parent, "parent", "", "the task of which it is a part")
	f.StringVar(&o.priority, "priority", "", "1 to 10, or low (3), normal (5), high (7), critical (10)")
	f.StringArrayVar(&o.labels, "label", nil, "a label; repeatable")
	f.Int32Var(&t.MaxAttempts, "max-attempts", 0, "failed attempts until it is failed, 1 to 100 (default: 3)")
	command.DurationVar(f, &o.staleAfter, "stale-after", 0,
		"release it when its holder reports nothing for this long; 0: never (default: the session's, 2h)")
	f.StringArrayVar(&t.Artifacts, "artifact", nil, "an artifact that it needs; repeatable")
}

func newTaskCreateCommand(c *command.Caller) *cobra.Command {
	o := &taskCreateOptions{}
	task := &pb.NewTask{}
	request := &pb.CreateTasksRequest{}
	cmd := &cobra.Command{
		Use:   "create [TITLE]",
		Short: "Create a task, or those of a file",
		Long:  taskCreateLong,
		Example: `  brokerctl --agent lead task create "Write the API" --depends-on schema
  brokerctl --agent lead task create -f plan.yaml`,
		Args:              command.Between(0, "the title"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var p plan
			if o.file == "" {
				err = o.describe(c, cmd, task, args)
				request.Tasks = []*pb.NewTask{task}
			} else {
				p, err = readPlan(c, cmd, o.file)
				request.Tasks = p.tasks
			}
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Tasks().CreateTasks(cmd.Context(), request)
			if err != nil {
				return p.locate(err)
			}
			c.Warn(cmd, answer.GetWarnings())
			return c.Show(cmd, answer, func(w io.Writer) {
				for _, b := range answer.GetTasks() {
					prompt.Say(w, "created %s, %s", prompt.OneLine(b.GetId()), prompt.Enum(b.GetState()))
				}
			})
		},
	}
	o.AddFlags(cmd.Flags(), task)
	command.AddRequestID(cmd, &request.RequestId)
	plans := cobra.FixedCompletions([]string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
	command.Must(cmd.RegisterFlagCompletionFunc("file", plans))
	for _, flag := range []string{"id", "description", "role", "assignee", "capability", "depends-on", "parent",
		"priority", "label", "max-attempts", "stale-after", "artifact"} {
		cmd.MarkFlagsMutuallyExclusive("file", flag)
	}
	return cmd
}

// describe completes the task that the command line describes.
func (o *taskCreateOptions) describe(c *command.Caller, cmd *cobra.Command, t *pb.NewTask, args []string) (err error) {
	if err := command.Exactly("the title")(cmd, args); err != nil {
		return err
	}
	t.Title = args[0]
	if t.Description, err = c.Text(cmd, "description", o.description); err != nil {
		return err
	}
	if t.Priority, err = command.ParsePriority("priority", o.priority); err != nil {
		return err
	}
	if cmd.Flags().Changed("stale-after") {
		t.StaleAfter = durationpb.New(o.staleAfter)
	}
	t.Labels, err = command.ParseLabels(o.labels)
	return err
}
