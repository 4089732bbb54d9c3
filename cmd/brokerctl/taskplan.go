package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
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
func readPlan(cmd *cobra.Command, name string) (plan, error) {
	p := plan{name: name}
	var content []byte
	var err error
	if name == "-" {
		p.name = "standard input"
		content, err = io.ReadAll(cmd.InOrStdin())
	} else {
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return p, usagef("--file: %v", err)
	}
	file := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(content)).Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return p, usagef("%s: %s", p.name, strings.TrimPrefix(oneLine(err.Error()), "yaml: "))
	}
	for key, node := range file {
		if key != "tasks" {
			return p, usagef("%s: %v", p.name, unknownKey(node.Line, key, []string{"tasks"}))
		}
	}
	list := file["tasks"]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return p, usagef("%s has no list of tasks; see %s --help", p.name, cmd.CommandPath())
	}
	for i, node := range list.Content {
		p.lines = append(p.lines, node.Line)
		t, err := parsePlanTask(node)
		p.tasks = append(p.tasks, t)
		if err != nil {
			return p, &failure{code: exitUsage, text: p.place(i) + ": " + err.Error()}
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
			return created, unknownKey(value.Line, key, known)
		}
	}
	if typed := (*yaml.TypeError)(nil); errors.As(err, &typed) {
		return created, errors.New(strings.Join(typed.Errors, "; "))
	}
	if err != nil {
		return created, err
	}
	if created.Priority, err = parsePriority("priority", t.Priority); err != nil {
		return created, fmt.Errorf("priority %q is neither 1 to 10 nor low, normal, high or critical", t.Priority)
	}
	if t.StaleAfter != "" {
		stale, err := parseDuration(t.StaleAfter)
		if err != nil {
			return created, fmt.Errorf("stale_after: %w", err)
		}
		created.StaleAfter = always(stale)
	}
	return created, nil
}

// place names a task of the plan.
func (p *plan) place(i int) string {
	id := p.tasks[i].GetId()
	return fmt.Sprintf("%s, line %d: task %d%s", p.name, p.lines[i], i+1, cond(id != "", " ("+id+")", ""))
}

// planField matches a field of a task in a request.
var planField = regexp.MustCompile(`tasks\[(\d+)\]\.?`)

// locate replaces the fields of the request in an error of the broker by places in the plan.
func (p *plan) locate(err error) error {
	s, ok := grpcStatus(err)
	if !ok || p.name == "" {
		return err
	}
	message := planField.ReplaceAllStringFunc(s.Message(), func(field string) string {
		i, err := strconv.Atoi(planField.FindStringSubmatch(field)[1])
		if err != nil || i >= len(p.tasks) {
			return field
		}
		return p.place(i) + ": "
	})
	return &failure{code: exitCode(s.Code(), client.Reason(s.Err())), text: message, err: err}
}
