package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// MaxFile is the size in bytes above which a file cannot be a message: the broker's own limit is
// 1 MiB unless the session permits more.
const MaxFile = 16 << 20

// A Folder is the folder that the bridge synchronises. Its names are relative to it. It is safe for concurrent use.
type Folder struct {
	*os.Root
	settle time.Duration
	future sightings
}

// WriteNew writes a file and syncs it.
func (f *Folder) WriteNew(name string, data []byte) error {
	file, err := f.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// SyncDir makes the names of a folder durable.
func (f *Folder) SyncDir(name string) error {
	d, err := f.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// List returns the names of a folder in order, without those that begin with a dot or that end as
// the names of temporary files do. A folder that does not exist has none.
func (f *Folder) List(dir string) ([]string, error) {
	d, err := f.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	err = errors.Join(err, d.Close())
	names = slices.DeleteFunc(names, func(name string) bool {
		ext := path.Ext(name)
		return name[0] == '.' || name[len(name)-1] == '~' || ext == ".tmp" || ext == ".part" || ext == ".swp"
	})
	slices.Sort(names)
	return names, err
}

// Folders returns the names of the folders in a folder, without those that are hidden.
func (f *Folder) Folders(dir string) ([]string, error) {
	names, err := f.List(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := f.Lstat(path.Join(dir, name))
		return err != nil || !info.IsDir()
	}), err
}

// Read returns the content of a regular file. A refusal says that the file cannot be a message.
func (f *Folder) Read(name string) ([]byte, error) {
	info, err := f.Lstat(name)
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, mailfile.Refusalf("it is not a regular file but %s", Describe(info.Mode()))
	case info.Size() > MaxFile:
		return nil, mailfile.Refusalf("it has %d bytes; a message has at most %d", info.Size(), MaxFile)
	}
	data, err := f.ReadFile(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil, mailfile.Refusal("the bridge is not permitted to read it")
	}
	return data, err
}

// Describe returns what something is that is not a regular file.
func Describe(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	}
	return "a device or a socket"
}

// Unsettled reports whether a file has changed in the last Settle of the options, so that its writer may be at work.
func (f *Folder) Unsettled(name string) bool {
	info, err := f.Lstat(name)
	return err == nil && info.Mode().IsRegular() && f.ChangedWithin(name, info, f.settle)
}

// ChangedWithin reports whether a file has changed in the last d. The time of a change may be in the future: clocks
// differ. It then counts from when the bridge first saw it.
func (f *Folder) ChangedWithin(name string, info fs.FileInfo, d time.Duration) bool {
	age := time.Since(info.ModTime())
	if age < 0 {
		age = time.Since(f.future.since(name, stamp{info.Size(), info.ModTime()}))
	}
	return age < d
}

// sightings has when the bridge first saw the versions of files that are from the future. It is safe for concurrent
// use.
type sightings struct {
	mu   sync.Mutex // guards seen
	seen map[string]sighting
}

// A sighting is when the bridge first saw a version of a file.
type sighting struct {
	version stamp
	at      time.Time
}

// A stamp changes when a file is written.
type stamp struct {
	size    int64
	changed time.Time
}

// since returns when the bridge first saw a version of a file.
func (s *sightings) since(name string, version stamp) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, known := s.seen[name]
	if known && found.version == version {
		return found.at
	}
	if s.seen == nil || len(s.seen) == 10_000 { // the files that are still there count from now on
		s.seen = map[string]sighting{}
	}
	now := time.Now()
	s.seen[name] = sighting{version, now}
	return now
}

// Walk calls fn for everything in a folder and below that is not hidden, and does not follow
// symbolic links. The error names the folders and files that it could not read; it reads the others.
func (f *Folder) Walk(dir string, fn func(name string, info fs.FileInfo)) error {
	var failed error
	err := fs.WalkDir(f.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil { // of a folder
			if !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
			return nil
		}
		if path.Base(name)[0] == '.' {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err == nil {
			fn(name, info)
		} else if !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
		return nil
	})
	return errors.Join(err, failed)
}

// Upload adds the content of the file with the name of an artifact as a version, unless the newest version is the same.
func Upload(ctx context.Context, f *Folder, broker *client.Client, header *pb.ArtifactHeader) error {
	file, err := f.Open(header.GetName())
	if errors.Is(err, fs.ErrPermission) {
		return mailfile.Refusal("the bridge is not permitted to read it")
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	_, err = broker.UploadArtifact(ctx, header, file, nil)
	return err
}
