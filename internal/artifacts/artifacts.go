package artifacts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Folder is the folder of the contents, below the data folder, unless another one is named.
const Folder = "artifacts"

// noun names the kind in metrics and in lists of work.
const noun = "artifact"

// Limits of a session, as counts.
const (
	fullRetry   = time.Second // until a client whose content does not fit should try again
	maxVersions = 100_000     // of all artifacts
	maxNames    = 100_000     // of artifacts, those included whose versions were deleted a while ago
)

// A Disk knows whether the file system has free space for more.
type Disk interface {
	// CheckUpload returns nil, or fault.Exhausted if the file system is nearly full or would be with more
	// bytes. It must be quick.
	CheckUpload(bytes int64) error
	// Written notes that bytes are about to be written. It returns nil, or fault.Exhausted if the file
	// system is nearly full. It must be quick.
	Written(bytes int64) error
}

// Transfers counts bytes of contents, for metrics.
type Transfers interface {
	// Transferred counts bytes of an upload or a download. It must be quick.
	Transferred(direction string, bytes int64)
}

// Options say what a Service needs beside a work.Desk and contents. Disk and Transfers may be nil.
type Options struct {
	Disk      Disk // which the contents fill
	Transfers Transfers
}

// A Service keeps the artifacts of all sessions and serves the ArtifactService of the API. Its methods may
// be called concurrently.
type Service struct {
	pb.UnimplementedArtifactServiceServer
	*work.Desk
	Options
	log      *zap.Logger
	contents Contents
	mentions []Mentions // of all features

	drain   sync.Once
	drained chan struct{} // closed when transfers are to end

	publishing sync.RWMutex // held to publish a content with its row; exclusively, to remove contents without rows

	mu        sync.Mutex        // guards the fields below
	dropped   []string          // hashes of contents that sessions have lost
	inUse     map[string]bool   // of these, the ones that were being read when they were to be removed
	kept      int               // callers of Keep whose release has not run
	uploading map[int64]int64   // announced bytes of the uploads under way, by session
	read      map[int64][]int64 // by session: up to which keys the last search for mentions has read

	wake    chan struct{} // has a place for one wake-up of the collector
	stop    context.CancelFunc
	runners sync.WaitGroup
}

// New returns the artifacts of a store that was opened with Migrations. Stop closes their contents.
func New(d *work.Desk, contents Contents, o Options) *Service {
	return &Service{
		Desk: d, Options: o, log: d.Log.Named("artifacts"), contents: contents, drained: make(chan struct{}),
		inUse: map[string]bool{}, uploading: map[int64]int64{}, read: map[int64][]int64{}, wake: make(chan struct{}, 1), stop: func() {},
	}
}

// UseMentions keeps versions that features name from being removed by the retention. It is called
// before Start.
func (s *Service) UseMentions(of ...Mentions) { s.mentions = of }

// Start removes the contents that a crash has left, and begins to remove contents that lose their last
// version.
func (s *Service) Start(ctx context.Context) error {
	if err := s.sweep(ctx); err != nil {
		return fmt.Errorf("remove incomplete uploads: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.runners.Go(func() { s.runCollector(running) })
	return nil
}

// Drain ends all transfers: fault.Unavailable (SHUTTING_DOWN). It may be called more than once.
func (s *Service) Drain() { s.drain.Do(func() { close(s.drained) }) }

// Stop ends the removal of contents and closes them. No transfer may be under way.
func (s *Service) Stop() error {
	s.stop()
	s.runners.Wait()
	return s.contents.Close()
}

func shuttingDown() error {
	return fault.New(fault.Unavailable, "SHUTTING_DOWN",
		"the broker is shutting down: transfer the artifact again when it has restarted")
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
func newestOf(q store.Querier, session int64, name string) (v *pb.ArtifactVersion, found bool, err error) {
	return oneVersion(q.Query(selectNewest, session, name))
}

func oneVersion(rows *store.Rows) (v *pb.ArtifactVersion, found bool, err error) {
	all, err := versions(rows)
	if err != nil || len(all) == 0 {
		return nil, false, err
	}
	return all[0], true, nil
}

// versions reads the rows of a query of versionColumns.
func versions(rows *store.Rows) ([]*pb.ArtifactVersion, error) {
	return store.Collect(rows, func(r *store.Rows) (*pb.ArtifactVersion, error) {
		v := &pb.ArtifactVersion{}
		var labels string
		var created, replaced time.Time
		err := r.Scan(&v.Name, &v.Version, &v.Revision, &v.Sha256, &v.Size, &v.MediaType, &v.Description, &labels,
			&v.TaskId, &v.Author, &created, &replaced)
		if err == nil && labels != "" {
			err = json.Unmarshal([]byte(labels), &v.Labels)
		}
		v.CreatedAt, v.ReplacedAt, v.Newest = work.Stamp(created), work.Stamp(replaced), replaced.IsZero()
		return v, err
	})
}

// names reads the rows of a query of one text.
func names(rows *store.Rows) ([]string, error) {
	return store.Collect(rows, func(r *store.Rows) (name string, err error) { return name, r.Scan(&name) })
}

// line returns what exports and the archive have of a version: the JSON of the API.
func line(v *pb.ArtifactVersion) ([]byte, error) {
	var text bytes.Buffer
	err := jsonform.Append(&text, v)
	return text.Bytes(), err
}

// find returns a version by name and number, or the newest for 0. Errors: fault.NotFound.
func find(q store.Querier, session int64, name string, number int64) (*pb.ArtifactVersion, error) {
	newest, found, err := newestOf(q, session, name)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, missingName(q, session, name)
	}
	if number == 0 || number == newest.Version {
		return newest, nil
	}
	v, found, err := oneVersion(q.Query(selectVersion, session, name, number))
	if err == nil && !found {
		err = fault.Missing("version", fmt.Sprintf("%s@%d", name, number),
			"the artifact %q has no version %d; its newest version is %d", name, number, newest.Version)
	}
	return v, err
}

// missingName is the error for a name without versions.
func missingName(q store.Querier, session int64, name string) error {
	near, err := names(q.Query(someNames, session, nearest.Limit))
	if err != nil {
		return err
	}
	text := fmt.Sprintf("there is no artifact %q in this session", name)
	if hint := nearest.Hint(name, near); hint != "" {
		text += "; " + hint
	}
	return fault.Missing("artifact", name, "%s", text)
}

func (s *Service) transferred(direction string, bytes int64) {
	if s.Transfers != nil {
		s.Transfers.Transferred(direction, bytes)
	}
}
