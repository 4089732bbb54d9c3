package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

func newArtifactUploadCommand(c *cli) *cobra.Command {
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
		Args: between(1, "the file", "the artifact's name"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return completeFiles(cmd, args, begun)
			}
			return c.completeArgs(false, nil, artifactNames)(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if h.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			switch {
			case len(args) > 1:
				h.Name = args[1]
			case args[0] == "-":
				return usagef("the artifact's name is missing: standard input has none")
			case !filepath.IsLocal(args[0]):
				return usagef("the artifact's name is missing: %s is not below this folder, so its path is none", args[0])
			default:
				h.Name = filepath.ToSlash(filepath.Clean(args[0]))
			}
			return c.uploadArtifact(cmd, h, args[0])
		},
	}
	cmd.Flags().StringVar(&h.MediaType, "media-type", "", "such as text/markdown (default: by the end of the name)")
	cmd.Flags().StringVar(&h.Description, "description", "", "one line for people")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "a label; repeatable")
	cmd.Flags().StringVar(&h.TaskId, "task", "", "task that it belongs to")
	cmd.Flags().BoolVar(&h.Announce, "announce", false, "publish the event artifact_shared")
	addRequestID(cmd, &h.RequestId)
	return cmd
}

// uploadArtifact uploads a file, or standard input for -, and prints the version.
func (c *cli) uploadArtifact(cmd *cobra.Command, h *pb.ArtifactHeader, file string) error {
	content, done, err := c.openContent(cmd, file)
	if err != nil {
		return err
	}
	defer done()
	broker, err := c.connect(cmd.Context(), c.retryNotice(cmd))
	if err != nil {
		return err
	}
	answer, err := c.upload(cmd, broker, h, content)
	if err != nil {
		return err
	}
	return c.show(cmd, answer, func(w io.Writer) {
		v := answer.GetArtifact()
		note := prompt.Either(answer.GetSkipped(), "; the broker has the content already", "")
		note = prompt.Either(answer.GetUnchanged(), "; it has this content already", note)
		prompt.Say(w, "%s %s (%s%s)", prompt.Either(answer.GetUnchanged(), "kept", "uploaded"), prompt.OneLine(client.ArtifactReference(v)), size(v.GetSize()), note)
	})
}

// upload uploads a content, and shows the progress.
func (c *cli) upload(cmd *cobra.Command, broker *client.Client, h *pb.ArtifactHeader, content *os.File) (
	*pb.UploadArtifactResponse, error) {
	if h.MediaType == "" {
		h.MediaType = mime.TypeByExtension(path.Ext(h.GetName()))
	}
	info, err := content.Stat()
	if err != nil {
		return nil, err
	}
	p := c.newProgress(cmd, "sent")
	defer p.end()
	return broker.UploadArtifact(cmd.Context(), h, content, func(sent int64) { p.show(sent, info.Size()) })
}

// openContent opens the content of an upload. It copies standard input into a temporary file, because
// an upload needs the size and hash first. The caller calls done in the end.
func (c *cli) openContent(cmd *cobra.Command, name string) (content *os.File, done func(), err error) {
	if name != "-" {
		if content, err = c.env.open(name); err != nil {
			return nil, nil, usagef("%v", err)
		}
		info, err := content.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = usagef("%s is no regular file; write its content to standard input and name it -", name)
		}
		if err != nil {
			return nil, nil, errors.Join(err, content.Close())
		}
		return content, func() { _ = content.Close() }, nil // it is only read
	}
	if content, err = os.CreateTemp(c.env.tempDir(), "brokerctl-upload-"); err != nil {
		return nil, nil, err
	}
	done = func() {
		_ = content.Close() // it is removed
		_ = os.Remove(content.Name())
	}
	if _, err := io.Copy(content, cmd.InOrStdin()); err != nil {
		done()
		return nil, nil, err
	}
	return content, done, nil
}

func newArtifactDownloadCommand(c *cli) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "download NAME[@VERSION]",
		Short: "Write the content of an artifact into a file",
		Long: `Write the content of an artifact into a file, and compare its hash. The file
appears when it is complete, and replaces a file of the same name.`,
		Example: `  brokerctl artifact download docs/plan.md@2
  brokerctl artifact download data.json --to - | jq .`,
		Args:              exactly("the artifact's name"),
		ValidArgsFunction: c.completeArgs(false, artifactNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.DownloadArtifactRequest{}
			request.Name, request.Version = client.ParseArtifact(args[0])
			if to == "" {
				to = path.Base(request.Name)
			}
			broker, err := c.connect(cmd.Context(), c.retryNotice(cmd))
			if err != nil {
				return err
			}
			if to == "-" {
				_, err := c.downloadArtifact(cmd, broker, request, cmd.OutOrStdout())
				return err
			}
			v, err := c.downloadFile(cmd, broker, request, to)
			if err != nil {
				return err
			}
			return c.show(cmd, v, func(w io.Writer) {
				prompt.Say(w, "downloaded %s (%s) to %s", prompt.OneLine(client.ArtifactReference(v)), size(v.GetSize()), prompt.Clean(to))
			})
		},
	}
	cmd.Flags().StringVarP(&to, "to", "O", "", "file to write, or - for standard output (default: the last part of NAME)")
	return cmd
}

