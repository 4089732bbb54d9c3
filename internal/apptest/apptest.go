// Package apptest runs the whole daemon inside a test: real store, real gRPC, on a Unix socket and
// on loopback. After each test, on a server after some, the database is checked for damage and broken invariants. No
// program imports it.
package apptest

import (
	"context"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/auth"
	"brokerd/internal/postgrestest"
	"brokerd/internal/retention"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// Patience is how long a test waits for what should come at once, beside many other tests on a busy machine.
const Patience = 5 * time.Minute

// LongLease keeps an agent alive whatever a test does with the clock.
const LongLease = 7 * 24 * time.Hour

// Start is when the clock of a broker with a fake one begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// An Option changes how the broker runs.
type Option func(*app.Config)

// WithFakeClock gives the broker a clock that stands still until the test advances it: see Broker.Clock.
func WithFakeClock() Option {
	return func(c *app.Config) {
		c.Clock, c.StopTimeout = NewWatchedClock(), Patience
	}
}

// LongWait is how long calls wait whose waiting the test observes: see Broker.Waits. No other timer has this duration.
const LongWait = 9876 * time.Millisecond

// A WatchedClock is a fake clock that reports each timer of LongWait.
type WatchedClock struct {
	*clockwork.FakeClock
	Waits chan struct{}
}

// NewWatchedClock returns a clock that stands at the time at which brokers with a fake clock begin.
func NewWatchedClock() WatchedClock {
	return WatchedClock{clockwork.NewFakeClockAt(start), make(chan struct{}, 100)}
}

// NewTimer implements clockwork.Clock.
func (c WatchedClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	if d == LongWait {
		c.Waits <- struct{}{}
	}
	return timer
}

// With changes the configuration.
func With(change func(*app.Config)) Option { return change }

// A TB is what the tests of testing and the checks of rapid have in common.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// A Broker is a running daemon. It is for the test's own goroutine, but its connections may be used
// by any.
type Broker struct {
	TB
	Clock *clockwork.FakeClock // nil with the real clock
	Waits <-chan struct{}      // receives one value for each call that begins to wait for LongWait, with a fake clock

	ctx      context.Context // of all actors
	config   app.Config
	app      daemon
	replicas bool   // it is two: see ReplicasVariable
	unwatch  func() // ends watch, and waits for it
	sleeps   bool   // watch has found a sleeping mailbox; read it after unwatch

	mu    sync.Mutex // guards conns
	conns map[identity]*grpc.ClientConn
}

// Start runs a broker on an empty data folder. At the end of the test it is stopped and its database checked.
func Start(t TB, options ...Option) *Broker {
	t.Helper()
	// Not t.TempDir: the socket lies in the folder, and its path must be short.
	dir, err := os.MkdirTemp("", "brokerd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &Broker{TB: t, conns: map[identity]*grpc.ClientConn{},
		// A test's database need not survive power loss, and a sync per commit is most of a test's
		// time on a slow disk.
		config: app.Config{Dir: dir, Sync: "normal", Listen: []string{"127.0.0.1:0"}, Version: "test", Clock: clockwork.NewRealClock(),
			DiskUsed: func(string) (float64, error) { return 0, nil }}} // whatever the disk of this machine is like
	for _, o := range options {
		o(&b.config)
	}
	if b.config.Store == "" {
		b.config.Store = testkit.Postgres(t, b.config.Dir, app.Migrations())
		b.replicas = b.config.Store != "" && os.Getenv(ReplicasVariable) != ""
		if b.config.Store != "" && b.config.Archive == "" {
			b.config.Archive = filepath.Join(b.config.Dir, retention.Folder) // as without a server
		}
	}
	b.Clock, _ = b.config.Clock.(*clockwork.FakeClock)
	if c, ok := b.config.Clock.(WatchedClock); ok {
		b.Clock, b.Waits = c.FakeClock, c.Waits
	}
	_, fake := b.config.Clock.(interface{ Advance(time.Duration) })
	b.config.Options = bounded(t, fake, b.config.Options)
	t.Cleanup(b.end)
	b.ctx = patient(t)
	b.start()
	return b
}

// bounded makes the test fail if a function of the writer does more than it may, besides a change of the options that
// the test makes itself. With a clock that the test advances, a read may take any time.
func bounded(t TB, fake bool, change func(*store.Options)) func(*store.Options) {
	return func(o *store.Options) {
		if fake {
			o.ReadTime = math.MaxInt64
		}
		o.Excess = func(e store.Excess) {
			t.Errorf("a function of the writer changed %d rows and read %d; %d and %d are allowed: %s",
				e.Changed, e.Read, store.MaxChanged, store.MaxRead, e.Query)
		}
		if change != nil {
			change(o)
		}
	}
}

// Dir returns the data folder.
func (b *Broker) Dir() string { return b.config.Dir }

// Socket returns the address of the Unix socket.
func (b *Broker) Socket() string { return b.app.Addresses()[0] }

// TCP returns the address on loopback; it changes with a Restart.
func (b *Broker) TCP() string { return b.app.Addresses()[1] }

// Metrics returns the address at which metrics are served.
func (b *Broker) Metrics() string { return b.app.Metrics() }

// Credential returns the operator's credential.
func (b *Broker) Credential() string {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(b.config.Dir, auth.CredentialFile))
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// OverTCP returns a connection over TCP that presents a secret with every call; an empty secret is none.
// headers are pairs of further metadata. The connection lasts until the test ends or the broker restarts.
func (b *Broker) OverTCP(secret string, headers ...string) *grpc.ClientConn {
	b.Helper()
	all := presented{}
	for i := 0; i < len(headers); i += 2 {
		all[headers[i]] = headers[i+1]
	}
	if secret != "" {
		all["authorization"] = "Bearer " + secret
	}
	conn, err := grpc.NewClient(b.TCP(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(all))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Issue issues a credential and returns it with its secret.
func (b *Broker) Issue(in *pb.IssueCredentialRequest) (*pb.Credential, string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	out, err := pb.NewCredentialServiceClient(b.Operator()).IssueCredential(ctx, in)
	if err != nil {
		b.Fatal(err)
	}
	return out.GetCredential(), out.GetSecret()
}

// Operator returns a connection of an operator without an agent, in the session "default".
func (b *Broker) Operator() *grpc.ClientConn { return b.In("default", "") }

// Conn returns a connection of an agent in the session "default". It need not be registered.
func (b *Broker) Conn(agent string) *grpc.ClientConn { return b.In("default", agent) }

// Registered registers an agent in the session "default", with a long lease, and returns a connection of it.
func (b *Broker) Registered(agent, role string) *grpc.ClientConn {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn := b.Conn(agent)
	if _, err := pb.NewAgentServiceClient(conn).RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(LongLease)}); err != nil {
		b.Fatal(err)
	}
	return conn
}

// In returns a connection of an agent in a session, of an operator if agent is empty. The same one is
// returned again for the same names. It lasts as long as the test and finds the broker again after a Restart.
func (b *Broker) In(session, agent string) *grpc.ClientConn {
	b.Helper()
	id := identity{session, agent}
	b.mu.Lock()
	defer b.mu.Unlock()
	if conn := b.conns[id]; conn != nil {
		return conn
	}
	conn, err := grpc.NewClient(b.Socket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(id),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: Patience,
		}),
	)
	if err != nil {
		b.Fatal(err)
	}
	b.conns[id] = conn
	return conn
}

