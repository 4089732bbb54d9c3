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

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

var handoffCreate = command.Spec[*pb.CreateHandoffRequest, *pb.CreateHandoffResponse]{
	Page: command.Page{
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
	},
	Call: func(g *command.Given, broker *client.Client, q *pb.CreateHandoffRequest) (*pb.CreateHandoffResponse, error) {
		if err := uploadAbsent(g.Caller, g.Cmd, broker, q); err != nil {
			return nil, err
		}
		return broker.Handoffs().CreateHandoff(g.Cmd.Context(), q)
	},
	Args: []command.Arg{{Name: "the receiver", Kind: agentOrRole}, {Field: "title", Name: "the title", Text: true}},
	Options: []command.Option{
		{Name: "file", Short: "f", Type: "string", Kind: command.Kind{Name: "PATH[:LINE]", Files: true},
			Usage: "the handoff as YAML; - reads standard input"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "the task that is handed over"},
		{Field: "transfer_task", Usage: "transfer the claim of --task"},
		{Field: "fences", Name: "fence", Comma: true, Usage: "transfer the lock or token with this fence; repeatable"},
		{Field: "content.background", Kind: command.Content, Usage: "Markdown; @FILE reads a file, - standard input"},
		{Field: "content.work_done", Kind: command.Content, Usage: "Markdown, likewise"},
		{Field: "content.artifacts", Name: "artifact", Kind: command.Name,
			Usage: "an artifact, NAME or NAME@VERSION, or a file to upload; repeatable"},
		{Field: "content.context_links", Name: "link", Kind: command.Kind{Read: command.As(parseLink)},
			Usage: "context, as state:NAMESPACE/KEY, message:ID, file:PATH or a URL; repeatable"},
		{Field: "content.next_steps", Name: "next", Usage: "a next step; repeatable"},
		{Field: "content.known_issues", Name: "issue", Usage: "a known issue; repeatable"},
		{Field: "content.open_questions", Name: "question", Usage: "an open question; repeatable"},
		{Field: "checklist", Name: "check", Usage: "an item of the acceptance checklist; repeatable"},
		{Name: "wait", Type: "duration", Usage: "wait this long for the answer"},
		command.RequestID,
	},
	Prepare: addToFile,
	After: func(
		g *command.Given, broker *client.Client, _ *pb.CreateHandoffRequest, a *pb.CreateHandoffResponse,
	) (bool, error) {
		get := handoffGet
		get.Text = printAnswer
		return get.AwaitMade(g, broker, a.GetHandoff().GetId())
	},
	Shown: "handoff",
	Text: func(g *command.Given, w io.Writer, _ *pb.CreateHandoffRequest, a *pb.CreateHandoffResponse) {
		printOutcome(w, "created", a.GetHandoff())
		if prompt.ForModel(w) {
			prompt.Say(w, "Next: %s to wait for the answer", g.Command("handoff get %s --wait 30m", a.GetHandoff().GetId()))
		}
	},
}

// addToFile adds what the command line says to the handoff of the file.
func addToFile(g *command.Given, q *pb.CreateHandoffRequest) error {
	h, err := readHandoff(g.Caller, g.Cmd, g.Text("file"))
	if err != nil {
		return err
	}
	if len(g.Args) > 0 {
		h.To = g.Args[0]
	}
	whole, err := h.request()
	if err != nil {
		return err
	}
	proto.Merge(whole, q)
	if h.To == "" || whole.GetTitle() == "" {
		return problem.Usagef("the receiver or the title is missing: " +
			"handoff create TO TITLE, or to and title in the file of -f")
	}
	if whole.ToAgent, whole.ToRole, err = command.AgentOrRole(h.To); err != nil {
		return err
	}
	proto.Reset(q)
	proto.Merge(q, whole)
	return nil
}

// parseLink reads a context link.
func parseLink(s string) (*pb.ContextLink, error) {
	kind, target, _ := strings.Cut(s, ":")
	if strings.HasPrefix(target, "//") {
		kind, target = "url", s
	}
	return handoffLink{Kind: kind, Target: target}.message()
}

// printAnswer says in one line how a handoff was answered.
func printAnswer(_ *command.Given, w io.Writer, _ *pb.GetHandoffRequest, a *pb.GetHandoffResponse) {
	h := a.GetHandoff()
	line := h.GetId() + " " + prompt.Enum(h.GetState())
	line += prompt.Either(h.GetSettledBy() != "", " by "+h.GetSettledBy(), "")
	line += prompt.Either(h.GetNotes() != "", ": "+h.GetNotes(), "")
	fmt.Fprintln(w, prompt.OneLine(line))
}

// uploadAbsent uploads the files that a handoff names as artifacts and that the broker does not have,
// under their paths.
func uploadAbsent(
	c *command.Caller, cmd *cobra.Command, broker *client.Client, request *pb.CreateHandoffRequest,
) error {
	for i, artifact := range request.GetContent().GetArtifacts() {
		name, version := client.ParseArtifact(artifact)
		if !filepath.IsLocal(name) {
			return problem.Usagef("--artifact %s: no artifact has this name, and the path is not below this folder: "+
				"upload the file under a name first (%s)", artifact, c.Command("artifact upload %s NAME", prompt.ShellWord(name)))
		}
		name = filepath.ToSlash(filepath.Clean(name))
		known := &pb.GetArtifactRequest{Name: name, Version: version, PageSize: 1}
		_, err := broker.Artifacts().GetArtifact(cmd.Context(), known)
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
		return problem.Failf(problem.ExitNotFound,
			"there is no artifact %s in this session, and no file of this path: upload it first (%s)",
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
	fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: uploaded %s (%s)\n", prompt.OneLine(client.ArtifactReference(v)),
		output.Size(v.GetSize()))
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

// request returns what the file says of the call that creates the handoff.
func (h *handoffFile) request() (*pb.CreateHandoffRequest, error) {
	content := &pb.HandoffContent{
		Background: h.Background, WorkDone: h.WorkDone, Artifacts: h.Artifacts, NextSteps: h.NextSteps,
		KnownIssues: h.KnownIssues, OpenQuestions: h.OpenQuestions,
	}
	for _, l := range h.ContextLinks {
		link, err := l.message()
		if err != nil {
			return nil, err
		}
		content.ContextLinks = append(content.ContextLinks, link)
	}
	return &pb.CreateHandoffRequest{
		Title: h.Title, TaskId: h.TaskID, TransferTask: h.TransferTask, Fences: h.Fences, Checklist: h.Checklist,
		Content: content,
	}, nil
}

func (l handoffLink) message() (*pb.ContextLink, error) {
	kinds := pb.ContextLinkKind(0).Descriptor()
	kind, err := output.ParseEnum("link", kinds, l.Kind)
	if err == nil && kind == 0 {
		err = problem.Usagef("a context link has no kind: %s", strings.Join(jsonform.EnumNames(kinds), ", "))
	}
	return &pb.ContextLink{Kind: pb.ContextLinkKind(kind), Target: l.Target, Title: l.Title}, err
}
