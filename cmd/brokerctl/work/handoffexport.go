package work

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// Exported is what handoff export prints with -o json.
type Exported struct {
	Dir     string   `json:"dir"`
	Files   []string `json:"files"`
	Missing []string `json:"missing"` // artifacts that the broker does not have
}

var handoffExport = command.Procedure[*pb.GetHandoffRequest]{
	Page: command.Page{
		Use:   "export ID DIR",
		Short: "Write a handoff and its artifacts into a folder",
		Long: `Write HANDOFF.md, context-links.md, acceptance-checklist.md, metadata.json and
artifacts/ into a folder. Existing files of these names are replaced.`,
		Example: "  brokerctl handoff export h-4711 handoff",
	},
	Args: []command.Arg{{Field: "id", Name: "the id", Kind: pendingHandoff}, {Name: "the folder"}},
	Run: func(g *command.Given, q *pb.GetHandoffRequest) error {
		broker, err := g.Connect(g.Cmd.Context(), g.RetryNotice(g.Cmd))
		if err != nil {
			return err
		}
		q.Markdown = true
		answer, err := broker.Handoffs().GetHandoff(g.Cmd.Context(), q)
		if err != nil {
			return err
		}
		done, err := exportHandoff(g.Caller, g.Cmd, broker, answer, g.Args[1])
		if err != nil {
			return err
		}
		for _, name := range done.Missing {
			fmt.Fprintf(g.Cmd.ErrOrStderr(), "the artifact %s cannot be exported: the broker does not have it\n",
				prompt.OneLine(name))
		}
		text := fmt.Sprintf("exported %s to %s: %s", answer.GetHandoff().GetId(), g.Args[1], strings.Join(done.Files, ", "))
		return g.ShowValue(g.Cmd, done, text)
	},
}

// exportHandoff writes the files of a handoff.
func exportHandoff(
	c *command.Caller, cmd *cobra.Command, broker *client.Client, answer *pb.GetHandoffResponse, dir string,
) (Exported, error) {
	h := answer.GetHandoff()
	done := Exported{Dir: dir, Files: []string{}, Missing: []string{}}
	dir = c.Env.Path(dir)
	var metadata strings.Builder
	if err := output.WriteJSON(&metadata, h); err != nil {
		return done, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "artifacts"), 0o755); err != nil {
		return done, problem.Failf(problem.ExitError, "%v", err)
	}
	for _, file := range []struct{ name, text string }{
		{"HANDOFF.md", answer.GetMarkdown()},
		{"context-links.md", linksMarkdown(h)},
		{"acceptance-checklist.md", checklistMarkdown(h)},
		{"metadata.json", metadata.String()},
	} {
		if err := os.WriteFile(filepath.Join(dir, file.name), []byte(file.text), 0o644); err != nil {
			return done, problem.Failf(problem.ExitError, "%v", err)
		}
		done.Files = append(done.Files, file.name)
	}
	for _, reference := range h.GetContent().GetArtifacts() {
		request := &pb.DownloadArtifactRequest{}
		request.Name, request.Version = client.ParseArtifact(reference)
		name := filepath.Join("artifacts", filepath.FromSlash(request.Name))
		if !filepath.IsLocal(filepath.FromSlash(request.Name)) { // no name of an artifact
			done.Missing = append(done.Missing, reference)
			continue
		}
		known := &pb.GetArtifactRequest{Name: request.Name, Version: request.Version}
		_, err := broker.Artifacts().GetArtifact(cmd.Context(), known)
		if status.Code(err) == codes.NotFound {
			done.Missing = append(done.Missing, reference)
			continue
		}
		if err != nil {
			return done, err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return done, problem.Failf(problem.ExitError, "%v", err)
		}
		if _, err := transfer.DownloadFile(c, cmd, broker, request, filepath.Join(dir, name)); err != nil {
			return done, err
		}
		done.Files = append(done.Files, filepath.ToSlash(name))
	}
	return done, nil
}

// linksMarkdown renders the context links of a handoff.
func linksMarkdown(h *pb.Handoff) string {
	var b strings.Builder
	writeHeading(&b, "Context links", h)
	for _, l := range h.GetContent().GetContextLinks() {
		target := prompt.Either(l.GetKind() == pb.ContextLinkKind_CONTEXT_LINK_KIND_URL,
			"<"+l.GetTarget()+">", prompt.Enum(l.GetKind())+" `"+l.GetTarget()+"`")
		fmt.Fprintf(&b, "- %s%s\n", target, prompt.Either(l.GetTitle() != "", ": "+l.GetTitle(), ""))
	}
	return b.String()
}

// checklistMarkdown renders the acceptance checklist of a handoff.
func checklistMarkdown(h *pb.Handoff) string {
	var b strings.Builder
	writeHeading(&b, "Acceptance checklist", h)
	for _, item := range h.GetChecklist() {
		by := ""
		if item.GetChecked() {
			by = " (" + item.GetCheckedBy() + ", " + jsonform.Time(item.GetCheckedAt()) + ")"
		}
		text := strings.ReplaceAll(item.GetText(), "\n", "\n  ")
		fmt.Fprintf(&b, "- [%s] %s%s\n", prompt.Either(item.GetChecked(), "x", " "), text, by)
	}
	return b.String()
}

func writeHeading(w io.Writer, title string, h *pb.Handoff) {
	fmt.Fprintf(w, "# %s of handoff %s: %s\n\n", title, h.GetId(), h.GetTitle())
}
