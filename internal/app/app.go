package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/admin"
	"brokerd/internal/agents"
	"brokerd/internal/artifacts"
	"brokerd/internal/auth"
	"brokerd/internal/backup"
	"brokerd/internal/blockers"
	"brokerd/internal/decisions"
	"brokerd/internal/diagnose"
	"brokerd/internal/directory"
	"brokerd/internal/diskguard"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/handoffs"
	"brokerd/internal/locks"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/messagetrace"
	"brokerd/internal/overview"
	"brokerd/internal/retention"
	"brokerd/internal/rpc"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/web"
	"brokerd/internal/work"
)

// An App is a running daemon. Its methods may be called concurrently.
type App struct {
	config   Config
	front    *front             // of a replica; nil without others
	database *postgres.Database // nil without a server
	seen     *seen              // what this broker knows to be in the database
	metrics  string             // where they are served
	sync     store.Sync
	failed   chan error
	sleeping func(ctx context.Context) ([]string, error) // see SleepingMailboxes
	serving  sync.WaitGroup                              // of the goroutines that accept connections

	door   sync.Mutex // guards the fields below
	listen []string
	closed bool // no address is opened any more

	certificates *rpc.Certificates // nil without TLS
	passage      *rpc.Passage      // of a replica: through which the front passes connections
	lost         <-chan error      // of a replica: gets why it must not lead any more

	began    time.Time                         // when it began to run the broker
	reason   string                            // why Run stops the daemon
	teardown []func(ctx context.Context) error // what Stop does, last one first
	stopOnce sync.Once
	stopErr  error
}

// Start starts the daemon and returns when it answers calls. What had been started is stopped again
// if something fails. The context bounds the start alone.
func Start(ctx context.Context, c Config) (*App, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	a := &App{config: c, failed: make(chan error, 1)}
	if err := a.start(ctx); err != nil {
		if e := a.Stop(ctx); e != nil {
			err = errors.Join(err, e)
		}
		return nil, err
	}
	return a, nil
}

// Addresses returns where the daemon listens, as clients dial it; first the socket of the data folder.
func (a *App) Addresses() []string {
	if a.front != nil {
		return a.front.Addresses()
	}
	a.door.Lock()
	defer a.door.Unlock()
	return slices.Clone(a.listen)
}

// Metrics returns the address at which metrics are served; it is empty if they are not served.
func (a *App) Metrics() string { return a.metrics }

// Dir returns the data folder as an absolute path.
func (a *App) Dir() string { return a.config.Dir }

// Sync names what a commit survives: full or normal.
func (a *App) Sync() string { return a.sync.String() }

// SleepingMailboxes returns one line for each mailbox that sleeps: a consumer waits for a ready delivery in it and does not receive
// the delivery. It is the part of CheckDatabase that is cheap enough to be repeated.
func (a *App) SleepingMailboxes(ctx context.Context) ([]string, error) { return a.sleeping(ctx) }

// Failed gets an error if the daemon can no longer answer calls; it must be stopped then.
func (a *App) Failed() <-chan error { return a.failed }

// Stop stops the daemon. Streams receive a notice to go away. Calls may finish until StopTimeout has
// passed or ctx ends, and are cut off then. Accepted changes are written, and the data folder is free again.
// Further calls return what the first returned.
func (a *App) Stop(ctx context.Context) error {
	a.stopOnce.Do(func() {
		var errs []error
		for _, stop := range slices.Backward(a.teardown) {
			errs = append(errs, stop(ctx))
		}
		a.stopErr = errors.Join(errs...)
	})
	return a.stopErr
}

// A Daemon is what a program may ask of the daemon that it runs. Its methods may be called concurrently.
type Daemon interface {
	Addresses() []string
	Metrics() string
	Dir() string
	Sync() string
	ReloadCertificates()
}

