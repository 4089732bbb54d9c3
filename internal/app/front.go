package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/admin"
	"brokerd/internal/auth"
	"brokerd/internal/metrics"
	"brokerd/internal/replica"
	"brokerd/internal/rpc"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// A front is the part of a replica that outlives a change of the leader: its data folder, its addresses, and the
// forwarding of what comes there. While it leads it has an App, which runs the broker as any other App does, except
// that it gets its connections from the front.
type front struct {
	config  Config
	replica *replica.Replica
	roster  *postgres.Roster
	monitor atomic.Pointer[http.Handler] // of the App; nil while this replica does not lead
	seen    *seen
	serving sync.WaitGroup
	failed  chan error

	certificates *rpc.Certificates // nil without TLS
	operator     string            // the secret in the operator's file
	metrics      string            // where they are served

	mu       sync.Mutex // guards the fields below
	listen   []string
	closed   bool
	teardown []func(ctx context.Context) error // what stop does, last one first
}

// runReplica is Run for one of several replicas on a database.
func runReplica(ctx context.Context, c Config, ready func(Daemon)) error {
	c, err := c.complete()
	if err != nil {
		return err
	}
	f := &front{config: c, failed: make(chan error, 1)}
	if err = f.start(ctx); err == nil {
		err = f.run(ctx, ready)
	}
	err = errors.Join(err, f.stop(context.WithoutCancel(ctx)))
	if ctx.Err() != nil {
		c.Log.Info("this replica has stopped", zap.String("reason", context.Cause(ctx).Error()))
	}
	return err
}

// run stands by and leads, and calls ready once there is a leader.
func (f *front) run(ctx context.Context, ready func(Daemon)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.serving.Go(func() { f.seen.keep(ctx, f.roster.Seen) })
	ended := make(chan error, 1)
	f.serving.Go(func() { ended <- f.replica.Run(ctx, f.standBy) })
	for settled := f.replica.Settled(); ; {
		select {
		case <-settled:
			settled = nil
			ready(f)
		case err := <-ended:
			return err
		case err := <-f.failed:
			cancel()
			return errors.Join(err, <-ended)
		}
	}
}

// start opens the addresses. Calls are answered from here on: by the leader, or by this replica once it leads.
func (f *front) start(context.Context) (err error) {
	c := f.config
	if err := errors.Join(c.checkAddresses(), c.checkTraces()); err != nil {
		return err
	}
	if f.certificates, err = c.certificates(); err != nil {
		return err
	}
	unlock, err := store.LockFolder(c.Dir)
	if err != nil {
		return err
	}
	f.onStop(func(context.Context) error { return unlock() })
	if f.seen, err = openSeen(c.Dir, c.Log.Named("store")); err != nil {
		return err
	}
	if f.operator, err = auth.OperatorSecret(c.Dir); err != nil {
		return err
	}
	database, err := c.database()
	if err != nil {
		return err
	}
	f.roster = postgres.NewRoster(database)
	f.onStop(func(context.Context) error { return f.roster.Close() })
	entrance := rpc.Entrance{UID: os.Getuid(), Certificates: f.certificates, Log: c.Log.Named("rpc")}
	f.replica, err = replica.New(replica.Options{
		Address: c.Replica, Dir: c.Dir, Version: c.Version, Operator: sha256.Sum256([]byte(f.operator)), Roster: f.roster,
		Entrance: entrance, Log: c.Log.Named("replica"),
	})
	if err != nil {
		return err
	}
	f.onStop(f.replica.Close)
	listeners, err := f.open()
	if err != nil {
		return err
	}
	if err := f.serveMonitor(); err != nil {
		return err
	}
	f.replica.Start()
	for _, l := range listeners {
		f.replica.Serve(l)
	}
	return f.announce()
}

// standBy waits until no other replica leads, begins to lead, and returns what does so from there on.
func (f *front) standBy(ctx context.Context) (replica.Term, error) {
	database, err := f.config.database()
	if err != nil {
		return nil, err
	}
	database.StandBy()
	database.Expect(f.known)
	a := &App{config: f.config, front: f, database: database, failed: make(chan error, 1)}
	if err = a.start(ctx); err == nil {
		return func(ctx context.Context) error { return f.serveTerm(ctx, a) }, nil
	}
	f.remember(a)
	return nil, errors.Join(err, a.cutOff())
}

// known returns what this replica knows to be in the database.
func (f *front) known() postgres.Seen {
	f.seen.note(f.roster.Seen())
	return f.seen.known()
}

// remember notes what a broker knows to be in the database.
func (f *front) remember(a *App) {
	_, seen := a.database.Led()
	f.seen.note(seen)
}

// serveTerm waits until the broker loses the lead or is to stop.
func (f *front) serveTerm(ctx context.Context, a *App) error {
	select {
	case <-ctx.Done():
		return a.end(ctx, context.Cause(ctx))
	case err := <-a.lost:
		return f.depose(a, fmt.Errorf("%w: %w", store.ErrUnknown, err))
	case err := <-a.failed:
		if errors.Is(err, store.ErrUnknown) {
			return f.depose(a, err)
		}
		return errors.Join(err, a.end(ctx, err))
	}
}

// depose ends a broker that no longer leads, and returns why.
func (f *front) depose(a *App, why error) error {
	f.remember(a)
	f.replica.Follow()
	if err := a.cutOff(); err != nil {
		f.config.Log.Debug("the end of a broker that no longer leads", zap.Error(err))
	}
	return why
}

