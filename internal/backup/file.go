package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"brokerd/internal/store"
)

// format is the version of the file's layout. A brokerd refuses a higher one than it knows.
const format = 1

// The entries of a backup.
const (
	manifestEntry  = "manifest.json"
	databaseEntry  = store.DatabaseFile
	contentsFolder = "artifacts/"
	sumEntry       = "SHA256"
)

// tarBlock is the unit of a tar archive in bytes. Headers and the end of the archive take whole blocks.
const tarBlock = 512

// An export is a backup that is being written.
type export struct {
	contents Contents
	manifest Manifest
	files    []Content
}

// write passes the backup to a sink.
func (x *export) write(ctx context.Context, database io.ReadSeeker, to Sink) (Summary, error) {
	sum := sha256.New()
	size, err := io.Copy(sum, database)
	if err != nil {
		return Summary{}, fmt.Errorf("read the copy of the database: %w", err)
	}
	if _, err := database.Seek(0, io.SeekStart); err != nil {
		return Summary{}, err
	}
	m := &x.manifest
	m.Database = Database{Bytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}
	m.Contents = len(x.files)
	for _, f := range x.files {
		m.ContentBytes += f.Size
	}
	manifest, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Summary{}, err
	}
	manifest = append(manifest, '\n')
	if err := to.Begin(x.size(int64(len(manifest)))); err != nil {
		return Summary{}, err
	}
	b := bufio.NewWriterSize(to, chunkBytes)
	w := &summed{ctx: ctx, to: b, sum: sha256.New()}
	t := tar.NewWriter(w)
	if err := x.entry(t, manifestEntry, int64(len(manifest)), bytes.NewReader(manifest)); err != nil {
		return Summary{}, err
	}
	if err := x.entry(t, databaseEntry, size, database); err != nil {
		return Summary{}, err
	}
	for _, f := range x.files {
		if err := x.content(t, f); err != nil {
			return Summary{}, err
		}
	}
	if err := t.Flush(); err != nil {
		return Summary{}, err
	}
	line := hex.EncodeToString(w.sum.Sum(nil)) + "\n"
	if err := x.entry(t, sumEntry, int64(len(line)), bytes.NewReader([]byte(line))); err != nil {
		return Summary{}, err
	}
	if err := errors.Join(t.Close(), b.Flush()); err != nil {
		return Summary{}, err
	}
	return Summary{Manifest: *m, Size: w.size, SHA256: hex.EncodeToString(w.sum.Sum(nil))}, nil
}

// size returns the bytes of the whole file.
func (x *export) size(manifest int64) int64 {
	total := int64(2 * tarBlock) // its end
	for _, n := range []int64{manifest, x.manifest.Database.Bytes, 2*sha256.Size + 1} {
		total += entrySize(n)
	}
	for _, f := range x.files {
		total += entrySize(f.Size)
	}
	return total
}

// entrySize returns the bytes of an entry with its header, which is one block: the names are short,
// and the tar format numbers sizes up to 8 GiB there.
func entrySize(content int64) int64 { return tarBlock + (content+tarBlock-1)/tarBlock*tarBlock }

// content writes the file of one content.
func (x *export) content(t *tar.Writer, f Content) error {
	file, err := x.contents.OpenContent(f.SHA256)
	if err != nil {
		return fmt.Errorf("open the content %s: %w", f.SHA256, err)
	}
	defer func() { _ = file.Close() }() // it is only read
	return x.entry(t, contentsFolder+f.SHA256, f.Size, file)
}

// entry writes one entry.
func (x *export) entry(t *tar.Writer, name string, size int64, from io.Reader) error {
	h := &tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: x.manifest.CreatedAt.Truncate(time.Second), Format: tar.FormatGNU}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.CopyBuffer(struct{ io.Writer }{t}, io.LimitReader(from, size), make([]byte, chunkBytes)); err != nil {
		return err
	} else if n != size {
		return fmt.Errorf("%s has %d bytes instead of %d", name, n, size)
	}
	return nil
}

// chunkBytes is how much of a file is read and sent at a time.
const chunkBytes = 64 << 10

// summed writes to a sink until its context ends, and computes size and hash.
type summed struct {
	ctx  context.Context
	to   io.Writer
	sum  hash.Hash
	size int64
}

// Write implements io.Writer.
func (w *summed) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.to.Write(p)
	w.sum.Write(p[:n])
	w.size += int64(n)
	return n, err
}
