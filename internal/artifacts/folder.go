package artifacts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"brokerd/internal/fault"
)

// partial ends the names of temporary files.
const partial = ".partial"

// A folder has one file per content, named by its hash, and the temporary files of uploads. All
// paths are opened through an os.Root. Its methods may be called concurrently.
type folder struct{ root *os.Root }

func openFolder(dir string) (*folder, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &folder{root}, nil
}

func (f *folder) close() error { return f.root.Close() }

// create returns a new temporary file and its name.
func (f *folder) create() (name string, file *os.File, err error) {
	name = "upload-" + rand.Text() + partial
	file, err = f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return name, file, err
}

// keep gives a temporary file, which was synced, the name of its content, and syncs the folder.
func (f *folder) keep(temporary, sum string) error {
	if err := f.root.Rename(temporary, sum); err != nil {
		return err
	}
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// remove removes a file, if it exists.
func (f *folder) remove(name string) error {
	if err := f.root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// open opens a content.
func (f *folder) open(sum string) (*os.File, error) { return f.root.Open(sum) }

// has reports whether a content has a file of the right size.
func (f *folder) has(sum string, size int64) bool {
	info, err := f.root.Lstat(sum)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// pageFiles is how many names each reads at a time.
const pageFiles = 1000

// each calls fn with pages of the names of the folder's own files: contents and temporary files.
func (f *folder) each(fn func(contents, temporary []string) error) error {
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it is only read
	for {
		names, err := dir.Readdirnames(pageFiles)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var contents, temporary []string
		for _, name := range names {
			switch {
			case isHash(name):
				contents = append(contents, name)
			case strings.HasPrefix(name, "upload-") && strings.HasSuffix(name, partial):
				temporary = append(temporary, name)
			}
		}
		if err := fn(contents, temporary); err != nil {
			return err
		}
	}
}

// isHash reports whether s is a SHA-256 as the broker writes it.
func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// diskFault is the error of an operation on a file: fault.Unavailable (DISK_FULL) if the file system
// is full.
func diskFault(action string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		full := fault.New(fault.Unavailable, "DISK_FULL",
			"the disk of the broker is full: nothing can be written until it has free space")
		full.Cause = err
		return full
	}
	return fmt.Errorf("%s: %w", action, err)
}
