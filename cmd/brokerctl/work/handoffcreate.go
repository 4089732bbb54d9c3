package work

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// handoffFile is a handoff as -f reads it. Flags add to its lists and replace its texts.
type handoffFile struct {
	To            string        `yaml:"to"` // an agent or role:NAME
	Title         string        `yaml:"title"`
	TaskID        string        `yaml:"task_id"`
	TransferTask  bool          `yaml:"transfer_task"`
	Fences        []int64       `yaml:"fences"`
	Background    string        `yaml:"background"`
	WorkDone      string        `yaml:"work_done"`
	Artifacts     []string      `yaml:"artifacts"`
	ContextLinks  []handoffLink `yaml:"context_links"`
	NextSteps     []string      `yaml:"next_steps"`
	KnownIssues   []string      `yaml:"known_issues"`
	OpenQuestions []string      `yaml:"open_questions"`
	Checklist     []string      `yaml:"checklist"`
}

type handoffLink struct {
	Kind   string `yaml:"kind"` // state, message, file or url
	Target string `yaml:"target"`
	Title  string `yaml:"title"`
}

func newHandoffCreateCommand(c *command.Caller) *cobra.Command {
	var flags handoffFile
	var file, requestID string
	var links []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "create [TO] [TITLE]",
		Short: "Offer work to an agent or a role",
		Long: `Offer work to an agent, or to role:NAME. The YAML file of -f has the same fields:
to, title, task_id, transfer_task, fences, background, work_done, artifacts,
context_links (kind, target, title), next_steps, known_issues, open_questions and
checklist. Options add to its lists.

Exit codes with --wait: 4: not answered in time; 11: rejected or cancelled.`,
		Example: `  brokerctl --agent architect-1 handoff create builder-1 "Login page" \
    --task t1 --transfer-task --artifact api.yaml --check "tests pass"
  brokerctl --agent architect-1 handoff create -f handoff.yaml --wait 1h`,
		Args:              command.Between(0, "the receiver", "the title"),
		ValidArgsFunction: c.CompleteArgs(false, words.Owners),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := readHandoff(c, cmd, file)
			if err != nil {
				return err
			}
			if err := h.add(c, cmd, flags, args, links); err != nil {
				return err
			}
			request, err := h.request()
			if err != nil {
				return err
			}
			request.RequestId = requestID
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if err := uploadAbsent(c, cmd, broker, request); err != nil {
				return err
			}
			answer, err := broker.Handoffs().CreateHandoff(cmd.Context(), request)
			if err != nil {
				return err
			}
			if wait > 0 {
				return waitForHandoff(c, cmd, broker, answer.GetHandoff().GetId(), wait, printAnswer)
			}
			return showHandoff(c, cmd, answer.GetHandoff(), "created")
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "the handoff as YAML; - reads standard input")
	f.StringVar(&flags.TaskID, "task", "", "the task that is handed over")
	f.BoolVar(&flags.TransferTask, "transfer-task", false, "transfer the claim of --task")
	f.Int64SliceVar(&flags.Fences, "fence", nil, "transfer the lock or token with this fence; repeatable")
	f.StringVar(&flags.Background, "background", "", "Markdown; @FILE reads a file, - standard input")
	f.StringVar(&flags.WorkDone, "work-done", "", "Markdown, likewise")
	f.StringArrayVar(&flags.Artifacts, "artifact", nil, "an artifact, NAME or NAME@VERSION, or a file to upload; repeatable")
	f.StringArrayVar(&links, "link", nil, "context, as state:NAMESPACE/KEY, message:ID, file:PATH or a URL; repeatable")
	f.StringArrayVar(&flags.NextSteps, "next", nil, "a next step; repeatable")
	f.StringArrayVar(&flags.KnownIssues, "issue", nil, "a known issue; repeatable")
	f.StringArrayVar(&flags.OpenQuestions, "question", nil, "an open question; repeatable")
	f.StringArrayVar(&flags.Checklist, "check", nil, "an item of the acceptance checklist; repeatable")
	command.DurationVar(f, &wait, "wait", 0, "wait this long for the answer")
	command.AddRequestID(cmd, &requestID)
	return cmd
}

// uploadAbsent uploads the files that a handoff names as artifacts and that the broker does not have,
// under their paths.
func uploadAbsent(c *command.Caller, cmd *cobra.Command, broker *client.Client, request *pb.CreateHandoffRequest) error {
	for i, artifact := range request.GetContent().GetArtifacts() {
		name, version := client.ParseArtifact(artifact)
		if !filepath.IsLocal(name) {
			return problem.Usagef("--artifact %s: no artifact has this name, and the path is not below this folder: "+
				"upload the file under a name first (%s)", artifact, c.Command("artifact upload %s NAME", prompt.ShellWord(name)))
		}
		name = filepath.ToSlash(filepath.Clean(name))
		_, err := broker.Artifacts().GetArtifact(cmd.Context(), &pb.GetArtifactRequest{Name: name, Version: version, PageSize: 1})
		switch {
		case err == nil:
		case status.Code(err) != codes.NotFound || version != 0:
			return err
		default:
			if err := uploadFile(c, cmd, broker, name, request.GetTaskId()); err != nil {
				return err
			}
		}
		if version == 0 {
			request.Content.Artifacts[i] = name
		}
	}
	return nil
}

