package retention

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The files of an export beside those of Parts, in their order.
const (
	sessionFile  = "session.json"
	messagesFile = "messages.jsonl"
	eventsFile   = "events.jsonl"
	manifestFile = "manifest.json"
)

const (
	// pieceBytes is how much of a file a sink gets at a time.
	pieceBytes = 60 << 10
	// exportItems and exportBytes limit what an export reads from the database at a time.
	exportItems = 100
	exportBytes = 60 << 10
)

// A Sink takes an export: the files one after the other, each in pieces. An empty file is one empty piece. It may block: nothing is
// held meanwhile but the session, which stays out of the archive.
type Sink interface {
	Piece(file string, data []byte) error
}

// A Manifest lists the parts of an export.
type Manifest struct {
	Session  string    `json:"session"`
	Revision int64     `json:"revision"` // what it is true at, if the session was closed before
	Time     time.Time `json:"time"`
	Closed   bool      `json:"closed"`
	Files    []File    `json:"files"`
}

// A File is one file of an export.
type File struct {
	Name     string `json:"name"`
	Bytes    int64  `json:"bytes"`
	Lines    int64  `json:"lines"`
	Archived int64  `json:"archived"` // of the lines, how many are no longer in the database
	SHA256   string `json:"sha256"`
}

// Export writes all that a session has. Of one that is not closed each file is true at its own time. fault.NotFound if there is no
// such session; fault.Precondition (ARCHIVE_MISSING) if a file of its archive was moved away.
func (k *Keeper) Export(ctx context.Context, name string, to Sink) (Manifest, error) {
	s, err := k.find(ctx, name)
	if err != nil {
		return Manifest{}, err
	}
	defer k.hold(s.ID)()
	m, err := k.export(ctx, s, to)
	if err != nil {
		return m, fmt.Errorf("export session %s: %w", name, err)
	}
	return m, nil
}

func (k *Keeper) find(ctx context.Context, name string) (found Session, err error) {
	err = k.Store.Read(ctx, func(snap *store.Snapshot) error {
		all, err := k.Sessions.All(snap)
		if err != nil {
			return err
		}
		var names []string
		for _, s := range all {
			if s.Name == name {
				found = s
				return nil
			}
			names = append(names, s.Name)
		}
		return fault.Missing("session", name, "there is no session %q; %s", name,
			nearest.Hint(name, names))
	})
	return found, err
}

func (k *Keeper) export(ctx context.Context, s Session, to Sink) (Manifest, error) {
	if s.Closed {
		if err := k.awaitClosed(ctx, s); err != nil {
			return Manifest{}, err
		}
	}
	x := &exporter{Keeper: k, ctx: ctx, session: s, to: to}
	m := Manifest{Session: s.Name, Revision: k.Store.Revision(), Time: k.Clock.Now().UTC(), Closed: s.Closed}
	record, err := s.Record()
	if err != nil {
		return m, err
	}
	files := []struct {
		name  string
		write func() error
	}{{sessionFile, func() error { return x.line(record) }}}
	for _, p := range k.Parts {
		if p.File == "" {
			continue
		}
		files = append(files, struct {
			name  string
			write func() error
		}{p.File, func() error { return x.part(p) }})
	}
	files = append(files, struct {
		name  string
		write func() error
	}{messagesFile, x.messages}, struct {
		name  string
		write func() error
	}{eventsFile, x.events})
	for _, f := range files {
		x.begin(f.name)
		if err := f.write(); err != nil {
			return m, err
		}
		done, err := x.end()
		if err != nil {
			return m, err
		}
		m.Files = append(m.Files, done)
	}
	contents, err := x.contents()
	if err != nil {
		return m, err
	}
	m.Files = append(m.Files, contents...)
	return m, x.manifest(&m)
}

