package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// Contents keep what artifacts contain, each content under its SHA-256, for all sessions together. OpenFolder keeps
// them as files, InStore in the database. Their methods may be called concurrently, but a content must not be removed
// while the same content is kept.
type Contents interface {
	// Create begins a content, which is not there before it is kept.
	Create(ctx context.Context) (Draft, error)

	// Open opens a content for reading. Errors: fs.ErrNotExist.
	Open(ctx context.Context, sum string) (Content, error)

	// Remove removes a content or a draft, if it exists. It returns false if the content is being read and therefore
	// stays.
	Remove(ctx context.Context, name string) (bool, error)

	// Each calls fn with pages of the hashes of all contents, and of the names of all drafts.
	Each(ctx context.Context, fn func(contents, drafts []string) error) error

	// Check returns one line for each content of a session, according to q, that is missing or has another size, at
	// most so many.
	Check(q store.Querier, most int) ([]string, error)

	Close() error
}

// A Draft is a content that is being written, by one goroutine.
type Draft interface {
	io.Writer

	// Keep makes it the content of a hash, in place of the one that is there. It is on the disk at the next commit of
	// the store at the latest.
	Keep(sum string) error

	// Close removes the draft, unless it was kept.
	Close() error
}

// A Content is a content that is open for one goroutine.
type Content interface {
	io.ReaderAt
	io.Closer
	Size() int64 // in bytes
}

// The names of drafts begin and end so. Contents are named by their hashes.
const (
	draftPrefix = "upload-"
	draftSuffix = ".partial"
)

// pageNames is how many names Each passes at a time.
const pageNames = 1000

// sortNames splits names into those of contents and those of drafts. Other names are not the broker's.
func sortNames(names []string) (contents, drafts []string) {
	for _, name := range names {
		switch {
		case isHash(name):
			contents = append(contents, name)
		case strings.HasPrefix(name, draftPrefix) && strings.HasSuffix(name, draftSuffix):
			drafts = append(drafts, name)
		}
	}
	return contents, drafts
}

// isHash reports whether s is a SHA-256 as the broker writes it.
func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// has reports whether a content is there with a size.
func has(ctx context.Context, c Contents, sum string, size int64) (bool, error) {
	content, err := c.Open(ctx, sum)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return content.Size() == size, content.Close()
}

// wrongSize is a line of Check; a negative number of bytes says that there is no content.
func wrongSize(sum string, found, size int64) string {
	if found < 0 {
		return fmt.Sprintf("the content %s of artifacts is missing", sum)
	}
	return fmt.Sprintf("the content %s of artifacts has %d bytes instead of %d", sum, found, size)
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
