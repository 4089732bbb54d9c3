package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/gzip"
	"go.uber.org/zap"

	"brokerd/internal/store"
)

const suffix = ".jsonl.gz"

// The kinds of archive files beside those of Parts.
const (
	messagesKind = "messages"
	eventsKind   = "events"
)

// lines are objects for archive files, by day.
type lines struct {
	days  []day
	count int
}

// reset empties it and keeps the memory.
func (l *lines) reset() { l.days, l.count = l.days[:0], 0 }

// A day is what belongs to one file.
type day struct {
	number int64  // since 1970
	name   string // in UTC
	text   []byte
	lines  int64
}

// add appends one object, without the end of its line, to the day of its time.
func (l *lines) add(at time.Time, text []byte) {
	d := l.day(at)
	d.text = append(append(d.text, text...), '\n')
	d.lines++
	l.count++
}

// day returns the day of a time, which is that of the line before nearly always.
func (l *lines) day(at time.Time) *day {
	number := at.Unix() / 86_400
	for i := len(l.days) - 1; i >= 0; i-- {
		if l.days[i].number == number {
			return &l.days[i]
		}
	}
	var text []byte
	if n := len(l.days); n < cap(l.days) {
		text = l.days[:n+1][n].text[:0]
	}
	l.days = append(l.days, day{number: number, name: at.UTC().Format(time.DateOnly), text: text})
	return &l.days[len(l.days)-1]
}

// A note is what the database knows of an archive file.
type note struct {
	file  string
	bytes int64
	lines int64
}

// move appends lines to the archive of a session, if there is an archive, and removes what they were made of, with
// remove, in the transaction that notes the new lengths of the files. If that fails the lines count as never written.
// It returns the number of moved lines: 0 while the session is being exported. In a dry run it returns that number
// and changes nothing.
func (w *walk) move(ctx context.Context, s Session, kind string, l *lines, remove func(*store.Tx) error) (moved int64, err error) {
	w.page.Lock()
	defer w.page.Unlock()
	if l.count == 0 || w.isHeld(s.ID) {
		return 0, nil
	}
	if w.dry {
		return int64(l.count), nil
	}
	var notes []note
	for _, d := range l.days {
		if w.Archive == "" {
			break
		}
		n, err := w.append(ctx, s, kind+"-"+d.name+suffix, d)
		if err != nil {
			return 0, fmt.Errorf("archive %s of session %s: %w", kind, s.Name, err)
		}
		notes = append(notes, n)
	}
	if err := w.seam(); err != nil {
		return 0, err
	}
	if w.Archived != nil {
		w.Archived(kind)
	}
	err = w.Store.Write(ctx, func(tx *store.Tx) error {
		if err := remove(tx); err != nil {
			return err
		}
		for _, n := range notes {
			n.save(tx, s.ID)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int64(l.count), nil
}

func (n note) save(tx *store.Tx, session int64) {
	tx.Exec(upsertArchive, session, n.file, n.bytes, n.lines)
}

// append writes lines behind what is committed of a file, as a gzip member of their own, and syncs. It returns the
// note that the transaction is to save.
func (k *Keeper) append(ctx context.Context, s Session, file string, d day) (note, error) {
	path := filepath.Join(k.Archive, s.Name, file)
	if err := k.makeFolder(filepath.Dir(path)); err != nil {
		return note{}, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return note{}, err
	}
	defer func() { _ = f.Close() }() // it was synced, or counts as never written
	n, err := k.noted(ctx, s, file, f)
	if err != nil {
		return note{}, err
	}
	member, err := k.pack.member(d.text)
	if err != nil {
		return note{}, err
	}
	if err := f.Truncate(n.bytes); err != nil {
		return note{}, err
	}
	if _, err := f.WriteAt(member, n.bytes); err != nil {
		return note{}, err
	}
	if err := f.Sync(); err != nil {
		return note{}, err
	}
	n.bytes += int64(len(member))
	n.lines += d.lines
	return n, nil
}

// noted returns what is committed of a file. A file that the database does not know, or that was shortened, counts
// from its present length on: that is noted first, or a crash would leave unknown what to cut off.
func (k *Keeper) noted(ctx context.Context, s Session, file string, f *os.File) (note, error) {
	n := note{file: file}
	known := true
	err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
		err := snap.QueryRow(selectArchive, s.ID, file).Scan(&n.bytes, &n.lines)
		if errors.Is(err, store.ErrNoRows) {
			known, err = false, nil
		}
		return err
	})
	if err != nil {
		return n, err
	}
	info, err := f.Stat()
	if err != nil {
		return n, err
	}
	if known && info.Size() >= n.bytes {
		return n, nil
	}
	if known {
		k.Log.Warn("an archive file is shorter than it was: what is missing was moved or lost", zap.String("file", f.Name()))
		n.lines = 0
	}
	n.bytes = info.Size()
	if err := k.syncFolder(filepath.Dir(f.Name())); err != nil {
		return n, err
	}
	return n, k.Store.Write(ctx, func(tx *store.Tx) error {
		n.save(tx, s.ID)
		return nil
	})
}

// A packer makes gzip members. Its memory, which is more than what it packs, is used again for each.
type packer struct {
	to bytes.Buffer
	z  *gzip.Writer
}

// member returns text as a gzip member, good until the next call. Speed counts: this runs beside the agents' work.
func (p *packer) member(text []byte) ([]byte, error) {
	p.to.Reset()
	if p.z == nil {
		z, err := gzip.NewWriterLevel(&p.to, gzip.BestSpeed)
		if err != nil {
			return nil, err
		}
		p.z = z
	} else {
		p.z.Reset(&p.to)
	}
	if _, err := p.z.Write(text); err != nil {
		return nil, err
	}
	if err := p.z.Close(); err != nil {
		return nil, err
	}
	return p.to.Bytes(), nil
}

// cutBack takes off what was appended to archive files and not committed.
func (k *Keeper) cutBack(ctx context.Context) error {
	if k.Archive == "" {
		return nil
	}
	return k.eachNote(ctx, func(s Session, n note) error {
		path := filepath.Join(k.Archive, s.Name, n.file)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= n.bytes {
			return nil
		}
		if err != nil {
			return err
		}
		k.Log.Info("the end of an archive file was not committed and is cut off", zap.String("file", path),
			zap.Int64("bytes", info.Size()-n.bytes))
		return os.Truncate(path, n.bytes)
	})
}

func (k *Keeper) eachNote(ctx context.Context, do func(Session, note) error) error {
	var all []Session
	notes := map[int64][]note{}
	err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
		if all, err = k.Sessions.All(snap); err != nil {
			return err
		}
		for _, s := range all {
			if notes[s.ID], err = notesOf(snap, s.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look over the archive: %w", err)
	}
	for _, s := range all {
		for _, n := range notes[s.ID] {
			if err := do(s, n); err != nil {
				return fmt.Errorf("look over the archive: %w", err)
			}
		}
	}
	return nil
}

// notesOf returns what is known of the archive files of a session, by name.
func notesOf(q store.Querier, session int64) ([]note, error) {
	rows := q.Query(selectArchives, session)
	defer rows.Close()
	var notes []note
	for rows.Next() {
		var n note
		if err := rows.Scan(&n.file, &n.bytes, &n.lines); err != nil {
			return nil, err
		}
		notes = append(notes, n)
	}
	return notes, rows.Err()
}

// makeFolder makes a folder of the archive, on disk.
func (k *Keeper) makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for dir != filepath.Dir(k.Archive) {
		dir = filepath.Dir(dir)
		if err := k.syncFolder(dir); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder has the names in a folder on disk.
func (k *Keeper) syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
