package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// downloadChunk is how many bytes of a content one frame has.
const downloadChunk = 64 << 10

// A Part says what to download.
type Part struct {
	Name    string
	Version int64  // 0 = the newest
	SHA256  string // in place of Name and Version, unless it is empty
	Offset  int64
	Length  int64 // 0 = up to the end
}

// Download passes a version to begin, and then its content to send, piece by piece. A piece is valid
// until send returns. Errors: fault.NotFound; fault.OutOfRange for an offset beyond the size;
// fault.Precondition (CONTENT_MISSING); fault.Unavailable when the repository drains; and those of
// begin and send.
func (r *Repository) Download(ctx context.Context, c identity.Caller, p Part, begin func(Version) error, send func([]byte) error) error {
	v, file, err := r.open(ctx, c, p)
	if err != nil {
		return fmt.Errorf("download artifact: %w", err)
	}
	defer func() { _ = file.Close() }() // it is only read
	if p.Offset > v.Size {
		return fault.New(fault.OutOfRange, "OFFSET_TOO_LARGE", "offset is %d, and version %d of %q has %d bytes", p.Offset, v.Number, v.Name, v.Size).
			With("size", strconv.FormatInt(v.Size, 10))
	}
	length := v.Size - p.Offset
	if p.Length > 0 {
		length = min(length, p.Length)
	}
	if err := begin(v); err != nil {
		return err
	}
	buffer := make([]byte, downloadChunk)
	for content := io.NewSectionReader(file, p.Offset, length); ; {
		select {
		case <-r.drained:
			return shuttingDown()
		default:
		}
		n, err := io.ReadFull(content, buffer)
		if n > 0 {
			if err := send(buffer[:n]); err != nil {
				return err
			}
			r.transferred("download", int64(n))
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			r.count("downloaded")
			return nil
		case err != nil:
			return fmt.Errorf("read the content of %s: %w", v.Name, err)
		}
	}
}

// open finds a version and opens its content. The content of a version that is deleted in between
// may be missing: open then finds out that the version is missing too.
func (r *Repository) open(ctx context.Context, c identity.Caller, p Part) (Version, *os.File, error) {
	var v Version
	look := func() error {
		return r.Store.Read(ctx, func(snap *store.Snapshot) error {
			s, err := r.Directory.Session(snap, c.Session)
			if err != nil {
				return err
			}
			v, err = r.version(snap, s.ID, p)
			return err
		})
	}
	for range 2 {
		if err := look(); err != nil {
			return v, nil, err
		}
		file, err := r.folder.open(v.SHA256)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return v, file, err
		}
	}
	return v, nil, fault.New(fault.Precondition, "CONTENT_MISSING",
		"the content of version %d of %q is missing in the broker's data folder (%s/%s): restore the file from a backup, or upload the same content again",
		v.Number, v.Name, Folder, v.SHA256)
}

// version finds the version that a Part names.
func (r *Repository) version(q store.Querier, session int64, p Part) (Version, error) {
	if p.SHA256 == "" {
		return find(q, session, p.Name, p.Version)
	}
	v, found, err := oneVersion(q.Query(selectByContent, session, p.SHA256))
	if err == nil && !found {
		err = fault.Missing("artifact", p.SHA256, "no artifact of this session has a content with the hash %s", p.SHA256)
	}
	return v, err
}
