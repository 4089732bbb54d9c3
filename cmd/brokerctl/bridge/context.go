package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/google/uuid"

	pb "brokerd/gen/brokerd/v1"
)

// contextQuiet is how long a shared file must be unchanged before the bridge uploads it.
const contextQuiet = time.Second

// A sharedFiles is the part of a folder whose files are artifacts of the same names. A changed file
// is a new version; the versions of a deleted file stay.
type sharedFiles struct {
	b        *bridge
	dir      string
	uploaded map[string]stamp // what the bridge has uploaded, or reported, in this run
}

// A stamp changes when a file is written.
type stamp struct {
	size    int64
	changed time.Time
}

func newSharedFiles(b *bridge, dir string) *sharedFiles {
	return &sharedFiles{b: b, dir: dir, uploaded: map[string]stamp{}}
}

func (p *sharedFiles) open(context.Context) error { return nil }

func (p *sharedFiles) deliver(context.Context, []*pb.Message) error { return nil }

// collect uploads the files that have changed. At the start it offers every file, and the broker adds
// no version for a content that it has.
func (p *sharedFiles) collect(ctx context.Context) (bool, error) {
	var failed error
	err := p.b.walk(p.dir, func(name string, info fs.FileInfo) {
		now := stamp{info.Size(), info.ModTime()}
		if !info.Mode().IsRegular() || p.uploaded[name] == now || ctx.Err() != nil ||
			p.b.changedWithin(name, info, min(contextQuiet, p.b.Settle)) {
			return
		}
		err := refused(p.b.upload(ctx, &pb.ArtifactHeader{Name: name, Announce: true}))
		if rejected(err) {
			p.b.Log(fmt.Sprintf("does not share %s: %v", name, err))
			key := uuid.NewSHA1(uuid.NameSpaceURL, []byte(fmt.Sprintf("%s %s %v", p.b.id, name, now)))
			err = p.b.event(ctx, key, "file_refused", fmt.Sprintf("%s: %v", name, err))
		}
		if err != nil {
			failed = fmt.Errorf("upload %s: %w", name, err)
			return
		}
		p.uploaded[name] = now
	})
	return false, errors.Join(err, failed)
}

// upload adds the content of the file with the name of an artifact as a version, unless the newest version is the same.
func (b *bridge) upload(ctx context.Context, header *pb.ArtifactHeader) error {
	file, err := b.root.Open(header.GetName())
	if errors.Is(err, fs.ErrPermission) {
		return refusal("the bridge is not permitted to read it")
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	_, err = b.broker.UploadArtifact(ctx, header, file, nil)
	return err
}

// walk calls fn for everything in a folder and below that is not hidden, and does not follow
// symbolic links. The error names the folders and files that it could not read; it reads the others.
func (b *bridge) walk(dir string, fn func(name string, info fs.FileInfo)) error {
	var failed error
	err := fs.WalkDir(b.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
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
