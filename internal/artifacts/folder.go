package artifacts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"brokerd/internal/store"
)

// A folder has one file per content, named by its hash, and the temporary files of uploads. All
// paths are opened through an os.Root. It implements Contents.
type folder struct{ root *os.Root }

// OpenFolder returns contents that are files in a folder. If the folder is missing, but not the one in which it
// belongs, OpenFolder makes it.
func OpenFolder(dir string) (Contents, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("open artifacts: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open artifacts: %w", err)
	}
	return &folder{root}, nil
}

// Close implements Contents.
func (f *folder) Close() error { return f.root.Close() }

// A draftFile is a temporary file. It implements Draft.
type draftFile struct {
	*os.File
	folder *folder
	name   string // empty once it was kept
}

// Create implements Contents.
func (f *folder) Create(context.Context) (Draft, error) {
	name := draftPrefix + rand.Text() + draftSuffix
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, diskFault("create a file for an upload", err)
	}
	return &draftFile{file, f, name}, nil
}

// Write implements io.Writer.
func (d *draftFile) Write(p []byte) (int, error) {
	n, err := d.File.Write(p)
	if err != nil {
		err = diskFault("write the content of an upload", err)
	}
	return n, err
}

// Keep implements Draft. It syncs the file, gives it the name of its content, and syncs the folder.
func (d *draftFile) Keep(sum string) error {
	if err := d.Sync(); err != nil {
		return diskFault("sync an upload", err)
	}
	if err := d.folder.root.Rename(d.name, sum); err != nil {
		return diskFault("rename an upload", err)
	}
	d.name = ""
	dir, err := d.folder.root.Open(".")
	if err != nil {
		return diskFault("rename an upload", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return diskFault("rename an upload", err)
	}
	return nil
}

// Close implements Draft.
func (d *draftFile) Close() error {
	err := d.File.Close()
	if d.name != "" {
		_, removed := d.folder.Remove(context.Background(), d.name)
		err = errors.Join(err, removed)
	}
	return err
}

// Remove implements Contents. Who reads a file keeps it.
func (f *folder) Remove(_ context.Context, name string) (bool, error) {
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}

// A contentFile is the file of a content. It implements Content.
type contentFile struct {
	*os.File
	size int64
}

// Size implements Content.
func (c *contentFile) Size() int64 { return c.size }

// Open implements Contents.
func (f *folder) Open(_ context.Context, sum string) (Content, error) {
	file, err := f.root.Open(sum)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &contentFile{file, info.Size()}, nil
}

// Each implements Contents.
func (f *folder) Each(_ context.Context, fn func(contents, drafts []string) error) error {
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it is only read
	for {
		names, err := dir.Readdirnames(pageNames)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(sortNames(names)); err != nil {
			return err
		}
	}
}

// Check implements Contents.
func (f *folder) Check(q store.Querier, most int) (problems []string, err error) {
	sizes := map[string]int64{}
	if err := EachContent(q, func(sum string, size int64) { sizes[sum] = size }); err != nil {
		return nil, err
	}
	for sum, size := range sizes {
		if len(problems) == most {
			break
		}
		info, err := f.root.Stat(sum)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, wrongSize(sum, -1, size))
		case err != nil:
			problems = append(problems, fmt.Sprintf("the content %s of artifacts cannot be read: %v", sum, err))
		case info.Size() != size:
			problems = append(problems, wrongSize(sum, info.Size(), size))
		}
	}
	return problems, nil
}
