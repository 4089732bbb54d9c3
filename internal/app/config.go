package app

import (
	"errors"
	"net"
	"path/filepath"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/diskguard"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// DefaultStopTimeout is how long Stop waits for calls to finish.
const DefaultStopTimeout = 5 * time.Second

// Config says how to run the daemon. Only Dir is required.
type Config struct {
	Dir   string // the data folder
	Store string // URL of the PostgreSQL database that has the data; empty = SQLite in the data folder
	// Replica is the address HOST:PORT at which other replicas on Store reach this one; empty = no other may use Store.
	Replica string
	// RequireStandby refuses to confirm anything on a Store that does not wait for a synchronous standby.
	RequireStandby bool
	// PasswordFile has the password of the user in Store; empty = it comes from PGPASSWORD or .pgpass.
	PasswordFile string
	Artifacts    string        // folder of the contents of artifacts; empty = in Dir, or in Store
	Archive      string        // folder for removed data; empty = in Dir, or with Store none
	Listen       []string      // HOST:PORT or unix:PATH, besides the data folder's socket; loopback without TLS
	TLS          TLSFiles      // with which all TCP listeners of Listen speak TLS 1.3; none: they are plain
	Sync         string        // full (the default) or normal: see store.Sync
	Checkpoint   string        // internal (the default) or external: see store.Checkpoint
	Pprof        string        // where to serve Go's profiles, on loopback; empty = nowhere
	Metrics      string        // where to serve Prometheus metrics, on loopback; empty = nowhere, none are kept
	Traces       string        // where to export OpenTelemetry traces, see tracing.CheckEndpoint; empty = nowhere
	TraceSample  float64       // the share of new traces that are exported, 0 to 1
	Version      string        // of the program, for GetStatus
	StopTimeout  time.Duration // DefaultStopTimeout if 0
	// DiskUsed returns which share of a folder's file system is used, from 0 to 1; disk.Used if nil.
	DiskUsed func(dir string) (float64, error)
	// Options changes the options with which the store is opened, after all others are set. It is for tests; nil
	// changes nothing.
	Options func(*store.Options)
	Clock   clockwork.Clock // the real one if nil
	Log     *zap.Logger     // nil logs nothing

	archived func(kind string) // see retention.Options; nil but in a test
}

// complete fills in the defaults.
func (c Config) complete() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("no data folder given")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, err
	}
	c.Dir = dir
	for _, folder := range []*string{&c.Artifacts, &c.Archive} {
		if *folder == "" {
			continue
		}
		if *folder, err = filepath.Abs(*folder); err != nil {
			return c, err
		}
	}
	if c.Replica != "" && c.Store == "" {
		return c, fault.Field("replica", "needs a database on PostgreSQL, which replicas share: give store too")
	}
	if c.Replica != "" {
		host, _, err := net.SplitHostPort(c.Replica)
		if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
			return c, fault.Field("replica",
				"must be the HOST:PORT of this machine at which the other replicas reach it, not %q", c.Replica)
		}
	}
	if c.Sync == "" {
		c.Sync = store.SyncFull.String()
	}
	if c.Checkpoint == "" {
		c.Checkpoint = "internal"
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = DefaultStopTimeout
	}
	if c.DiskUsed == nil {
		c.DiskUsed = diskguard.Used
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return c, nil
}

// alone fills in the defaults for a command that opens the data while no broker runs on it. With Store, such a command
// needs no data folder, in which another broker may run.
func (c Config) alone() (Config, error) {
	if c.Store == "" {
		return c.complete()
	}
	c.Dir = "." // which complete requires
	c, err := c.complete()
	c.Dir = ""
	return c, err
}

// Misconfigured reports whether an error of Start, Run or Check says that the Config itself is wrong.
func Misconfigured(err error) bool { return fault.KindOf(err) == fault.Invalid }