func (c *cli) downloadArtifact(cmd *cobra.Command, broker *client.Client, request *pb.DownloadArtifactRequest, w io.Writer) (*pb.ArtifactVersion, error) {
	p := c.newProgress(cmd, "received")
	v, err := broker.DownloadArtifact(cmd.Context(), request, w, func(v *pb.ArtifactVersion, written int64) { p.show(written, v.GetSize()) })
	p.end()
	if errors.Is(err, client.ErrDamaged) {
		err = failf(exitError, "the content of %s is damaged: it does not have the hash %s", client.ArtifactReference(v), v.GetSha256())
	}
	return v, err
}

// downloadFile downloads into a temporary file beside the named one, and renames it when it is
// complete.
func (c *cli) downloadFile(cmd *cobra.Command, broker *client.Client, request *pb.DownloadArtifactRequest, to string) (v *pb.ArtifactVersion, err error) {
	file, err := os.CreateTemp(filepath.Dir(c.env.path(to)), "."+filepath.Base(to)+".*.partial")
	if errors.Is(err, os.ErrNotExist) {
		return nil, usagef("cannot write %s: the folder %s does not exist", to, filepath.Dir(to))
	}
	if err != nil {
		return nil, usagef("%v", err)
	}
	defer func() {
		if err != nil {
			_ = file.Close() // it is removed
			_ = os.Remove(file.Name())
		}
	}()
	if v, err = c.downloadArtifact(cmd, broker, request, file); err != nil {
		return v, err
	}
	if err = errors.Join(file.Chmod(0o644), file.Close()); err != nil { // CreateTemp permits its user alone
		return v, err
	}
	return v, os.Rename(file.Name(), c.env.path(to))
}

const (
	redrawEvery = 200 * time.Millisecond // on a terminal
	reportEvery = 10 * time.Second       // otherwise
)

// A progress reports how far a transfer is, on standard error.
type progress struct {
	w        io.Writer
	now      func() time.Time
	what     string
	terminal bool
	shown    time.Time
	drawn    bool // the terminal's line has a report
}

func (c *cli) newProgress(cmd *cobra.Command, what string) *progress {
	return &progress{w: cmd.ErrOrStderr(), now: c.env.Now, what: what, terminal: isTerminal(cmd.ErrOrStderr()), shown: c.env.Now()}
}

// show reports done of total bytes, unless the last report is too recent.
func (p *progress) show(done, total int64) {
	now, every := p.now(), reportEvery
	if p.terminal {
		every = redrawEvery
	}
	if now.Sub(p.shown) < every || total == 0 {
		return
	}
	p.shown = now
	text := fmt.Sprintf("brokerctl: %s %s of %s (%d %%)", p.what, size(done), size(total), 100*done/total)
	if p.terminal {
		p.drawn = true
		fmt.Fprintf(p.w, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// end clears the terminal's line.
func (p *progress) end() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// payloadArtifact uploads a payload that is larger than the session permits, and puts a reference to
// it in its place: into the payload and among the message's artifacts.
func (c *cli) payloadArtifact(cmd *cobra.Command, broker *client.Client, m *pb.Message, o contentOptions) error {
	source := o.payload
	fromFile := source == "-" || strings.HasPrefix(source, "@") && !strings.HasPrefix(source, "@@")
	if !fromFile || m.GetPayload() == "" {
		return nil
	}
	answer, err := broker.Sessions().GetSession(cmd.Context(), &pb.GetSessionRequest{})
	if err != nil {
		return err
	}
	limit := int(answer.GetSession().GetSettings().GetPayloadLimit())
	if len(m.GetPayload()) <= limit {
		return nil
	}
	h := &pb.ArtifactHeader{Name: payloadName(source), MediaType: "application/json", TaskId: m.GetTaskId(), Description: "payload of a message"}
	p := c.newProgress(cmd, "sent")
	total := int64(len(o.payloadText))
	stored, err := broker.UploadArtifact(cmd.Context(), h, strings.NewReader(o.payloadText), func(sent int64) { p.show(sent, total) })
	p.end()
	if err != nil {
		return err
	}
	v := stored.GetArtifact()
	reference := client.ArtifactReference(v)
	fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the payload has %s, and this session permits %s: it is the artifact %s, and the message has a reference to it\n",
		size(total), size(int64(limit)), prompt.OneLine(reference))
	m.Artifacts = append(m.Artifacts, reference)
	text, err := json.Marshal(struct {
		Artifact string `json:"artifact"`
		SHA256   string `json:"sha256"`
		Size     int64  `json:"size"`
	}{reference, v.GetSha256(), v.GetSize()})
	m.Payload = string(text)
	return err
}

// payloadName returns the name of the artifact for a payload from a file.
func payloadName(source string) string {
	base := "payload.json"
	if source != "-" {
		base = filepath.Base(source[1:])
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, base)
	return "payloads/" + strings.TrimRight(name, ".")
}
