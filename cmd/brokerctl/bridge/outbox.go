package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	pb "brokerd/gen/brokerd/v1"
)

// An outbox sends the files of a folder, each once, and removes them.
type outbox struct {
	b       *bridge
	owner   string // names the folder below sending; an agent or a word that begins with "_"
	dir     string
	sending string
}

func newOutbox(b *bridge, owner, dir string) *outbox {
	return &outbox{b: b, owner: owner, dir: dir, sending: path.Join(private, "sending", owner)}
}

// open creates the folders.
func (o *outbox) open() error {
	return errors.Join(o.b.root.MkdirAll(o.dir, 0o755), o.b.root.MkdirAll(o.sending, 0o755))
}

// A reader makes a message of the content of a file. The error is errIncomplete or a refusal.
type reader func(data []byte) (sender string, m *pb.Message, err error)

// send sends the files that have been taken, and then the next ones in order of their names, at most
// batch. It returns how many files it has handled.
func (o *outbox) send(ctx context.Context, read reader) (int, error) {
	pending, err := o.b.list(o.sending)
	if err != nil {
		return 0, err
	}
	if len(pending) == 0 {
		if pending, err = o.take(read); err != nil {
			return 0, err
		}
	}
	for i, name := range pending {
		if err := o.sendFile(ctx, path.Join(o.sending, name), read); err != nil || i+1 == batch {
			return i + 1, err
		}
	}
	return len(pending), nil
}

// take takes the complete files of the folder, up to the first one that its writer still writes.
func (o *outbox) take(read reader) ([]string, error) {
	names, err := o.b.listWritten(o.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range names {
		from := path.Join(o.dir, name)
		if data, err := o.b.read(from); err == nil {
			if _, _, err = read(data); errors.Is(err, errIncomplete) && o.b.unsettled(from) {
				break
			}
		} else if errors.Is(err, fs.ErrNotExist) {
			continue // its writer has renamed or removed it
		}
		to, err := o.b.take(from, o.owner)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("take %s: %w", from, err)
		}
		if all = append(all, path.Base(to)); len(all) == batch {
			break
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, syncDir(o.b.root, o.sending)
}

// sendFile sends a taken file and removes it, or rejects it.
func (o *outbox) sendFile(ctx context.Context, name string, read reader) error {
	key, earlier, err := taken(name)
	if err != nil {
		return o.b.reject(ctx, name, name, err.Error())
	}
	data, err := o.b.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var sender string
	var m *pb.Message
	if err == nil {
		sender, m, err = read(data)
	}
	if err == nil {
		err = o.b.send(ctx, key, sender, m)
	}
	if rejected(err) {
		return o.b.reject(ctx, name, path.Join(o.dir, earlier), err.Error())
	}
	if err != nil {
		return err
	}
	return o.b.root.Remove(name)
}
