package backup

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/guard"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Temporary files of backups are named prefix RANDOM suffix, in the data folder.
const (
	prefix = "backup-"
	suffix = ".partial"
)

// A Content is one file of artifacts.
type Content struct {
	SHA256 string
	Size   int64 // bytes
}

// Contents are the files of artifacts.
type Contents interface {
	// Keep keeps every file until release is called, even if no session has its content any more.
	Keep() (release func())
	// OpenContent opens the file of a content.
	OpenContent(sum string) (io.ReadCloser, error)
}

// A Disk knows how much the file system of the data folder can take.
type Disk interface {
	// Fits returns fault.Exhausted if the disk would be nearly full with so many more bytes.
	Fits(bytes int64) error
}

// Counts are the numbers of rows that a manifest names for people.
type Counts struct {
	Sessions int64 `json:"sessions"`
	Messages int64 `json:"messages"`
	Events   int64 `json:"events"`
}

// Options say what to back up. All are required.
type Options struct {
	Store     *store.Store
	Log       *events.Log
	Directory *directory.Directory
	Contents  Contents
	Disk      Disk
	// EachContent passes the contents that a snapshot refers to, with their sizes in bytes, to a function.
	EachContent func(q store.Querier, fn func(sum string, size int64)) error
	// Totals counts the messages and deliveries of a snapshot.
	Totals  func(q store.Querier) (messages, deliveries int64, err error)
	Dir     string // the data folder
	Version string // of brokerd
	Clock   clockwork.Clock
	Logger  *zap.Logger
}

// A Maker makes backups. Its methods may be called concurrently.
type Maker struct {
	Options
	running sync.Mutex      // held by the backup under way
	ctx     context.Context // of all backups; its cause is the error for their callers
	stop    context.CancelCauseFunc
}

// New returns a maker. Start must be called before the first backup.
func New(o Options) *Maker {
	m := &Maker{Options: o}
	m.ctx, m.stop = context.WithCancelCause(context.Background())
	return m
}

// Start removes the temporary files that a crash has left.
func (m *Maker) Start() error {
	left, err := filepath.Glob(filepath.Join(m.Dir, prefix+"*"+suffix))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an incomplete backup: %w", err)
		}
	}
	return nil
}

