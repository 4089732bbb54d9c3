package jsonl

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
)

const (
	mailboxDir = "mailbox"
	mailboxExt = ".jsonl"
)

// format is the format jsonl: one file per agent, to which every sender appends lines.
type format struct{ b *engine.Bridge }

// Kind returns the kind of the format jsonl.
func Kind() engine.Kind { return engine.Kind{Name: "jsonl", Root: teamFolder, Make: newFormat} }

func newFormat(b *engine.Bridge) engine.Format { return &format{b} }

// teamFolder returns the folder that has mailbox/: dir, or the only folder in it that has one.
func teamFolder(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, mailboxDir)); err == nil {
		return dir, nil
	}
	teams, err := filepath.Glob(filepath.Join(dir, "*", mailboxDir))
	switch {
	case err != nil || len(teams) == 0:
		return dir, err
	case len(teams) > 1:
		return "", fmt.Errorf("%s has the teams %s: name the folder of one", dir, strings.Join(teams, ", "))
	}
	return filepath.Dir(teams[0]), nil
}

// Prepare notes, at the first start, where the history of each file ends, and keeps it as an artifact.
func (f *format) Prepare(ctx context.Context) error {
	if err := f.b.Folder.MkdirAll(mailboxDir, 0o755); err != nil {
		return err
	}
	marker := f.b.ID + "/history"
	before, err := f.b.State.List(ctx, f.b.ID+"/")
	if err != nil {
		return err
	}
	if _, known := before[marker]; known {
		return nil
	}
	var changes []*pb.StateChange
	names, err := f.Agents()
	for _, name := range names {
		if _, known := before[positionKey(f.b.ID, name)]; known || f.b.SendHistory || !engine.AgentName.MatchString(name) {
			continue
		}
		at, err := f.history(ctx, name)
		if err != nil {
			return fmt.Errorf("read the history of %s: %w", name, err)
		}
		changes = append(changes, engine.PutChange(positionKey(f.b.ID, name), at.String()))
		if len(changes) == 500 {
			if err := f.b.State.Change(ctx, changes); err != nil {
				return err
			}
			changes = nil
		}
	}
	if err != nil {
		return err
	}
	return f.b.State.Change(ctx, append(changes, engine.PutChange(marker, "jsonl")))
}

// history keeps the complete lines of a file as an artifact and returns the position after them.
func (f *format) history(ctx context.Context, agent string) (position, error) {
	file, err := f.b.Folder.Open(mailboxFile(agent))
	if err != nil {
		return position{}, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	var at position
	err = eachLine(file, at, func(_ []byte, next position) error { at = next; return nil })
	if err != nil || at.offset == 0 {
		return at, err
	}
	header := &pb.ArtifactHeader{Name: "bridge/" + f.b.ID + "/" + mailboxFile(agent), MediaType: "application/jsonl",
		Description: fmt.Sprintf("what the mailbox of %s had before the bridge", agent)}
	if _, err := f.b.Broker.UploadArtifact(ctx, header, io.NewSectionReader(file, 0, at.offset), nil); err != nil {
		return position{}, err
	}
	f.b.Log(fmt.Sprintf("%s: %d lines are history", mailboxFile(agent), at.line))
	return at, nil
}

func (f *format) Agents() ([]string, error) {
	names, err := f.b.Folder.List(mailboxDir)
	var agents []string
	for _, name := range names {
		agent, ok := strings.CutSuffix(name, mailboxExt)
		info, err := f.b.Folder.Lstat(path.Join(mailboxDir, name))
		if ok && err == nil && info.Mode().IsRegular() {
			agents = append(agents, agent)
		}
	}
	return agents, err
}

func (f *format) Dirs() ([]string, error) { return []string{mailboxDir}, nil }

func (f *format) Part(agent string, _ bool) engine.Part {
	if agent == "" {
		return &strays{f.b}
	}
	return &mailbox{b: f.b, agent: agent, file: mailboxFile(agent), seen: map[uuid.UUID]bool{}}
}

func mailboxFile(agent string) string { return path.Join(mailboxDir, agent+mailboxExt) }
