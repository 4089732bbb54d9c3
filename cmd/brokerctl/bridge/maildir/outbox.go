package maildir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// An outbox sends the files of a folder, each once, and removes them.
type outbox struct {
	b       *engine.Bridge
	owner   string // names the folder below sending; an agent or a word that begins with "_"
	dir     string
	sending string
}

func newOutbox(b *engine.Bridge, owner, dir string) *outbox {
	return &outbox{b: b, owner: owner, dir: dir, sending: path.Join(engine.Private, "sending", owner)}
}

// open creates the folders.
func (o *outbox) open() error {
	return errors.Join(o.b.Folder.MkdirAll(o.dir, 0o755), o.b.Folder.MkdirAll(o.sending, 0o755))
}

// A reader makes a message of the content of a file. The error is mailfile.ErrIncomplete or a refusal.
type reader func(data []byte) (sender string, m *pb.Message, err error)

// send sends the files that have been taken, and then the next ones in order of their names, at most
// a batch. It returns how many files it has handled.
func (o *outbox) send(ctx context.Context, read reader) (int, error) {
	pending, err := o.b.Folder.List(o.sending)
	if err != nil {
		return 0, err
	}
	if len(pending) == 0 {
		if pending, err = o.take(read); err != nil {
			return 0, err
		}
	}
	for i, name := range pending {
		if err := o.sendFile(ctx, path.Join(o.sending, name), read); err != nil || i+1 == engine.Batch {
			return i + 1, err
		}
	}
	return len(pending), nil
}

// take takes the complete files of the folder, up to the first one that its writer still writes.
func (o *outbox) take(read reader) ([]string, error) {
	names, err := listWritten(o.b.Folder, o.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range names {
		from := path.Join(o.dir, name)
		if data, err := o.b.Folder.Read(from); err == nil {
			if _, _, err = read(data); errors.Is(err, mailfile.ErrIncomplete) && o.b.Folder.Unsettled(from) {
				break
			}
		} else if errors.Is(err, fs.ErrNotExist) {
			continue // its writer has renamed or removed it
		}
		to, err := take(o.b.Folder, from, o.owner)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("take %s: %w", from, err)
		}
		if all = append(all, path.Base(to)); len(all) == engine.Batch {
			break
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, o.b.Folder.SyncDir(o.sending)
}

// sendFile sends a taken file and removes it, or rejects it.
func (o *outbox) sendFile(ctx context.Context, name string, read reader) error {
	key, earlier, err := taken(name)
	if err != nil {
		return o.b.Rejects.Move(ctx, name, name, err.Error())
	}
	data, err := o.b.Folder.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var sender string
	var m *pb.Message
	if err == nil {
		sender, m, err = read(data)
	}
	if err == nil {
		err = o.b.Sender.Send(ctx, key, sender, m)
	}
	if mailfile.Rejected(err) {
		return o.b.Rejects.Move(ctx, name, path.Join(o.dir, earlier), err.Error())
	}
	if err != nil {
		return err
	}
	return o.b.Folder.Remove(name)
}

// listWritten is List without the names after which a name may be missing. A file that is created while
// a folder is read may be missing although a later one is in the list. So listWritten reads the
// folder twice: every file of the first list existed before the second list began.
func listWritten(f *engine.Folder, dir string) ([]string, error) {
	first, err := f.List(dir)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	names, err := f.List(dir)
	end, found := slices.BinarySearch(names, first[len(first)-1])
	if found {
		end++
	}
	return names[:end], err
}

// take moves a file of a folder to the bridge's own folder, where no writer changes it, and gives it
// a key. It returns its new name.
func take(f *engine.Folder, name, owner string) (string, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	base := path.Base(name)
	base = base[max(0, len(base)-200):] // the limit of a name is 255 bytes, and List reads the end
	taken := path.Join(engine.Private, "sending", owner, key.String()+"-"+base)
	return taken, f.Rename(name, taken)
}

// taken splits the name of a file that take has moved into its key and its earlier name.
func taken(name string) (uuid.UUID, string, error) {
	base := path.Base(name)
	if len(base) < 37 || base[36] != '-' {
		return uuid.UUID{}, "", fmt.Errorf("%s does not begin with a key", name)
	}
	key, err := uuid.Parse(base[:36])
	return key, base[37:], err
}
