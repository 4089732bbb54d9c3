package artifacts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"brokerd/internal/store"
)

// chunkSize is how many bytes each chunk of a content has but the last one.
const chunkSize = 256 << 10

// Chunks are rows of the database, each with a part of a content. They are written beside the writer, and not read
// before the writer has committed a row that names the content. A content without bytes has one chunk without
// bytes. It implements Contents.
type chunks struct {
	store *store.Store

	keeping sync.Mutex // held while a draft becomes a content: two of one hash would be in each other's way

	mu   sync.Mutex     // guards the field below
	uses map[string]int // how many read a content; removing = it is being removed
}

// removing is in place of the number of readers while a content is being removed.
const removing = -1

// InStore returns contents that are rows of a store on a server.
func InStore(st *store.Store) Contents { return &chunks{store: st, uses: map[string]int{}} }

// Close implements Contents.
func (c *chunks) Close() error { return nil }

// A draftRows is a draft in the database. It implements Draft.
type draftRows struct {
	chunks *chunks
	ctx    context.Context
	name   string
	buffer []byte // what no row has yet
	rows   int
	kept   bool
}

// Create implements Contents. ctx ends the draft's writes.
func (c *chunks) Create(ctx context.Context) (Draft, error) {
	return &draftRows{chunks: c, ctx: ctx, name: draftPrefix + rand.Text() + draftSuffix}, nil
}

// Write implements io.Writer.
func (d *draftRows) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), chunkSize-len(d.buffer))]
		d.buffer = append(d.buffer, part...)
		p, n = p[len(part):], n+len(part)
		if len(d.buffer) == chunkSize {
			if err := d.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// flush writes a row.
func (d *draftRows) flush() error {
	if d.buffer == nil {
		d.buffer = []byte{} // not NULL
	}
	err := d.chunks.store.Aside(d.ctx, store.Change{Query: insertChunk, Args: []any{d.name, d.rows, d.buffer}})
	d.rows++ // also if it is not known whether the row is there
	d.buffer = d.buffer[:0]
	return err
}

// Keep implements Draft.
func (d *draftRows) Keep(sum string) error {
	if len(d.buffer) > 0 || d.rows == 0 {
		if err := d.flush(); err != nil {
			return err
		}
	}
	d.chunks.keeping.Lock()
	defer d.chunks.keeping.Unlock()
	err := d.chunks.store.Aside(d.ctx,
		store.Change{Query: deleteReplaced, Args: []any{sum, d.name}},
		store.Change{Query: renameChunks, Args: []any{sum, d.name}})
	d.kept = err == nil
	return err
}

// Close implements Draft.
func (d *draftRows) Close() error {
	if d.kept || d.rows == 0 {
		return nil
	}
	_, err := d.chunks.Remove(context.Background(), d.name)
	return err
}

// Remove implements Contents.
func (c *chunks) Remove(ctx context.Context, name string) (bool, error) {
	c.mu.Lock()
	used := c.uses[name] != 0
	if !used {
		c.uses[name] = removing
	}
	c.mu.Unlock()
	if used {
		return false, nil
	}
	defer c.free(name, removing)
	return true, c.store.Aside(ctx, store.Change{Query: deleteChunks, Args: []any{name}})
}

// free ends a use of a content.
func (c *chunks) free(sum string, use int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uses[sum] -= use; c.uses[sum] == 0 {
		delete(c.uses, sum)
	}
}

// A contentRows is a content in the database. It keeps one chunk in memory, and no snapshot between two. It implements
// Content.
type contentRows struct {
	chunks *chunks
	ctx    context.Context
	sum    string
	size   int64
	n      int64 // the number of the chunk in memory
	chunk  []byte
}

// Open implements Contents. ctx ends the reading.
func (c *chunks) Open(ctx context.Context, sum string) (Content, error) {
	c.mu.Lock()
	removed := c.uses[sum] == removing
	if !removed {
		c.uses[sum]++
	}
	c.mu.Unlock()
	if removed {
		return nil, fs.ErrNotExist
	}
	size := int64(-1)
	err := c.store.ReadPage(ctx, func(snap *store.Snapshot) error {
		return snap.QueryRow(sizeOfChunks, sum).Scan(&size)
	})
	if err == nil && size < 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		c.free(sum, 1)
		return nil, err
	}
	return &contentRows{chunks: c, ctx: ctx, sum: sum, size: size, n: -1}, nil
}

// Size implements Content.
func (c *contentRows) Size() int64 { return c.size }

// Close implements Content.
func (c *contentRows) Close() error {
	c.chunks.free(c.sum, 1)
	return nil
}

// ReadAt implements io.ReaderAt.
func (c *contentRows) ReadAt(p []byte, at int64) (read int, err error) {
	for read < len(p) {
		if at+int64(read) >= c.size {
			return read, io.EOF
		}
		from := at + int64(read)
		if err := c.load(from / chunkSize); err != nil {
			return read, err
		}
		inChunk := from % chunkSize
		if inChunk >= int64(len(c.chunk)) {
			return read, fmt.Errorf("chunk %d of the content %s is too short", c.n, c.sum)
		}
		read += copy(p[read:], c.chunk[inChunk:])
	}
	return read, nil
}

// load reads a chunk.
func (c *contentRows) load(n int64) error {
	if n == c.n {
		return nil
	}
	err := c.chunks.store.ReadPage(c.ctx, func(snap *store.Snapshot) error {
		return snap.QueryRow(selectChunk, c.sum, n).Scan(&c.chunk)
	})
	if errors.Is(err, store.ErrNoRows) {
		return fmt.Errorf("chunk %d of the content %s is missing", n, c.sum)
	}
	if err == nil {
		c.n = n
	}
	return err
}

// Each implements Contents.
func (c *chunks) Each(ctx context.Context, fn func(contents, drafts []string) error) error {
	for after := ""; ; {
		var page []string
		err := c.store.ReadPage(ctx, func(snap *store.Snapshot) (err error) {
			page, err = names(snap.Query(selectChunked, after, pageNames))
			return err
		})
		if err != nil || len(page) == 0 {
			return err
		}
		if err := fn(sortNames(page)); err != nil {
			return err
		}
		after = page[len(page)-1]
	}
}

// Check implements Contents.
func (c *chunks) Check(q store.Querier, most int) ([]string, error) {
	return store.Collect(q.Query(wrongChunks, most), func(r *store.Rows) (string, error) {
		var sum string
		var size, found int64
		err := r.Scan(&sum, &size, &found)
		return wrongSize(sum, found, size), err
	})
}
