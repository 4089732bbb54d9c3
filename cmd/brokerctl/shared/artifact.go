package shared

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const artifactLong = `Files that agents share, with versions. A version never changes. NAME@3 is
version 3 of an artifact, and NAME its newest version. Messages refer to artifacts
in the same form (send --artifact NAME@3).`

// NewArtifactCommand returns the commands of brokerctl artifact.
func NewArtifactCommand(c *command.Caller) *cobra.Command {
	return command.Group("artifact", "Share files", artifactLong, "  brokerctl artifact list",
		artifactUpload.Command(c), artifactDownload.Command(c), artifactGet.Command(c), artifactList.Command(c),
		artifactDelete.Command(c))
}

// artifactNames completes the first argument, an artifact.
func artifactNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Artifacts().ListArtifacts(ctx, &pb.ListArtifactsRequest{PageSize: command.MaxPage})
	return each.Of(page.GetArtifacts(), (*pb.ArtifactVersion).GetName), err
}

// artifactView lists versions.
func artifactView(c *command.Caller) output.View[*pb.ArtifactVersion] {
	return output.View[*pb.ArtifactVersion]{
		Columns: []table.Column{
			{Name: "NAME", Min: 16, Typical: 28}, {Name: "VERSION"}, {Name: "SIZE", Typical: 10},
			{Name: "AUTHOR", Rank: 1, Min: 8, Typical: 12}, {Name: "CREATED", Typical: c.TimeWidth()},
			{Name: "TASK", Rank: 3, Min: 8, Typical: 12}, {Name: "SHA256", Rank: 4, Min: 12, Typical: 12},
			{Name: "DESCRIPTION", Rank: 2, Min: 20, Typical: 30},
		},
		Row: func(v *pb.ArtifactVersion) []string {
			return []string{
				v.GetName(), strconv.FormatInt(v.GetVersion(), 10), output.Size(v.GetSize()), v.GetAuthor(),
				c.When(v.GetCreatedAt()), v.GetTaskId(), v.GetSha256()[:min(12, len(v.GetSha256()))],
				prompt.Clip(v.GetDescription(), output.MostText),
			}
		},
		Prompt: func(w io.Writer, v *pb.ArtifactVersion) {
			fmt.Fprintf(w, "%s (%s)\n", prompt.OneLine(client.ArtifactReference(v)), artifactFacts(c, v))
		},
		None: "no artifacts",
	}
}

// artifactFacts describes a version in one line.
func artifactFacts(c *command.Caller, v *pb.ArtifactVersion) string {
	facts := []string{output.Size(v.GetSize())}
	if v.GetMediaType() != "" {
		facts = append(facts, prompt.OneLine(v.GetMediaType()))
	}
	facts = append(facts, "by "+prompt.Clean(v.GetAuthor()), c.When(v.GetCreatedAt()))
	if v.GetTaskId() != "" {
		facts = append(facts, "task "+prompt.Clean(v.GetTaskId()))
	}
	return strings.Join(facts, ", ") +
		prompt.Either(v.GetDescription() != "", ": "+prompt.OneLine(v.GetDescription()), "")
}

// oneArtifact is the argument that names an artifact, or a version of it.
var oneArtifact = []command.Arg{{
	Name: "the artifact's name", Kind: command.Kind{Words: artifactNames}, Fields: []string{"name"},
}}

var artifactGet = command.Spec[*pb.GetArtifactRequest, *pb.GetArtifactResponse]{
	Page: command.Page{
		Use:     "get NAME[@VERSION]",
		Short:   "Describe an artifact and its versions",
		Example: "  brokerctl artifact get docs/plan.md",
	},
	Call: func(g *command.Given, broker *client.Client, q *pb.GetArtifactRequest) (*pb.GetArtifactResponse, error) {
		answer := &pb.GetArtifactResponse{}
		versions, err := command.UpToLimit(g, true, func(size int32, token string) ([]*pb.ArtifactVersion, string, error) {
			q.PageSize, q.PageToken = size, token
			page, err := broker.Artifacts().GetArtifact(g.Cmd.Context(), q)
			if err == nil && answer.Artifact == nil {
				answer = page
			}
			return page.GetVersions(), page.GetNextPageToken(), err
		})
		answer.Versions = versions
		return answer, err
	},
	Args:    oneArtifact,
	Options: []command.Option{command.Limit},
	Prepare: func(g *command.Given, q *pb.GetArtifactRequest) error {
		q.Name, q.Version = client.ParseArtifact(g.Args[0])
		return nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.GetArtifactRequest, a *pb.GetArtifactResponse) {
		printArtifact(g.Caller, w, a)
	},
}

// printArtifact describes a version and the others of its artifact.
func printArtifact(c *command.Caller, w io.Writer, answer *pb.GetArtifactResponse) {
	v := answer.GetArtifact()
	fmt.Fprintf(w, "%s (%s)\n", prompt.OneLine(client.ArtifactReference(v)), artifactFacts(c, v))
	fmt.Fprintf(w, "sha256: %s\n", v.GetSha256())
	if len(v.GetLabels()) > 0 {
		fmt.Fprintf(w, "labels: %s\n", prompt.Clean(prompt.Labels(v.GetLabels())))
	}
	for _, other := range answer.GetVersions() {
		if other.GetVersion() != v.GetVersion() {
			fmt.Fprintf(w, "version %d: %s\n", other.GetVersion(), artifactFacts(c, other))
		}
	}
}

var artifactList = command.Listing[*pb.ListArtifactsRequest, *pb.ListArtifactsResponse, *pb.ArtifactVersion]{
	Page: command.Page{
		Use:     "list [PREFIX]",
		Short:   "List artifacts",
		Example: "  brokerctl artifact list docs/ --from builder-1",
	},
	Items: (*pb.ListArtifactsResponse).GetArtifacts,
	Args:  []command.Arg{{Field: "name_prefix", Name: "the prefix", Text: true, Kind: command.Kind{Words: artifactNames}}},
	Options: []command.Option{
		{Field: "agent", Name: "from", Kind: words.Agent, Usage: "only uploads of this agent"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only artifacts of this task"},
		{Field: "sha256", Usage: "only versions whose content has this hash"},
		{Field: "all_versions", Name: "versions", Usage: "all versions (default: the newest of each name)"},
	},
	View: func(g *command.Given) output.View[*pb.ArtifactVersion] { return artifactView(g.Caller) },
}

var artifactDelete = command.Spec[*pb.DeleteArtifactRequest, *pb.DeleteArtifactResponse]{
	Page: command.Page{
		Use:   "delete NAME[@VERSION]",
		Short: "Delete a version, or an artifact with all its versions",
		Long: `Delete a version, or without @VERSION an artifact with all its versions. Only the
agents that uploaded them, operators and the session's directors may do so.`,
		Example: "  brokerctl artifact delete docs/plan.md@1",
	},
	Args:    oneArtifact,
	Options: []command.Option{command.RequestID},
	Prepare: func(g *command.Given, q *pb.DeleteArtifactRequest) error {
		q.Name, q.Version = client.ParseArtifact(g.Args[0])
		return nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.DeleteArtifactRequest, a *pb.DeleteArtifactResponse) {
		prompt.Say(w, "deleted %s: %s, %s freed", prompt.OneLine(g.Args[0]), prompt.Count(a.GetVersions(), "version"),
			output.Size(a.GetFreedBytes()))
	},
}