// cutOff stops a broker that can change nothing more. It ends calls under way, which another replica answers when they
// are repeated.
func (a *App) cutOff() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return a.Stop(ctx)
}

// open opens the Unix socket of the data folder and the listeners of the configuration.
func (f *front) open() ([]net.Listener, error) {
	listeners, err := f.config.open()
	for _, l := range listeners {
		f.onStop(func(context.Context) error { _ = l.Close(); return nil }) // the replica closes it too
		f.listen = append(f.listen, dialled(l, f.certificates))
	}
	return listeners, err
}

// openLoopback is App.openLoopback for this replica.
func (f *front) openLoopback() (address string, opened bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if address := firstTCP(f.listen); address != "" {
		return address, false, nil
	}
	l, err := listenLoopback(f.closed)
	if err != nil {
		return "", false, err
	}
	f.replica.Serve(l)
	address = dialled(l, f.certificates)
	f.listen = append(f.listen, address)
	return address, true, nil
}

// serveMonitor serves metrics, health checks and profiles if there are addresses for them.
func (f *front) serveMonitor() error {
	serve := func(what, address string, handler http.Handler) (string, error) {
		if address == "" {
			return "", nil
		}
		l, err := rpc.Listen(address, rpc.LoopbackAlways)
		if err != nil {
			return "", fmt.Errorf("serve %s: %w", what, err)
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		f.onStop(func(context.Context) error { return server.Close() })
		f.serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				f.fail(fmt.Errorf("serve %s: %w", what, err))
			}
		})
		f.config.Log.Info("serving "+what, zap.String("address", rpc.Address(l)))
		return rpc.Address(l), nil
	}
	f.onStop(func(context.Context) error { f.serving.Wait(); return nil }) // when both are closed
	var err error
	if f.metrics, err = serve("metrics", f.config.Metrics, f.monitors()); err != nil {
		return err
	}
	_, err = serve("profiles", f.config.Pprof, profiles())
	return err
}

// monitors answers by the broker of this replica while it leads.
func (f *front) monitors() http.Handler {
	own := http.NewServeMux()
	own.Handle("GET /metrics", metrics.Follower(f.config.Log.Named("metrics"), f.config.Version, f.standing))
	own.HandleFunc("GET /healthz", healthz)
	own.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		problem := ""
		if err := f.replica.Ready(ctx); err != nil {
			problem = err.Error()
		}
		answerReady(w, problem)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if of := f.monitor.Load(); of != nil {
			(*of).ServeHTTP(w, r)
			return
		}
		own.ServeHTTP(w, r)
	})
}

// standing returns the figures of this replica.
func (f *front) standing() metrics.Standing {
	known := f.replica.Standing()
	out := metrics.Standing{Replica: known.Address, Leads: known.Leads, Forwarded: known.Forwarded}
	for _, one := range known.Replicas {
		if one.Leading {
			out.Epoch = one.Epoch
		}
		if one.Seen > postgres.Absent {
			out.Silent++
		} else {
			out.Present++
		}
	}
	return out
}

// replicas implements admin.Facts.Replicas.
func (f *front) replicas(ctx context.Context) (through string, all []admin.Replica) {
	through = f.replica.Address()
	if via := rpc.ViaOf(ctx); via != nil {
		through = via.Replica
	}
	for _, one := range f.replica.Standing().Replicas {
		all = append(all, admin.Replica{
			Address: one.Address, Version: one.Version, Leads: one.Leading, Since: one.Since, Silent: one.Seen,
		})
	}
	return through, all
}

// answerBy has a broker that leads answer for metrics and health checks, until it stops.
func (f *front) answerBy(a *App, handler http.Handler) {
	f.monitor.Store(&handler)
	a.onStop(func(context.Context) error { f.monitor.Store(nil); return nil })
}

// storeOptions adds what a server needs to the options of a store.
func (a *App) storeOptions(o store.Options) store.Options {
	if a.database != nil {
		o.Database, o.Fatal, o.Replicated = a.database, a.fail, a.front != nil
	}
	return o
}

// takeLead has the connections of clients, those of other replicas included, go to this broker.
func (a *App) takeLead(ctx context.Context) error {
	if a.front == nil {
		return nil
	}
	epoch, _ := a.database.Led()
	var err error
	if a.lost, err = a.front.replica.Lead(ctx, a.passage, epoch); err != nil {
		return err
	}
	a.onStop(func(context.Context) error { a.front.replica.Follow(); return nil })
	return nil
}

// announce writes the endpoint file.
func (f *front) announce() error {
	remove, err := writeEndpoint(f.config.Dir, f.Addresses()[0])
	if err == nil {
		f.onStop(func(context.Context) error { return remove() })
	}
	return err
}

func (f *front) onStop(stop func(ctx context.Context) error) { f.teardown = append(f.teardown, stop) }

// stop does what onStop has registered, in reverse.
func (f *front) stop(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	var errs []error
	for _, stop := range slices.Backward(f.teardown) {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}

// fail takes note of the first failure.
func (f *front) fail(err error) {
	select {
	case f.failed <- err:
	default:
	}
}

// Addresses implements Daemon.
func (f *front) Addresses() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.listen)
}

// Dir implements Daemon.
func (f *front) Dir() string { return f.config.Dir }

// Metrics implements Daemon.
func (f *front) Metrics() string { return f.metrics }

// Sync implements Daemon.
func (f *front) Sync() string { return store.SyncFull.String() }

// ReloadCertificates implements Daemon.
func (f *front) ReloadCertificates() {
	if f.certificates != nil {
		f.certificates.Reload()
	}
}
