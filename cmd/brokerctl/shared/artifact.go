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
	"brokerd/cmd/brokerctl/internal/output"
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
		newArtifactUploadCommand(c), newArtifactDownloadCommand(c), newArtifactGetCommand(c), newArtifactListCommand(c), newArtifactDeleteCommand(c))
}

// artifactNames completes the first argument, an artifact.
func artifactNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Artifacts().ListArtifacts(ctx, &pb.ListArtifactsRequest{PageSize: command.MaxPage})
	var words []string
	for _, v := range page.GetArtifacts() {
		words = append(words, v.GetName())
	}
	return words, err
}

// artifactView lists versions.
func artifactView(c *command.Caller) output.View[*pb.ArtifactVersion] {
	return output.View[*pb.ArtifactVersion]{
		Columns: []table.Column{
			{Name: "NAME", Min: 16, Typical: 28}, {Name: "VERSION"}, {Name: "SIZE", Typical: 10}, {Name: "AUTHOR", Rank: 1, Min: 8, Typical: 12},
			{Name: "CREATED", Typical: c.TimeWidth()}, {Name: "TASK", Rank: 3, Min: 8, Typical: 12}, {Name: "SHA256", Rank: 4, Min: 12, Typical: 12},
			{Name: "DESCRIPTION", Rank: 2, Min: 20, Typical: 30},
		},
		Row: func(v *pb.ArtifactVersion) []string {
			return []string{v.GetName(), strconv.FormatInt(v.GetVersion(), 10), output.Size(v.GetSize()), v.GetAuthor(), c.When(v.GetCreatedAt()),
				v.GetTaskId(), v.GetSha256()[:min(12, len(v.GetSha256()))], prompt.Clip(v.GetDescription(), output.MostText)}
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
	text := strings.Join(facts, ", ")
	if v.GetDescription() != "" {
		text += ": " + prompt.OneLine(v.GetDescription())
	}
	return text
}

func newArtifactGetCommand(c *command.Caller) *cobra.Command {
	request := &pb.GetArtifactRequest{}
	var limit int
	cmd := &cobra.Command{
		Use:               "get NAME[@VERSION]",
		Short:             "Describe an artifact and its versions",
		Example:           "  brokerctl artifact get docs/plan.md",
		Args:              command.Exactly("the artifact's name"),
		ValidArgsFunction: c.CompleteArgs(false, artifactNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Name, request.Version = client.ParseArtifact(args[0])
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.GetArtifactResponse{}
			versions, err := command.Pages(limit, func(size int32, token string) ([]*pb.ArtifactVersion, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Artifacts().GetArtifact(cmd.Context(), request)
				if answer.Artifact == nil {
					answer = page
				}
				return page.GetVersions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			answer.Versions = versions
			return c.Show(cmd, answer, func(w io.Writer) { printArtifact(c, w, answer) })
		},
	}
	command.LimitVar(cmd.Flags(), &limit, 20)
	return cmd
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

func newArtifactListCommand(c *command.Caller) *cobra.Command {
	request := &pb.ListArtifactsRequest{}
	var limit int
	cmd := &cobra.Command{
		Use:               "list [PREFIX]",
		Short:             "List artifacts",
		Example:           "  brokerctl artifact list docs/ --from builder-1",
		Args:              command.Between(0, "the prefix"),
		ValidArgsFunction: c.CompleteArgs(false, artifactNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.NamePrefix = strings.Join(args, "")
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			versions, err := command.Pages(limit, func(size int32, token string) ([]*pb.ArtifactVersion, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Artifacts().ListArtifacts(cmd.Context(), request)
				return page.GetArtifacts(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, versions, artifactView(c))
		},
	}
	cmd.Flags().StringVar(&request.Agent, "from", "", "only uploads of this agent")
	cmd.Flags().StringVar(&request.TaskId, "task", "", "only artifacts of this task")
	cmd.Flags().StringVar(&request.Sha256, "sha256", "", "only versions whose content has this hash")
	cmd.Flags().BoolVar(&request.AllVersions, "versions", false, "all versions (default: the newest of each name)")
	command.LimitVar(cmd.Flags(), &limit, 100)
	return cmd
}

func newArtifactDeleteCommand(c *command.Caller) *cobra.Command {
	request := &pb.DeleteArtifactRequest{}
	cmd := &cobra.Command{
		Use:   "delete NAME[@VERSION]",
		Short: "Delete a version, or an artifact with all its versions",
		Long: `Delete a version, or without @VERSION an artifact with all its versions. Only the
agents that uploaded them, operators and the session's directors may do so.`,
		Example:           "  brokerctl artifact delete docs/plan.md@1",
		Args:              command.Exactly("the artifact's name"),
		ValidArgsFunction: c.CompleteArgs(false, artifactNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Name, request.Version = client.ParseArtifact(args[0])
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Artifacts().DeleteArtifact(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "deleted %s: %s, %s freed", prompt.OneLine(args[0]), prompt.Count(answer.GetVersions(), "version"), output.Size(answer.GetFreedBytes()))
			})
		},
	}
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