// Restart stops the broker and starts it again on the same data folder. The functions run while it is
// down.
func (b *Broker) Restart(meanwhile ...func()) {
	b.Helper()
	b.stop()
	b.awaitNotice()
	for _, fn := range meanwhile {
		fn()
	}
	b.start()
}

// Check fails the test if the database is damaged or breaks an invariant, or if a message of the
// broker has a payload that does not fit its type.
func (b *Broker) Check() {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	out, err := pb.NewAdminServiceClient(b.Operator()).CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	if err != nil {
		b.Error(err)
	}
	for _, problem := range out.GetProblems() {
		b.Errorf("database: %s", problem)
	}
	b.checkPayloads(ctx)
}

func (b *Broker) start() {
	b.Helper()
	var err error
	if b.app, err = b.run(); err != nil {
		b.Fatal(err)
	}
	b.watch()
}

func (b *Broker) stop() {
	b.Helper()
	b.unwatch()
	if err := b.app.Stop(context.Background()); err != nil {
		b.Error(err)
	}
	select {
	case err := <-b.app.Failed():
		b.Errorf("the broker failed: %v", err)
	default:
	}
}

// awaitNotice returns once all clients know that the broker is down. A call that one of them makes before, on a connection
// that was cut off, fails.
func (b *Broker) awaitNotice() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.conns {
		for conn.GetState() == connectivity.Ready && conn.WaitForStateChange(ctx, connectivity.Ready) {
		}
	}
}

// checked reports whether the test ends with a check. On a server a check takes as long as the rest of a small test, so
// that only one test in eight makes it, the same ones each time.
func (b *Broker) checked() bool {
	t, named := b.TB.(interface{ Name() string })
	return os.Getenv(postgrestest.Variable) == "" || !named || crc32.ChecksumIEEE([]byte(t.Name()))%8 == 0
}

// end runs at the end of the test.
func (b *Broker) end() {
	if b.app != nil {
		b.unwatch()
	}
	if b.app != nil && !b.sleeps && b.checked() {
		b.Check()
	}
	for _, conn := range b.conns {
		_ = conn.Close()
	}
	if b.app != nil {
		b.stop()
	}
}

// presented is the metadata of every call of a connection over TCP. It implements
// credentials.PerRPCCredentials.
type presented map[string]string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (p presented) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return p, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (p presented) RequireTransportSecurity() bool { return false }

// An identity is the metadata of every call of a connection. It implements credentials.PerRPCCredentials.
type identity struct{ session, agent string }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (i identity) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	headers := map[string]string{"brokerd-session": i.session}
	if i.agent != "" {
		headers["brokerd-agent"] = i.agent
	}
	return headers, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (i identity) RequireTransportSecurity() bool { return false }