// Run runs the daemon until ctx ends or it fails, and stops it. It calls ready once it answers calls, or with Replica
// once it forwards them. The log gets a record of the stop; its reason is the cause of ctx or the failure.
func Run(ctx context.Context, c Config, ready func(Daemon)) error {
	if c.Replica != "" {
		return runReplica(ctx, c, ready)
	}
	a, err := Start(ctx, c)
	if err != nil {
		return err
	}
	ready(a)
	select {
	case <-ctx.Done():
		return a.end(ctx, context.Cause(ctx))
	case err := <-a.failed:
		if errors.Is(err, store.ErrUnknown) { // no call can end well any more
			a.config.Log.Error("stopping at once", zap.Error(err))
			return errors.Join(err, a.cutOff())
		}
		return errors.Join(err, a.end(ctx, err))
	}
}

// end stops the daemon, and logs that with its reason.
func (a *App) end(ctx context.Context, cause error) error {
	log, clock := a.config.Log, a.config.Clock
	a.reason = cause.Error()
	reason := zap.String("reason", a.reason)
	stopped := clock.Now()
	log.Info("stopping", reason, zap.Duration("ran", stopped.Sub(a.began).Round(time.Millisecond)))
	err := a.Stop(context.WithoutCancel(ctx))
	log.Info("stopped", reason, zap.Duration("took", clock.Since(stopped).Round(time.Millisecond)))
	return err
}

