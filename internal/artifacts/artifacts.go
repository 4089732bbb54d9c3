package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Folder is the folder of the contents, below the data folder.
const Folder = "artifacts"

// Limits of a session, as counts.
const (
	fullRetry   = time.Second // until a client whose content does not fit should try again
	maxVersions = 100_000     // of all artifacts
	maxNames    = 100_000     // of artifacts, those included whose versions were deleted a while ago
)

// A Version describes one version of an artifact.
type Version struct {
	Name        string
	Number      int64
	Revision    int64
	SHA256      string // in hexadecimal
	Size        int64  // bytes
	MediaType   string
	Description string
	Labels      map[string]string
	TaskID      string
	Author      string
	CreatedAt   time.Time
	ReplacedAt  time.Time // zero for the newest version
}

// Newest reports whether it is the newest version of its artifact.
func (v *Version) Newest() bool { return v.ReplacedAt.IsZero() }

// A Disk knows whether the file system has free space for more.
type Disk interface {
	// CheckUpload returns nil, or fault.Exhausted if the file system is nearly full or would be with more
	// bytes. It must be quick.
	CheckUpload(bytes int64) error
	// Written notes that bytes are about to be written. It returns nil, or fault.Exhausted if the file
	// system is nearly full. It must be quick.
	Written(bytes int64) error
}

// An Observer counts transfers and outcomes, for metrics. Its methods must be quick.
type Observer interface {
	work.Observer
	// Transferred counts bytes of contents: upload or download.
	Transferred(direction string, bytes int64)
}

// Options say what a Repository needs. Disk and Observer may be nil.
type Options struct {
	Store     *store.Store
	Log       *events.Log
	Directory *directory.Directory
	Disk      Disk
	Observer  Observer
	Dir       string // the data folder
	Clock     clockwork.Clock
	Logger    *zap.Logger
}

// A Repository keeps artifacts. Its methods may be called concurrently.
type Repository struct {
	Options
	folder   *folder
	mentions []Mentions // of all features

	drain   sync.Once
	drained chan struct{} // closed when transfers are to end

	publishing sync.RWMutex // held to publish a file with its row; exclusively, to remove files without rows

	mu        sync.Mutex        // guards the fields below
	dropped   []string          // hashes of contents that sessions have lost
	kept      int               // callers of Keep whose release has not run
	uploading map[int64]int64   // announced bytes of the uploads under way, by session
	read      map[int64][]int64 // by session: up to which keys the last search for mentions has read

	wake    chan struct{} // has a place for one wake-up of the collector
	stop    context.CancelFunc
	runners sync.WaitGroup
}

// New returns a repository whose tables Migrations has created, and opens the folder of its
// contents. Close closes the folder.
func New(o Options) (*Repository, error) {
	f, err := openFolder(filepath.Join(o.Dir, Folder))
	if err != nil {
		return nil, fmt.Errorf("open artifacts: %w", err)
	}
	return &Repository{
		Options: o, folder: f, drained: make(chan struct{}), uploading: map[int64]int64{}, read: map[int64][]int64{},
		wake: make(chan struct{}, 1), stop: func() {},
	}, nil
}

// UseMentions keeps versions that features name from being removed by the retention. It is called
// before Start.
func (r *Repository) UseMentions(of ...Mentions) { r.mentions = of }

// Start removes the files that a crash has left, and begins to remove contents that lose their last
// version.
func (r *Repository) Start(ctx context.Context) error {
	if err := r.sweep(ctx); err != nil {
		return fmt.Errorf("remove incomplete uploads: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	r.runners.Go(func() { r.runCollector(running) })
	return nil
}

// Drain ends all transfers: fault.Unavailable (SHUTTING_DOWN). It may be called more than once.
func (r *Repository) Drain() { r.drain.Do(func() { close(r.drained) }) }

// Stop ends the removal of contents and closes the folder. No transfer may be under way.
func (r *Repository) Stop() error {
	r.stop()
	r.runners.Wait()
	return r.folder.close()
}

func shuttingDown() error {
	return fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down: transfer the artifact again when it has restarted")
}

// A usage is the sums of a session.
type usage struct{ names, versions, bytes int64 }

func usageOf(q store.Querier, session int64) (u usage, err error) {
	err = q.QueryRow(selectUsage, session).Scan(&u.names, &u.versions, &u.bytes)
	if errors.Is(err, store.ErrNoRows) {
		err = nil
	}
	return u, err
}

// newestOf returns the newest version of a name; found is false if there is none.
func newestOf(q store.Querier, session int64, name string) (v Version, found bool, err error) {
	return oneVersion(q.Query(selectNewest, session, name))
}

func oneVersion(rows *store.Rows) (v Version, found bool, err error) {
	defer rows.Close()
	if !rows.Next() {
		return v, false, rows.Err()
	}
	v, err = scanVersion(rows)
	return v, err == nil, err
}

func scanVersion(rows *store.Rows) (v Version, err error) {
	var labels string
	err = rows.Scan(&v.Name, &v.Number, &v.Revision, &v.SHA256, &v.Size, &v.MediaType, &v.Description, &labels,
		&v.TaskID, &v.Author, &v.CreatedAt, &v.ReplacedAt)
	if err == nil && labels != "" {
		err = json.Unmarshal([]byte(labels), &v.Labels)
	}
	return v, err
}

// find returns a version by name and number, or the newest for 0. Errors: fault.NotFound.
func find(q store.Querier, session int64, name string, number int64) (Version, error) {
	newest, found, err := newestOf(q, session, name)
	if err != nil {
		return Version{}, err
	}
	if !found {
		return Version{}, missingName(q, session, name)
	}
	if number == 0 || number == newest.Number {
		return newest, nil
	}
	v, found, err := oneVersion(q.Query(selectVersion, session, name, number))
	if err == nil && !found {
		err = fault.Missing("version", fmt.Sprintf("%s@%d", name, number),
			"the artifact %q has no version %d; its newest version is %d", name, number, newest.Number)
	}
	return v, err
}

// missingName is the error for a name without versions.
func missingName(q store.Querier, session int64, name string) error {
	var names []string
	rows := q.Query(someNames, session, nearest.Limit)
	defer rows.Close()
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			return err
		}
		names = append(names, n)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	text := fmt.Sprintf("there is no artifact %q in this session", name)
	if hint := nearest.Hint(name, names); hint != "" {
		text += "; " + hint
	}
	return fault.Missing("artifact", name, "%s", text)
}

// acting returns the session and the agent of a call that changes something.
func (r *Repository) acting(tx *store.Tx, c identity.Caller) (directory.Session, directory.Agent, error) {
	s, err := r.Directory.Session(tx, c.Session)
	if err != nil {
		return s, directory.Agent{}, err
	}
	a, err := r.Directory.Acting(tx, s.ID, c)
	return s, a, err
}

func (r *Repository) count(outcome string) {
	if r.Observer != nil {
		r.Observer.Work("artifact", outcome)
	}
}

func (r *Repository) transferred(direction string, bytes int64) {
	if r.Observer != nil {
		r.Observer.Transferred(direction, bytes)
	}
}