// Drain ends a backup under way: fault.Unavailable (SHUTTING_DOWN). It may be called more than once.
func (m *Maker) Drain() {
	m.stop(fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down: repeat the backup when it has restarted"))
}

// A Progress is how far the copy of the database is, in bytes.
type Progress struct{ Copied, Total int64 }

// A Sink receives a backup. Its methods may block: no snapshot is held meanwhile.
type Sink interface {
	// Progress receives some of the steps of the copy.
	Progress(p Progress) error
	// Begin receives the size of the file before its first byte.
	Begin(size int64) error
	// Write receives the file.
	Write(p []byte) (int, error)
}

// Backup makes a backup and passes it to a sink. Errors: fault.Precondition (BACKUP_RUNNING);
// fault.Exhausted if the disk has too little space; those of store.Backup; fault.Unavailable after
// Drain; and those of the sink.
func (m *Maker) Backup(ctx context.Context, who identity.Caller, to Sink) (Summary, error) {
	if !m.running.TryLock() {
		return Summary{}, fault.New(fault.Precondition, "BACKUP_RUNNING", "another backup is being made: try again when it has ended")
	}
	defer m.running.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(m.ctx, cancel)
	defer stop()
	s, err := m.backup(ctx, who, to)
	if err != nil && m.ctx.Err() != nil {
		err = context.Cause(m.ctx)
	}
	return s, err
}

func (m *Maker) backup(ctx context.Context, who identity.Caller, to Sink) (Summary, error) {
	facts, err := m.Store.Facts(ctx)
	if err != nil {
		return Summary{}, err
	}
	if err := m.Disk.Fits(facts.Bytes + m.Store.Stats().LogBytes); err != nil && !m.Store.OnServer() {
		return Summary{}, err
	}
	defer m.Contents.Keep()()
	path := filepath.Join(m.Dir, prefix+rand.Text()+suffix)
	x := &export{contents: m.Contents, manifest: Manifest{Format: format, Version: m.Version, InstanceID: m.Store.InstanceID()}}
	if err := m.copy(ctx, path, x, to.Progress); err != nil {
		return Summary{}, err
	}
	file, err := os.Open(path)
	if err = errors.Join(err, os.Remove(path)); err != nil { // the open file keeps its bytes
		return Summary{}, err
	}
	defer func() { _ = file.Close() }() // it is only read
	s, err := x.write(ctx, file, to)
	if err != nil {
		return s, fmt.Errorf("back up: %w", err)
	}
	return s, m.log(ctx, who, s)
}

// count counts the rows of a snapshot.
func (m *Maker) count(q store.Querier) (n Counts, err error) {
	sessions, err := m.Directory.CountSessions(q)
	if err != nil {
		return n, err
	}
	n.Sessions = int64(sessions)
	if n.Messages, _, err = m.Totals(q); err != nil {
		return n, err
	}
	n.Events, err = m.Log.Count(q)
	return n, err
}

// copy copies the database, in a separate goroutine, so that a sink that blocks does not keep the
// snapshot in use.
func (m *Maker) copy(ctx context.Context, path string, x *export, report func(Progress) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	steps, ended := make(chan Progress, 1), make(chan error, 1)
	guard.Go(m.Logger, func() error {
		x.manifest.CreatedAt = m.Clock.Now().UTC()
		revision, err := m.Store.Backup(ctx, path, func(snap *store.Snapshot) (err error) {
			if x.manifest.Counts, err = m.count(snap); err != nil {
				return err
			}
			return m.EachContent(snap, func(sum string, size int64) { x.files = append(x.files, Content{sum, size}) })
		}, func(copied, total int64) {
			select {
			case <-steps: // replaced by the newer one
			default:
			}
			steps <- Progress{copied, total}
		})
		x.manifest.Revision = revision
		return err
	}, func(err error) { ended <- err })
	for {
		select {
		case p := <-steps:
			if err := report(p); err != nil {
				stop()
				return errors.Join(err, discard(path, <-ended))
			}
		case err := <-ended:
			return err
		}
	}
}

// discard removes a copy that was finished although no sink wants it any more.
func discard(path string, copied error) error {
	if copied != nil {
		return nil // the store has removed it; the sink's error says more
	}
	return os.Remove(path)
}

// log appends an event. The client has the backup already, so an error is only logged.
func (m *Maker) log(ctx context.Context, who identity.Caller, s Summary) error {
	details, err := json.Marshal(struct {
		Revision int64 `json:"revision"`
		Bytes    int64 `json:"bytes"`
		Contents int   `json:"contents"`
	}{s.Revision, s.Size, s.Contents})
	if err != nil {
		return err
	}
	source := who.Agent
	if source == "" {
		source = identity.System
	}
	err = m.Store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := m.Log.Append(tx, events.Entry{
			Category: events.System, Type: "backup.finished", Source: source,
			Summary: fmt.Sprintf("a backup of revision %d was made", s.Revision), Details: string(details),
		})
		return err
	})
	if err != nil {
		m.Logger.Warn("the event of a backup could not be written", zap.Error(err))
	}
	return nil
}

// A Summary describes a finished backup.
type Summary struct {
	Manifest
	Size   int64  // bytes of the file
	SHA256 string // of the file
}

// A Manifest is the first entry of a backup.
type Manifest struct {
	Format     int       `json:"format"`
	Version    string    `json:"version"` // of the brokerd that made it
	CreatedAt  time.Time `json:"created_at"`
	InstanceID int64     `json:"instance_id"`
	Revision   int64     `json:"revision"`
	Database   Database  `json:"database"`
	Counts
	Contents     int   `json:"contents"`      // files of artifacts
	ContentBytes int64 `json:"content_bytes"` // in all of them
}

// A Database is the entry of the database, as the manifest describes it.
type Database struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}