// start is one straight function on purpose: reading it from the top is reading how the daemon hangs
// together. Each part registers how it ends the moment it exists.
func (a *App) start(ctx context.Context) error {
	c, log := a.config, a.config.Log
	var err error
	if a.sync, err = store.ParseSync(c.Sync); err != nil {
		return err
	}
	if c.Store != "" {
		a.sync = store.SyncFull
	}
	checkpoint, err := store.ParseCheckpoint(c.Checkpoint)
	if err != nil {
		return err
	}
	if a.front != nil {
		a.certificates, a.seen = a.front.certificates, a.front.seen
	} else {
		if err := errors.Join(c.checkAddresses(), c.checkTraces()); err != nil {
			return err
		}
		if a.certificates, err = c.certificates(); err != nil {
			return err
		}
		if err := a.expectSeen(); err != nil {
			return err
		}
	}

	p := &parts{}

	// The store, and with it the lock on the data folder.
	measured := newMetrics(c)
	reserve := diskguard.NewReserve(c.Dir, log.Named("disk"))
	p.store, err = openStore(ctx, c, a.storeOptions(store.Options{Sync: a.sync, Checkpoint: checkpoint, Full: reserve.Free}), measured)
	if err != nil {
		return err
	}
	a.began = c.Clock.Now()
	a.onStop(func(context.Context) error { return p.store.Close() })
	a.onStop(func(context.Context) error { a.serving.Wait(); return nil })
	if a.database != nil {
		a.keepSeen(p.store)
	}

	tracer, err := a.startTracer()
	if err != nil {
		return err
	}

	// Addresses to listen on. Clients can connect from here on, and wait for their answers until the end
	// of this function.
	secret, err := auth.OperatorSecret(c.Dir)
	if err != nil {
		return err
	}
	listeners, err := a.open()
	if err != nil {
		return err
	}

	// The features.
	p.events = events.New(p.store, c.Clock, log.Named("events"))
	var watch observer // nil = nothing is measured
	if measured != nil {
		watch = measured
		p.events.Observe(measured.Event)
	}
	p.directory = directory.New()
	p.sessions = sessions.New(p.store, p.events, p.directory)
	p.agents = agents.New(p.store, p.events, p.directory, c.Clock, log.Named("agents"))
	if tracer != nil {
		p.messagetrace = messagetrace.New(tracer, p.directory, c.Clock)
	}
	newMessages(p, c.Clock, log)
	p.locks = locks.New(p.store, p.events, p.directory, c.Clock, log.Named("locks"))
	p.diagnose = diagnose.New(p.broker, p.directory, p.agents)
	p.locks.UseTracer(tracer)
	// After the hook of events is in place: New checks the disk at once, and may append an event.
	used := func() (float64, error) { return c.DiskUsed(c.Dir) }
	p.diskguard = diskguard.New(p.store, p.events, c.Clock, log.Named("disk"), used, c.Dir, reserve)
	p.state = state.New(p.store, p.events, p.directory, c.Clock, log.Named("state"))
	desk := &work.Desk{
		Store:     p.store,
		Events:    p.events,
		Directory: p.directory,
		Post:      post{p.admission, p.backlog, p.notices},
		Clock:     c.Clock,
		Log:       log,
		Observer:  watch,
	}
	p.blockers = blockers.New(desk)
	p.tasks = tasks.New(desk)
	p.drain = drain.New(drain.Options{
		Store:     p.store,
		Log:       p.events,
		Clock:     c.Clock,
		Directory: p.directory,
		Messages:  gauges.Holders,
		Tasks:     p.tasks.Held,
		Resumed:   []func(*store.Tx) error{p.broker.Waiters.DrainEnded, p.tasks.DrainEnded},
	})
	contents, err := c.contents(p.store)
	if err != nil {
		return err
	}
	of := artifacts.Options{Transfers: watch}
	if c.Artifacts == "" && c.Store == "" {
		of.Disk = p.diskguard // which watches the disk of the data folder
	}
	p.artifacts = artifacts.New(desk, contents, of)
	a.onStop(func(context.Context) error { return p.artifacts.Stop() })
	p.handoffs = handoffs.New(desk, p.tasks, p.locks, p.artifacts)
	p.auth = auth.New(p.store, p.events, p.directory, secret, c.Clock, log.Named("auth"))
	if a.front != nil {
		p.auth.AlsoOperators(a.front.replica.Operator)
	}
	p.votes = votes.New(desk)
	p.decisions = decisions.New(desk, p.locks, p.diagnose)
	p.work = []workKind{p.decisions, p.blockers, p.handoffs, p.votes} // in the order in which reports have them
	p.jobs = work.Features{p.tasks}
	for _, k := range p.work {
		p.jobs = append(p.jobs, k)
	}
	parts, closing := p.agents.Data(), []func(context.Context, int64) error{p.locks.AwaitClosed, p.state.AwaitClosed, p.tasks.AwaitClosed}
	parts = append(parts, messagesrpc.ChannelData(p.archive), p.state.Data(), p.locks.Data())
	for _, k := range p.work {
		parts, closing = append(parts, k.Data()), append(closing, k.AwaitClosed)
	}
	archive, err := a.archiveFolder()
	if err != nil {
		return err
	}
	p.retention = retention.New(retention.Options{
		Store:    p.store,
		Sessions: kept{p.sessions},
		Messages: p.archive,
		Events:   p.events,
		Parts:    append(parts, p.tasks.Data(), p.artifacts.Data(), p.catalog.Data(), p.auth.Data()),
		Closing:  append(closing, p.backlog.AwaitClosed), // last, since the others withdraw mail
		Tidy:     p.archive.Tidy,
		Archived: c.archived,
		Dir:      c.Dir,
		Archive:  archive,
		Clock:    c.Clock,
		Log:      log.Named("retention"),
	})
	connect(p)

	// The server.
	p.broker.Counters.Observe(watch)
	p.offers.Observe(watch)
	p.locks.Observe(watch)
	p.rpc = rpc.NewServer(rpc.Options{
		UID:          os.Getuid(),
		Credentials:  p.auth,
		Certificates: a.certificates,
		Presence:     p.agents.Presence,
		Traces:       tracer != nil,
		Clock:        c.Clock,
		Log:          log.Named("rpc"),
		Observer:     watch,
	})
	webListener := p.rpc.Web()
	facts := admin.Facts{Version: c.Version, StartedAt: a.began, Sync: a.sync, Here: a.here}
	if a.front != nil {
		facts.Replicas = a.front.replicas
	}
	a.reportDamage(p.store, p.rpc)
	p.backup = backup.New(backup.Options{
		Store:       p.store,
		Log:         p.events,
		Directory:   p.directory,
		Contents:    p.artifacts,
		Disk:        p.diskguard,
		EachContent: artifacts.EachContent,
		Totals:      gauges.Totals,
		Dir:         c.Dir,
		Version:     c.Version,
		Clock:       c.Clock,
		Logger:      log.Named("backup"),
	})
	if err := p.backup.Start(); err != nil {
		return fmt.Errorf("start backups: %w", err)
	}
	if err := p.drain.Start(ctx); err != nil {
		return fmt.Errorf("start drains: %w", err)
	}
	explainers := []admin.Explainer{p.agents, p.diagnose, p.locks, p.state, p.diskguard, p.tasks}
	for _, k := range p.work {
		explainers = append(explainers, k)
	}
	explainers = append(explainers, p.drain, admin.Commits{Store: p.store})
	p.overview = overview.New(overview.Options{
		Store:     p.store,
		Events:    p.events,
		Clock:     c.Clock,
		Log:       log.Named("overview"),
		Directory: p.directory,
		Sources:   overviewSources{commons{p.state, p.jobs}, p.diagnose, p.agents, explainers},
	})
	a.onStop(func(context.Context) error { p.overview.Stop(); return nil })
	a.sleeping = func(ctx context.Context) ([]string, error) {
		return gauges.SleepingMailboxes(ctx, p.store, p.broker.Waiters, admin.MostProblems)
	}
	inspector := admin.NewInspector(p.store, tables{contents: contents, sleeping: a.sleeping}, p.events)
	register(p, log, adminService{
		admin.NewService(admin.Parts{
			Facts:      facts,
			Store:      p.store,
			Clock:      c.Clock,
			Directory:  p.directory,
			Agents:     p.agents,
			Presence:   p.agents.Presence,
			Mailboxes:  p.diagnose,
			Commons:    commons{p.state, p.jobs},
			Traffic:    p.rpc,
			Inspector:  inspector,
			Explainers: explainers,
			Drains:     p.drain,
		}),
		backup.NewAdminService(p.backup),
		retention.NewPruneService(p.retention),
		drain.NewServer(p.drain),
		overview.NewWatchService(p.overview),
		messagesrpc.NewMoveService(p.deadletters),
		&doorman{a, p.rpc},
	})

	pages := web.New(web.Options{RPC: p.rpc, Version: c.Version, Clock: c.Clock, Log: log.Named("web")})

	// What runs by itself, in the order of its start. It stops in reverse.
	if err := p.artifacts.Start(ctx); err != nil {
		return fmt.Errorf("start artifacts: %w", err)
	}
	runners := []runner{p.agents.Presence, p.auth, p.broker, p.backlog, p.admission, p.deadletters, p.state, p.locks}
	for _, k := range p.work {
		runners = append(runners, k)
	}
	for _, r := range append(runners, p.tasks, p.retention) {
		a.onStop(func(context.Context) error { r.Stop(); return nil })
		if err := r.Start(ctx); err != nil {
			return fmt.Errorf("start %T: %w", r, err)
		}
	}
	if err := a.servePprof(); err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	health := &probes{store: p.store, disk: p.diskguard, drain: p.drain, clock: c.Clock}
	if err := a.serveMetrics(measured, measures{p.store, p.agents.Presence, used}, health); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	if err := a.warnOfLoss(ctx, p.store); err != nil {
		return err
	}
	a.logStart(ctx, p.store, p.events)
	a.onStop(func(ctx context.Context) error {
		a.logStop(context.WithoutCancel(ctx), p.store, p.events)
		return nil
	})
	a.onStop(func(ctx context.Context) error {
		p.drain.Stop()
		p.overview.Drain()
		p.broker.Drain()
		p.deadletters.Drain()
		p.state.Drain()
		p.locks.Drain()
		p.artifacts.Drain()
		p.backup.Drain()
		for _, k := range p.work {
			k.Drain()
		}
		p.tasks.Drain()
		p.events.Stop()
		return a.stopServer(ctx, p.rpc, pages)
	})
	a.onStop(func(context.Context) error { a.closeDoor(); return nil })
	a.onStop(health.stop)
	a.serving.Go(func() {
		if err := pages.Serve(webListener); err != nil {
			a.fail(fmt.Errorf("serve HTTP: %w", err))
		}
	})
	for _, l := range listeners {
		a.serve(p.rpc, l)
	}
	if err := a.announce(); err != nil {
		return err
	}
	p.store.CheckBehind()
	health.enter(serving)
	return a.takeLead(ctx)
}

func (a *App) onStop(stop func(ctx context.Context) error) { a.teardown = append(a.teardown, stop) }

// fail takes note of the first failure.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
