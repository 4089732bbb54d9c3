package work

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/internal/exitcode"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A plan is a file with tasks.
type plan struct {
	name  string // of the file; "" without one
	tasks []*pb.NewTask
	lines []int // on which the tasks begin
}

// planTask is a task in a plan.
type planTask struct {
	ID           string            `yaml:"id"`
	Title        string            `yaml:"title"`
	Description  string            `yaml:"description"`
	Labels       map[string]string `yaml:"labels"`
	Priority     string            `yaml:"priority"`
	Role         string            `yaml:"role"`
	Assignee     string            `yaml:"assignee"`
	Capabilities []string          `yaml:"capabilities"`
	DependsOn    []string          `yaml:"depends_on"`
	Parent       string            `yaml:"parent"`
	MaxAttempts  int32             `yaml:"max_attempts"`
	StaleAfter   string            `yaml:"stale_after"`
	Artifacts    []string          `yaml:"artifacts"`
}

// planKeys are the keys of a planTask.
func planKeys() []string {
	var keys []string
	for f := range reflect.TypeFor[planTask]().Fields() {
		keys = append(keys, f.Tag.Get("yaml"))
	}
	return keys
}

// readPlan reads a plan from a file, or from standard input for "-".
func readPlan(c *command.Caller, cmd *cobra.Command, name string) (plan, error) {
	p := plan{name: name}
	var content []byte
	var err error
	if name == "-" {
		p.name = "standard input"
		content, err = io.ReadAll(cmd.InOrStdin())
	} else {
		content, err = c.Env.ReadFile(name)
	}
	if err != nil {
		return p, problem.Usagef("--file: %v", err)
	}
	file := map[string]yaml.Node{}
	err = yaml.NewDecoder(bytes.NewReader(content)).Decode(&file)
	if typed := (*yaml.TypeError)(nil); errors.As(err, &typed) {
		return p, problem.Usagef("%s must have the key tasks with a list of tasks at the top; see %s --help", p.name, cmd.CommandPath())
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return p, problem.Usagef("%s: %s", p.name, strings.TrimPrefix(prompt.OneLine(err.Error()), "yaml: "))
	}
	for key, node := range file {
		if key != "tasks" {
			return p, problem.Usagef("%s: %v", p.name, setting.UnknownKey(node.Line, key, []string{"tasks"}))
		}
	}
	list := file["tasks"]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return p, problem.Usagef("%s has no list of tasks; see %s --help", p.name, cmd.CommandPath())
	}
	for i, node := range list.Content {
		p.lines = append(p.lines, node.Line)
		t, err := parsePlanTask(node)
		p.tasks = append(p.tasks, t)
		if err != nil {
			text := err.Error()
			if m := leadingLine.FindStringSubmatch(text); m != nil {
				text = text[len(m[0]):]
				p.lines[i], _ = strconv.Atoi(m[1]) // the pattern has digits only
			}
			return p, &problem.Failure{Code: problem.ExitUsage, Text: p.place(i) + ": " + text}
		}
	}
	return p, nil
}

// parsePlanTask reads one entry.
func parsePlanTask(node *yaml.Node) (*pb.NewTask, error) {
	var keys map[string]yaml.Node
	var t planTask
	if err := node.Decode(&keys); err != nil {
		return nil, errors.New("it must have keys and values, such as title: Write the API")
	}
	err := node.Decode(&t)
	created := &pb.NewTask{
		Id: t.ID, Title: t.Title, Description: t.Description, Labels: t.Labels, Role: t.Role, Assignee: t.Assignee,
		Capabilities: t.Capabilities, DependsOn: t.DependsOn, Parent: t.Parent, MaxAttempts: t.MaxAttempts,
		Artifacts: t.Artifacts,
	}
	for key, value := range keys {
		if known := planKeys(); !slices.Contains(known, key) {
			return created, setting.UnknownKey(value.Line, key, known)
		}
	}
	if typed := (*yaml.TypeError)(nil); errors.As(err, &typed) {
		return created, errors.New(strings.Join(typed.Errors, "; "))
	}
	if err != nil {
		return created, err
	}
	if created.Priority, err = command.ParsePriority("priority", t.Priority); err != nil {
		return created, fmt.Errorf("priority %q is neither 1 to 10 nor low, normal, high or critical", t.Priority)
	}
	if t.StaleAfter != "" {
		stale, err := command.ParseDuration(t.StaleAfter)
		if err != nil {
			return created, fmt.Errorf("stale_after: %w", err)
		}
		created.StaleAfter = durationpb.New(stale)
	}
	return created, nil
}

// place names a task of the plan.
func (p *plan) place(i int) string {
	id := p.tasks[i].GetId()
	return fmt.Sprintf("%s, line %d: task %d%s", p.name, p.lines[i], i+1, prompt.Either(id != "", " ("+id+")", ""))
}

// leadingLine matches the line at the beginning of an error about an entry.
var leadingLine = regexp.MustCompile(`^line (\d{1,9}): `)

// planField matches a field of a task in a request.
var planField = regexp.MustCompile(`tasks\[(\d+)\]\.?`)

// locate puts places in the plan into an error of the broker about the tasks.
func (p *plan) locate(err error) error {
	s, ok := problem.Status(err)
	if !ok || p.name == "" {
		return err
	}
	located := false
	message := planField.ReplaceAllStringFunc(s.Message(), func(field string) string {
		i, err := strconv.Atoi(planField.FindStringSubmatch(field)[1])
		if err != nil || i >= len(p.tasks) {
			return field
		}
		located = true
		return p.place(i) + ": "
	})
	if !located {
		switch s.Code() {
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists:
			place := p.name
			if i := p.culprit(s); i >= 0 {
				place = p.place(i)
			}
			message = place + ": " + message
		default:
		}
	}
	return &problem.Failure{Code: exitcode.Of(s.Code(), client.Reason(s.Err())), Text: message, Err: err}
}

// culprit returns the position of the task that an error of the broker is about: the first of a
// cycle, or the first with the assignee that does not exist. It is -1 if the error names none.
func (p *plan) culprit(s *status.Status) int {
	var id, assignee string
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			id, _, _ = strings.Cut(d.GetMetadata()["cycle"], " → ")
		case *errdetails.ResourceInfo:
			assignee = prompt.Either(d.GetResourceType() == "agent", d.GetResourceName(), "")
		}
	}
	return slices.IndexFunc(p.tasks, func(t *pb.NewTask) bool {
		return id != "" && t.GetId() == id || assignee != "" && t.GetAssignee() == assignee
	})
}
