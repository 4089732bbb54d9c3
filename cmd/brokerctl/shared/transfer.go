package shared

import (
	"io"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func newArtifactUploadCommand(c *command.Caller) *cobra.Command {
	h := &pb.ArtifactHeader{}
	var labels []string
	cmd := &cobra.Command{
		Use:   "upload FILE [NAME]",
		Short: "Add a version of an artifact",
		Long: `Add a version of an artifact. NAME is the path FILE if it is missing. FILE - is
standard input and needs a NAME. The broker reads no content that the session has
already. If the newest version has this content, it stays the newest.`,
		Example: `  brokerctl --agent builder-1 artifact upload docs/plan.md --announce
  make report | brokerctl --agent ci-1 artifact upload - reports/latest.txt`,
		Args: command.Between(1, "the file", "the artifact's name"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return command.CompleteFiles(cmd, args, begun)
			}
			return c.CompleteArgs(false, nil, artifactNames)(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if h.Labels, err = command.ParseLabels(labels); err != nil {
				return err
			}
			switch {
			case len(args) > 1:
				h.Name = args[1]
			case args[0] == "-":
				return problem.Usagef("the artifact's name is missing: standard input has none")
			case !filepath.IsLocal(args[0]):
				return problem.Usagef("the artifact's name is missing: %s is not below this folder, so its path is none", args[0])
			default:
				h.Name = filepath.ToSlash(filepath.Clean(args[0]))
			}
			return uploadArtifact(c, cmd, h, args[0])
		},
	}
	cmd.Flags().StringVar(&h.MediaType, "media-type", "", "such as text/markdown (default: by the end of the name)")
	cmd.Flags().StringVar(&h.Description, "description", "", "one line for people")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "a label; repeatable")
	cmd.Flags().StringVar(&h.TaskId, "task", "", "task that it belongs to")
	cmd.Flags().BoolVar(&h.Announce, "announce", false, "publish the event artifact_shared")
	command.AddRequestID(cmd, &h.RequestId)
	return cmd
}

// uploadArtifact uploads a file, or standard input for -, and prints the version.
func uploadArtifact(c *command.Caller, cmd *cobra.Command, h *pb.ArtifactHeader, file string) error {
	content, done, err := transfer.OpenContent(c, cmd, file)
	if err != nil {
		return err
	}
	defer done()
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil {
		return err
	}
	answer, err := transfer.Upload(c, cmd, broker, h, content)
	if err != nil {
		return err
	}
	return c.Show(cmd, answer, func(w io.Writer) {
		v := answer.GetArtifact()
		note := prompt.Either(answer.GetSkipped(), "; the broker has the content already", "")
		note = prompt.Either(answer.GetUnchanged(), "; it has this content already", note)
		prompt.Say(w, "%s %s (%s%s)", prompt.Either(answer.GetUnchanged(), "kept", "uploaded"), prompt.OneLine(client.ArtifactReference(v)), output.Size(v.GetSize()), note)
	})
}

func newArtifactDownloadCommand(c *command.Caller) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "download NAME[@VERSION]",
		Short: "Write the content of an artifact into a file",
		Long: `Write the content of an artifact into a file, and compare its hash. The file
appears when it is complete, and replaces a file of the same name.`,
		Example: `  brokerctl artifact download docs/plan.md@2
  brokerctl artifact download data.json --to - | jq .`,
		Args:              command.Exactly("the artifact's name"),
		ValidArgsFunction: c.CompleteArgs(false, artifactNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.DownloadArtifactRequest{}
			request.Name, request.Version = client.ParseArtifact(args[0])
			if to == "" {
				to = path.Base(request.Name)
			}
			broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
			if err != nil {
				return err
			}
			if to == "-" {
				_, err := transfer.DownloadArtifact(c, cmd, broker, request, cmd.OutOrStdout())
				return err
			}
			v, err := transfer.DownloadFile(c, cmd, broker, request, to)
			if err != nil {
				return err
			}
			return c.Show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "downloaded %s (%s) to %s", prompt.OneLine(client.ArtifactReference(v)), output.Size(v.GetSize()), prompt.Clean(to))
			})
		},
	}
	cmd.Flags().StringVarP(&to, "to", "O", "", "file to write, or - for standard output (default: the last part of NAME)")
	return cmd
}