// awaitClosed returns when the rest of the closing of a session is done.
func (k *Keeper) awaitClosed(ctx context.Context, s Session) error {
	for _, await := range k.Closing {
		if err := await(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}

// contents writes the files that belong to the rows of the parts.
func (x *exporter) contents() (files []File, err error) {
	for _, p := range x.Parts {
		if p.Contents == nil {
			continue
		}
		err := p.Contents(x.ctx, x.session.ID, func(name string, content io.Reader) error {
			x.begin(name)
			if err := x.copy(content); err != nil {
				return err
			}
			done, err := x.end()
			files = append(files, done)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// manifest writes the last file.
func (x *exporter) manifest(m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	x.begin(manifestFile)
	if err := x.copy(bytes.NewReader(append(text, '\n'))); err != nil {
		return err
	}
	_, err = x.end()
	return err
}

// An exporter is an export under way.
type exporter struct {
	*Keeper
	ctx     context.Context
	session Session
	to      Sink

	file   File
	sum    hash.Hash
	buffer []byte
}

func (x *exporter) begin(name string) {
	x.file, x.sum, x.buffer = File{Name: name}, sha256.New(), x.buffer[:0]
}

// line writes one line of the file.
func (x *exporter) line(parts ...[]byte) error {
	for _, p := range parts {
		x.buffer = append(x.buffer, p...)
	}
	x.buffer = append(x.buffer, '\n')
	x.file.Lines++
	for len(x.buffer) >= pieceBytes {
		if err := x.send(pieceBytes); err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) send(n int) error {
	if err := x.ctx.Err(); err != nil {
		return err
	}
	if err := x.to.Piece(x.file.Name, x.buffer[:n]); err != nil {
		return err
	}
	_, _ = x.sum.Write(x.buffer[:n]) // a hash never fails
	x.file.Bytes += int64(n)
	x.buffer = append(x.buffer[:0], x.buffer[n:]...)
	return nil
}

// copy writes a content as it is.
func (x *exporter) copy(content io.Reader) error {
	for {
		x.buffer = slices.Grow(x.buffer[:0], pieceBytes)[:pieceBytes]
		n, err := io.ReadFull(content, x.buffer)
		x.buffer = x.buffer[:n]
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil // end writes the rest
		case err != nil:
			return err
		}
		if err := x.send(n); err != nil {
			return err
		}
	}
}

func (x *exporter) end() (File, error) {
	if err := x.send(len(x.buffer)); err != nil {
		return x.file, err
	}
	x.file.SHA256 = hex.EncodeToString(x.sum.Sum(nil))
	return x.file, nil
}

// part writes the file of a part: the lines of its archive first, then those of the database.
func (x *exporter) part(p work.Data) error {
	write := func(l []byte) error { return x.line(l) }
	if p.Kind != "" {
		if err := x.archived(p.Kind + "-"); err != nil {
			return err
		}
		write = func(l []byte) error { return x.line(inDatabase, l[1:]) }
	}
	for after := ""; ; {
		var lines [][]byte
		err := x.Store.Read(x.ctx, func(snap *store.Snapshot) (err error) {
			lines, after, err = p.Lines(snap, x.session.ID, after, pageItems)
			return err
		})
		if err != nil || len(lines) == 0 {
			return err
		}
		for _, l := range lines {
			if err := write(l); err != nil {
				return err
			}
		}
	}
}

// messages writes what is in the archive and then what is in the database, where nothing moves from one to the other meanwhile.
func (x *exporter) messages() error {
	if err := x.archived(messagesKind + "-"); err != nil {
		return err
	}
	for after := int64(0); ; {
		var lines [][]byte
		err := x.Store.Read(x.ctx, func(snap *store.Snapshot) error {
			found, err := x.Messages.Standings(snap, x.session.ID, after, exportItems, false)
			if err != nil {
				return err
			}
			bytes := 0
			return x.Messages.Records(snap, found, func(m *work.Standing, line []byte) bool {
				after = m.Last
				lines = append(lines, slices.Clone(line))
				bytes += len(line)
				return bytes <= exportBytes
			})
		})
		if err != nil || len(lines) == 0 {
			return err
		}
		if err := x.kept(lines); err != nil {
			return err
		}
	}
}

func (x *exporter) events() error {
	if err := x.archived(eventsKind + "-"); err != nil {
		return err
	}
	for after := int64(0); ; {
		var lines [][]byte
		err := x.Store.Read(x.ctx, func(snap *store.Snapshot) error {
			found, looked, err := x.Events.After(snap, x.session.ID, after, exportItems, exportBytes)
			if err != nil {
				return err
			}
			after = looked
			for i := range found {
				text, err := found[i].Append(nil, x.session.Name)
				if err != nil {
					return err
				}
				lines = append(lines, text)
			}
			return nil
		})
		if err != nil || after == 0 {
			return err
		}
		if err := x.kept(lines); err != nil {
			return err
		}
	}
}

// Each line says where it was found.
var (
	inArchive  = []byte(`{"archived":true,`)
	inDatabase = []byte(`{"archived":false,`)
)

// kept writes lines from the database.
func (x *exporter) kept(lines [][]byte) error {
	for _, l := range lines {
		if err := x.line(inDatabase, l[1:]); err != nil {
			return err
		}
	}
	return nil
}

// archived writes the lines of the session's archive files whose names begin so.
func (x *exporter) archived(prefix string) error {
	var notes []note
	err := x.Store.Read(x.ctx, func(snap *store.Snapshot) (err error) {
		notes, err = notesOf(snap, x.session.ID)
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range notes {
		if !strings.HasPrefix(n.file, prefix) || n.bytes == 0 {
			continue
		}
		if err := x.archiveFile(n); err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) archiveFile(n note) error {
	path := filepath.Join(x.Archive, x.session.Name, n.file)
	if x.Archive == "" {
		return missing(filepath.Join(x.session.Name, n.file), errors.New("the broker runs without the folder of its archive"))
	}
	f, err := os.Open(path)
	if err != nil {
		return missing(path, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	z, err := gzip.NewReader(io.LimitReader(f, n.bytes))
	if err != nil {
		return missing(path, err)
	}
	for r := bufio.NewReaderSize(z, 64<<10); ; {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(text) == 0 {
			return nil
		}
		if err != nil {
			return missing(path, err)
		}
		if err := x.line(inArchive, bytes.TrimSuffix(text, []byte{'\n'})[1:]); err != nil {
			return err
		}
		x.file.Archived++
	}
}

// missing refuses an export that would not be complete.
func missing(path string, cause error) error {
	e := fault.New(fault.Precondition, "ARCHIVE_MISSING",
		"the archive file %s cannot be read, and without it the export would not be complete: put it back as it was", path)
	e.Cause = cause
	return e
}
