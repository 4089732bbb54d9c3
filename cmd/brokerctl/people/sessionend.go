package people

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var sessionClose = command.Spec[*pb.CloseSessionRequest, *pb.CloseSessionResponse]{
	Page: command.Page{
		Use:   "close NAME",
		Short: "Close a session for good (operators)",
		Long: `Close a session for good: the broker cancels unfinished messages, ends streams
and waits, and refuses changes. The session can still be read, exported and
deleted. Closing twice is no error.`,
		Example: `  brokerctl session close website --reason "launched"`,
	},
	Connect: outside,
	Args:    []command.Arg{sessionName},
	Options: []command.Option{{Field: "reason", Usage: "why, for people"}, command.RequestID},
	Shown:   "session",
	Text:    sessionText[*pb.CloseSessionRequest, *pb.CloseSessionResponse],
}

var sessionDelete = command.Spec[*pb.DeleteSessionRequest, *pb.DeleteSessionResponse]{
	Page: command.Page{
		Use:   "delete NAME --yes",
		Short: "Archive a closed session and delete it (operators)",
		Long: `Export a closed session into the broker's archive, if it has one, then delete the
session. If this is interrupted, the broker finishes it at its next start.`,
		Example: `  brokerctl session delete website --yes`,
	},
	Connect: outside,
	Args:    []command.Arg{sessionName},
	Options: []command.Option{{Name: "yes", Type: "bool", Usage: "confirm"}, command.RequestID},
	Prepare: func(g *command.Given, q *pb.DeleteSessionRequest) error {
		if !g.On("yes") {
			return problem.Usagef("this removes the session %s and all that is in it: say --yes if you mean that", q.GetName())
		}
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.DeleteSessionRequest, a *pb.DeleteSessionResponse) {
		switch dir := a.GetArchive(); {
		case dir == "":
			prompt.Say(w, "deleted %s; the broker has no archive", q.GetName())
		case filepath.IsAbs(dir):
			prompt.Say(w, "deleted %s; its export is in %s", q.GetName(), dir)
		default:
			prompt.Say(w, "deleted %s; its export is in %s, below the broker's data folder", q.GetName(), dir)
		}
	},
}

var sessionExport = command.Procedure[*pb.ExportSessionRequest]{
	Page: command.Page{
		Use:   "export [NAME] --dir DIR",
		Short: "Write a session into files (operators)",
		Long: `Write a session, with its archive, into JSON Lines files, and check them against
the checksums of the manifest. Without NAME, the current session is meant. If the
session is open, each file is a snapshot of a different moment.`,
		Example: `  brokerctl session export website --dir website.export`,
	},
	Args: []command.Arg{{Field: "name", Name: "the session's name", Kind: words.Session}},
	Options: []command.Option{{Name: "dir", Type: "string", Kind: command.Folder,
		Usage: "folder to write to; created if missing, files with the same names are replaced"}},
	Run: func(g *command.Given, q *pb.ExportSessionRequest) error {
		if g.Text("dir") == "" {
			return command.MissingFlag("dir", "the folder to write to")
		}
		broker, err := g.Connect(g.Cmd.Context())
		if err != nil {
			return err
		}
		stream, err := broker.Sessions().ExportSession(g.Cmd.Context(), q)
		if err != nil {
			return err
		}
		dir := g.Env.Path(g.Text("dir"))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		x := &exportFolder{dir: dir, sums: map[string]string{}}
		if err := errors.Join(x.receive(stream), x.end()); err != nil {
			return err
		}
		return x.report(g.Caller, g.Cmd.OutOrStdout())
	},
}

const (
	manifestFile   = "manifest.json"
	contentsFolder = "artifacts" // of the contents of artifacts
)

// An exportFolder writes the files of an export.
type exportFolder struct {
	dir      string
	name     string
	file     *os.File
	sum      hash.Hash
	sums     map[string]string // of the files written so far
	manifest bytes.Buffer
}

func (x *exportFolder) receive(stream grpc.ServerStreamingClient[pb.ExportSessionResponse]) error {
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := x.write(piece.GetFile(), piece.GetData()); err != nil {
			return err
		}
	}
}

func (x *exportFolder) write(name string, data []byte) error {
	if name != x.name {
		if err := x.end(); err != nil {
			return err
		}
		sub := filepath.Dir(name)
		if !filepath.IsLocal(name) || sub != "." && sub != contentsFolder {
			return fmt.Errorf("the broker sent a file named %q", name)
		}
		if err := os.MkdirAll(filepath.Join(x.dir, sub), 0o700); err != nil {
			return err
		}
		file, err := os.OpenFile(filepath.Join(x.dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		x.name, x.file, x.sum = name, file, sha256.New()
	}
	if name == manifestFile {
		x.manifest.Write(data)
	}
	x.sum.Write(data)
	_, err := x.file.Write(data)
	return err
}

func (x *exportFolder) end() error {
	if x.file == nil {
		return nil
	}
	x.sums[x.name] = hex.EncodeToString(x.sum.Sum(nil))
	err := errors.Join(x.file.Sync(), x.file.Close())
	x.file = nil
	return err
}

// report compares what was written with the manifest, and tells.
func (x *exportFolder) report(c *command.Caller, w io.Writer) error {
	var m struct {
		Session  string
		Revision int64
		Files    []struct {
			Name                   string
			Bytes, Lines, Archived int64
			SHA256                 string
		}
	}
	if x.manifest.Len() == 0 {
		return errors.New("the export broke off: it has no manifest")
	}
	if err := json.Unmarshal(x.manifest.Bytes(), &m); err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	t := c.NewTable(w, table.Column{Name: "FILE", Min: 16}, table.Column{Name: "LINES"},
		table.Column{Name: "OF THE ARCHIVE", Rank: 1}, table.Column{Name: "BYTES"})
	contents, bytes := 0, int64(0)
	for _, f := range m.Files {
		if x.sums[f.Name] != f.SHA256 {
			return fmt.Errorf("%s is not what the manifest says: its SHA-256 is %s", f.Name, x.sums[f.Name])
		}
		if filepath.Dir(f.Name) == contentsFolder {
			contents, bytes = contents+1, bytes+f.Bytes
			continue
		}
		t.Row(f.Name, fmt.Sprint(f.Lines), fmt.Sprint(f.Archived), fmt.Sprint(f.Bytes))
	}
	if contents > 0 {
		t.Row(fmt.Sprintf("%s/ (%s)", contentsFolder, prompt.Count(contents, "file")), "", "", fmt.Sprint(bytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	prompt.Say(w, "exported %s at revision %d to %s, checksums compared", m.Session, m.Revision, x.dir)
	return nil
}
