package transfer

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
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// Upload uploads a content, and shows the progress.
func Upload(c *command.Caller, cmd *cobra.Command, broker *client.Client, h *pb.ArtifactHeader, content *os.File) (
	*pb.UploadArtifactResponse, error) {
	if h.MediaType == "" {
		h.MediaType = mime.TypeByExtension(path.Ext(h.GetName()))
	}
	info, err := content.Stat()
	if err != nil {
		return nil, err
	}
	p := NewProgress(c, cmd, "sent")
	defer p.End()
	return broker.UploadArtifact(cmd.Context(), h, content, func(sent int64) { p.Show(sent, info.Size()) })
}

// OpenContent opens the content of an upload. It copies standard input into a temporary file, because
// an upload needs the size and hash first. The caller calls done in the end.
func OpenContent(c *command.Caller, cmd *cobra.Command, name string) (content *os.File, done func(), err error) {
	if name != "-" {
		if content, err = c.Env.Open(name); err != nil {
			return nil, nil, problem.Usagef("%v", err)
		}
		info, err := content.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = problem.Usagef("%s is no regular file; write its content to standard input and name it -", name)
		}
		if err != nil {
			return nil, nil, errors.Join(err, content.Close())
		}
		return content, func() { _ = content.Close() }, nil // it is only read
	}
	if content, err = os.CreateTemp(c.Env.TempDir(), "brokerctl-upload-"); err != nil {
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

// DownloadArtifact writes the content of an artifact to w, and shows the progress.
func DownloadArtifact(
	c *command.Caller, cmd *cobra.Command, broker *client.Client, request *pb.DownloadArtifactRequest, w io.Writer,
) (*pb.ArtifactVersion, error) {
	p := NewProgress(c, cmd, "received")
	show := func(v *pb.ArtifactVersion, written int64) { p.Show(written, v.GetSize()) }
	v, err := broker.DownloadArtifact(cmd.Context(), request, w, show)
	p.End()
	if errors.Is(err, client.ErrDamaged) {
		err = problem.Failf(problem.ExitError, "the content of %s is damaged: it does not have the hash %s",
			client.ArtifactReference(v), v.GetSha256())
	}
	return v, err
}

// DownloadFile downloads into a file, which appears when it is complete.
func DownloadFile(
	c *command.Caller, cmd *cobra.Command, broker *client.Client, request *pb.DownloadArtifactRequest, to string,
) (*pb.ArtifactVersion, error) {
	return WriteFile(c, to, func(file *os.File) (v *pb.ArtifactVersion, err error) {
		if v, err = DownloadArtifact(c, cmd, broker, request, file); err == nil {
			err = file.Chmod(0o644) // CreateTemp permits its user alone
		}
		return v, err
	})
}

// WriteFile writes into a temporary file beside the named one, and renames it when it is complete.
func WriteFile[T any](c *command.Caller, to string, write func(*os.File) (T, error)) (written T, err error) {
	file, err := os.CreateTemp(filepath.Dir(c.Env.Path(to)), "."+filepath.Base(to)+".*.partial")
	if errors.Is(err, os.ErrNotExist) {
		return written, problem.Usagef("cannot write %s: the folder %s does not exist", to, filepath.Dir(to))
	}
	if err != nil {
		return written, problem.Usagef("%v", err)
	}
	if written, err = write(file); err == nil {
		err = file.Close()
	}
	if err == nil {
		err = os.Rename(file.Name(), c.Env.Path(to))
	}
	if err != nil {
		_ = file.Close() // it is removed
		_ = os.Remove(file.Name())
	}
	return written, err
}

// A Progress reports how far a transfer is, on standard error.
type Progress struct {
	w        io.Writer
	now      func() time.Time
	what     string
	terminal bool
	shown    time.Time
	drawn    bool // the terminal's line has a report
}

// NewProgress returns the progress of a transfer; what is such as "sent".
func NewProgress(c *command.Caller, cmd *cobra.Command, what string) *Progress {
	w := cmd.ErrOrStderr()
	return &Progress{w: w, now: c.Env.Now, what: what, terminal: output.IsTerminal(w), shown: c.Env.Now()}
}

// Show reports done of total bytes, unless the last report is too recent.
func (p *Progress) Show(done, total int64) {
	now, every := p.now(), reportEvery
	if p.terminal {
		every = redrawEvery
	}
	if now.Sub(p.shown) < every || total == 0 {
		return
	}
	p.shown = now
	text := fmt.Sprintf("brokerctl: %s %s of %s (%d %%)", p.what, output.Size(done), output.Size(total), 100*done/total)
	if p.terminal {
		p.drawn = true
		fmt.Fprintf(p.w, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// End clears the terminal's line.
func (p *Progress) End() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

const (
	redrawEvery = 200 * time.Millisecond // on a terminal
	reportEvery = 10 * time.Second       // otherwise
)

// PayloadArtifact uploads a payload that is larger than the session permits, and puts a reference to
// it in its place: into the payload and among the message's artifacts.
// asRead is the payload with the white space around it, and --payload says where it was read.
func PayloadArtifact(g *command.Given, broker *client.Client, m *pb.Message, asRead string) error {
	c, cmd, source := g.Caller, g.Cmd, g.Text("payload")
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
	h := &pb.ArtifactHeader{
		Name: payloadName(source), MediaType: "application/json", TaskId: m.GetTaskId(),
		Description: "payload of a message",
	}
	p := NewProgress(c, cmd, "sent")
	total := int64(len(asRead))
	show := func(sent int64) { p.Show(sent, total) }
	stored, err := broker.UploadArtifact(cmd.Context(), h, strings.NewReader(asRead), show)
	p.End()
	if err != nil {
		return err
	}
	v := stored.GetArtifact()
	reference := client.ArtifactReference(v)
	fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the payload has %s, and this session permits %s: "+
		"it is the artifact %s, and the message has a reference to it\n",
		output.Size(total), output.Size(int64(limit)), prompt.OneLine(reference))
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
