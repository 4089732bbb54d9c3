package agentmessages

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"syscall"
	"time"

	"brokerd/cmd/brokerctl/bridge/engine"
)

// leaving has the files that the bridge has handled and that are to move to archive/ or rejected/, by their paths. A
// script may copy a file that it has just written, such as an event into the inboxes, so a file moves when it has not
// changed for the time of --settle. A file that changes before that is handled again. It is used by one goroutine; a
// bridge that starts again handles the files again, with the same result.
type leaving map[string]departure

// A departure is a file that is to move.
type departure struct {
	version fileVersion
	refused error // why it moves to rejected/; nil = it moves to archive/
}

// A fileVersion is what differs between the versions of a file.
type fileVersion struct {
	modified time.Time
	size     int64
	inode    uint64
	marked   bool // there is a read marker
}

// version returns the version of a file, without a look for a marker.
func versionOf(f *engine.Folder, name string) (fileVersion, error) {
	info, err := f.Lstat(name)
	if err != nil {
		return fileVersion{}, err
	}
	v := fileVersion{modified: info.ModTime(), size: info.Size()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		v.inode = stat.Ino
	}
	return v, nil
}

// has reports whether a file is to move.
func (l leaving) has(name string) bool {
	_, found := l[name]
	return found
}

// archive moves a file to archive/ when it has settled.
func (l *leaving) archive(f *format, name string) error {
	if f.b.Folder.Unsettled(name) {
		return l.wait(f, name, nil)
	}
	return f.archive(path.Dir(name), path.Base(name))
}

// reject moves a file to rejected/ when it has settled.
func (l *leaving) reject(ctx context.Context, f *format, name string, refused error) error {
	if f.b.Folder.Unsettled(name) {
		return l.wait(f, name, refused)
	}
	return f.b.Rejects.Move(ctx, name, name, engine.Plain(refused))
}

func (l *leaving) wait(f *format, name string, refused error) error {
	v, err := versionOf(f.b.Folder, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if *l == nil {
		*l = leaving{}
	}
	(*l)[name] = departure{version: v, refused: refused}
	return err
}

// move moves the files that have settled.
func (l *leaving) move(ctx context.Context, f *format) error {
	var failed error
	for name, d := range *l {
		v, err := versionOf(f.b.Folder, name)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && v != d.version: // it is handled again
		case err != nil || f.b.Folder.Unsettled(name):
			failed = errors.Join(failed, err)
			continue
		case d.refused == nil:
			err = f.archive(path.Dir(name), path.Base(name))
		default:
			err = f.b.Rejects.Move(ctx, name, name, engine.Plain(d.refused))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
			continue
		}
		delete(*l, name)
	}
	return failed
}
