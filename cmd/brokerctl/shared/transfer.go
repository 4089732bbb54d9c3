package shared

import (
	"cmp"
	"io"
	"path"
	"path/filepath"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var artifactUpload = command.Procedure[*pb.ArtifactHeader]{
	Page: command.Page{
		Use:   "upload FILE [NAME]",
		Short: "Add a version of an artifact",
		Long: `Add a version of an artifact. NAME is the path FILE if it is missing. FILE - is
standard input and needs a NAME. The broker reads no content that the session has
already. If the newest version has this content, it stays the newest.`,
		Example: `  brokerctl --agent builder-1 artifact upload docs/plan.md --announce
  make report | brokerctl --agent ci-1 artifact upload - reports/latest.txt`,
	},
	Args: []command.Arg{
		{Name: "the file", Kind: command.Kind{Files: true}},
		{Field: "name", Name: "the artifact's name", Kind: command.Kind{Words: artifactNames}},
	},
	Options: []command.Option{
		{Field: "media_type", Usage: "such as text/markdown (default: by the end of the name)"},
		{Field: "description", Usage: "one line for people"},
		{Field: "labels", Name: "label", Usage: "a label; repeatable"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "task that it belongs to"},
		{Field: "announce", Usage: "publish the event artifact_shared"},
		command.RequestID,
	},
	Run: func(g *command.Given, h *pb.ArtifactHeader) error {
		c, cmd, file := g.Caller, g.Cmd, g.Args[0]
		switch {
		case h.GetName() != "":
		case file == "-":
			return problem.Usagef("the artifact's name is missing: standard input has none")
		case !filepath.IsLocal(file):
			return problem.Usagef("the artifact's name is missing: %s is not below this folder, so its path is none", file)
		default:
			h.Name = filepath.ToSlash(filepath.Clean(file))
		}
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
			prompt.Say(w, "%s %s (%s%s)", prompt.Either(answer.GetUnchanged(), "kept", "uploaded"),
				prompt.OneLine(client.ArtifactReference(v)), output.Size(v.GetSize()), note)
		})
	},
}

var artifactDownload = command.Procedure[*pb.DownloadArtifactRequest]{
	Page: command.Page{
		Use:   "download NAME[@VERSION]",
		Short: "Write the content of an artifact into a file",
		Long: `Write the content of an artifact into a file, and compare its hash. The file
appears when it is complete, and replaces a file of the same name.`,
		Example: `  brokerctl artifact download docs/plan.md@2
  brokerctl artifact download data.json --to - | jq .`,
	},
	Args: oneArtifact,
	Options: []command.Option{{Name: "to", Short: "O", Type: "string",
		Usage: "file to write, or - for standard output (default: the last part of NAME)"}},
	Says: true,
	Run: func(g *command.Given, q *pb.DownloadArtifactRequest) error {
		c, cmd := g.Caller, g.Cmd
		q.Name, q.Version = client.ParseArtifact(g.Args[0])
		to := cmp.Or(g.Text("to"), path.Base(q.GetName()))
		broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
		if err != nil {
			return err
		}
		if to == "-" {
			_, err := transfer.DownloadArtifact(c, cmd, broker, q, cmd.OutOrStdout())
			return err
		}
		v, err := transfer.DownloadFile(c, cmd, broker, q, to)
		if err != nil {
			return err
		}
		return c.Show(cmd, v, func(w io.Writer) {
			prompt.Say(w, "downloaded %s (%s) to %s", prompt.OneLine(client.ArtifactReference(v)), output.Size(v.GetSize()),
				prompt.Clean(to))
		})
	},
}