// uploadFile uploads the file of a path under the path as its name, and says so.
func uploadFile(c *command.Caller, cmd *cobra.Command, broker *client.Client, name, task string) error {
	if _, err := os.Stat(c.Env.Path(name)); errors.Is(err, fs.ErrNotExist) {
		return problem.Failf(problem.ExitNotFound, "there is no artifact %s in this session, and no file of this path: upload it first (%s)",
			name, c.Command("artifact upload FILE %s", prompt.ShellWord(name)))
	}
	content, done, err := transfer.OpenContent(c, cmd, name)
	if err != nil {
		return err
	}
	defer done()
	answer, err := transfer.Upload(c, cmd, broker, &pb.ArtifactHeader{Name: name, TaskId: task}, content)
	if err != nil {
		return err
	}
	v := answer.GetArtifact()
	fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: uploaded %s (%s)\n", prompt.OneLine(client.ArtifactReference(v)), output.Size(v.GetSize()))
	return nil
}

// readHandoff reads the file of a handoff; without a name, the handoff is empty.
func readHandoff(c *command.Caller, cmd *cobra.Command, name string) (h handoffFile, err error) {
	var content []byte
	switch name {
	case "":
		return h, nil
	case "-":
		content, err = io.ReadAll(cmd.InOrStdin())
	default:
		content, err = c.Env.ReadFile(name)
	}
	if err != nil {
		return h, problem.Usagef("--file: %v", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(&h); err != nil && !errors.Is(err, io.EOF) {
		return h, problem.Usagef("--file %s: %v", name, err)
	}
	return h, nil
}

// add adds the arguments and flags of the command line.
func (h *handoffFile) add(c *command.Caller, cmd *cobra.Command, flags handoffFile, args, links []string) error {
	if len(args) > 0 {
		h.To = args[0]
	}
	if len(args) > 1 {
		h.Title = args[1]
	}
	for _, field := range []struct {
		flag, value string
		to          *string
	}{{"background", flags.Background, &h.Background}, {"work-done", flags.WorkDone, &h.WorkDone}} {
		s, err := c.Text(cmd, field.flag, field.value)
		if err != nil {
			return err
		}
		if s != "" {
			*field.to = s
		}
	}
	if flags.TaskID != "" {
		h.TaskID = flags.TaskID
	}
	for _, s := range links {
		kind, target, _ := strings.Cut(s, ":")
		if strings.HasPrefix(target, "//") {
			kind, target = "url", s
		}
		h.ContextLinks = append(h.ContextLinks, handoffLink{Kind: kind, Target: target})
	}
	h.TransferTask = h.TransferTask || flags.TransferTask
	h.Fences = append(h.Fences, flags.Fences...)
	h.Artifacts = append(h.Artifacts, flags.Artifacts...)
	h.NextSteps = append(h.NextSteps, flags.NextSteps...)
	h.KnownIssues = append(h.KnownIssues, flags.KnownIssues...)
	h.OpenQuestions = append(h.OpenQuestions, flags.OpenQuestions...)
	h.Checklist = append(h.Checklist, flags.Checklist...)
	return nil
}

// request returns the call that creates the handoff.
func (h *handoffFile) request() (*pb.CreateHandoffRequest, error) {
	if h.To == "" || h.Title == "" {
		return nil, problem.Usagef("the receiver or the title is missing: handoff create TO TITLE, or to and title in the file of -f")
	}
	request := &pb.CreateHandoffRequest{
		Title: h.Title, TaskId: h.TaskID, TransferTask: h.TransferTask, Fences: h.Fences, Checklist: h.Checklist,
		Content: &pb.HandoffContent{
			Background: h.Background, WorkDone: h.WorkDone, Artifacts: h.Artifacts, NextSteps: h.NextSteps, KnownIssues: h.KnownIssues,
			OpenQuestions: h.OpenQuestions,
		},
	}
	var err error
	if request.ToAgent, request.ToRole, err = command.AgentOrRole(h.To); err != nil {
		return nil, err
	}
	for _, l := range h.ContextLinks {
		kind, err := linkKind(l.Kind)
		if err != nil {
			return nil, err
		}
		request.Content.ContextLinks = append(request.Content.ContextLinks, &pb.ContextLink{Kind: pb.ContextLinkKind(kind), Target: l.Target, Title: l.Title})
	}
	return request, nil
}

func linkKind(name string) (protoreflect.EnumNumber, error) {
	kinds := pb.ContextLinkKind(0).Descriptor()
	kind, err := output.ParseEnum("link", kinds, name)
	if err == nil && kind == 0 {
		err = problem.Usagef("a context link has no kind: %s", strings.Join(jsonform.EnumNames(kinds), ", "))
	}
	return kind, err
}
