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
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/web"
	"brokerd/internal/work"
)

// An App is a running daemon. Its methods may be called concurrently.
type App struct {
	config   Config
	metrics  string // where they are served
	sync     store.Sync
	failed   chan error
	sleeping func(ctx context.Context) ([]string, error) // see SleepingMailboxes
	serving  sync.WaitGroup                              // of the goroutines that accept connections

	door   sync.Mutex // guards the fields below
	listen []string
	closed bool // no address is opened any more

	certificates *rpc.Certificates // nil without TLS

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

// Run runs the daemon until ctx ends or it fails, and stops it. It calls ready once it answers calls.
// The log gets a record of the stop; its reason is the cause of ctx or the failure.
func Run(ctx context.Context, c Config, ready func(*App)) error {
	a, err := Start(ctx, c)
	if err != nil {
		return err
	}
	log, clock := a.config.Log, a.config.Clock
	began := clock.Now()
	ready(a)
	var cause error
	select {
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case err = <-a.failed:
		cause = err
	}
	a.reason = cause.Error()
	reason := zap.String("reason", a.reason)
	stopped := clock.Now()
	log.Info("stopping", reason, zap.Duration("ran", stopped.Sub(began).Round(time.Millisecond)))
	err = errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
	log.Info("stopped", reason, zap.Duration("took", clock.Since(stopped).Round(time.Millisecond)))
	return err
}

// start is one straight function on purpose: reading it from the top is reading how the daemon hangs
// together. Each part registers how it ends the moment it exists.
func (a *App) start(ctx context.Context) error {
	c, log := a.config, a.config.Log
	began := c.Clock.Now()
	var err error
	if a.sync, err = store.ParseSync(c.Sync); err != nil {
		return err
	}
	checkpoint, err := store.ParseCheckpoint(c.Checkpoint)
	if err != nil {
		return err
	}
	if err := errors.Join(c.checkAddresses(), c.checkTraces()); err != nil {
		return err
	}
	if a.certificates, err = c.certificates(); err != nil {
		return err
	}

	p := &parts{}

	// The store, and with it the lock on the data folder.
	measured := newMetrics(c)
	reserve := diskguard.NewReserve(c.Dir, log.Named("disk"))
	p.store, err = openStore(ctx, c, store.Options{Sync: a.sync, Checkpoint: checkpoint, Full: reserve.Free}, measured)
	if err != nil {
		return err
	}
	a.onStop(func(context.Context) error { return p.store.Close() })
	a.onStop(func(context.Context) error { a.serving.Wait(); return nil })

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
	if measured != nil {
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
	connect(p)
	connectLocks(p)
	p.diagnose = diagnose.New(p.broker, p.directory, crew{p.directory, p.agents})
	p.locks.UseCrew(p.diagnose)
	p.locks.UseTracer(tracer)
	// After the hooks are in place: New checks the disk at once, and may append an event.
	used := func() (float64, error) { return c.DiskUsed(c.Dir) }
	p.diskguard = diskguard.New(p.store, p.events, c.Clock, log.Named("disk"), used, c.Dir, reserve)
	p.admission.UseDisk(p.diskguard)
	p.state = state.New(p.store, p.events, p.directory, c.Clock, log.Named("state"))
	p.state.UseDisk(p.diskguard)
	connectState(p)
	letters := postOfWork{p.admission, p.backlog, p.notices}
	desk := &work.Desk{
		Store:     p.store,
		Events:    p.events,
		Directory: p.directory,
		Post:      letters,
		Clock:     c.Clock,
		Log:       log,
	}
	contents := artifacts.Options{Dir: c.Dir, Disk: p.diskguard}
	if measured != nil {
		desk.Observer, contents.Transfers = measured, measured
	}
	p.blockers = blockers.New(desk)
	connectBlockers(p)
	p.tasks = tasks.New(desk)
	connectTasks(p)
	p.drain = newDrain(p, c.Clock)
	p.blockers.UseTasks(p.tasks)
	p.tasks.UseBlockers(p.blockers)
	p.tasks.OnDone(p.blockers.TaskDone)
	p.tasks.UseRelated(carriers{p.events, p.state})
	p.artifacts, err = artifacts.New(desk, contents)
	if err != nil {
		return err
	}
	p.handoffs = handoffs.New(desk, p.tasks, handoffLocks{p.locks}, p.artifacts)
	connectWork(p, p.handoffs)
	p.auth = auth.New(p.store, p.events, p.directory, secret, c.Clock, log.Named("auth"))
	a.onStop(func(context.Context) error { return p.artifacts.Stop() })
	p.votes = votes.New(desk)
	connectWork(p, p.votes)
	p.decisions = decisions.New(desk, reviewTokens{p.locks}, p.diagnose)
	connectWork(p, p.decisions)
	connectArtifacts(p)
	p.work = []workKind{p.decisions, p.blockers, p.handoffs, p.votes} // in the order in which reports have them
	jobs := workFeatures{p.tasks}
	closers := []closer{p.locks, p.state, p.tasks}
	for _, k := range p.work {
		p.tasks.UseRelated(workOfTasks{k})
		jobs, closers = append(jobs, k), append(closers, k)
	}
	p.tasks.UseRelated(workOfTasks{p.artifacts})
	p.agents.UseHolders(jobs)
	connectMailboxes(p)
	p.retention = retention.New(retention.Options{
		Store:    p.store,
		Sessions: kept{p.sessions, p.auth},
		Messages: keptMessages{p.archive, append(closers, p.backlog)},
		Events:   keptEvents{p.events},
		Parts: slices.Concat(
			partsOfSession(p),
			partsOfWork(p),
			[]retention.Part{artifactPart(p.artifacts), typePart(p.catalog)},
		),
		Tidy:     p.archive.Tidy,
		Archived: c.archived,
		Dir:      c.Dir,
		Clock:    c.Clock,
		Log:      log.Named("retention"),
	})
	wake(p)

	// The server.
	options := rpc.Options{
		UID:          os.Getuid(),
		Credentials:  p.auth,
		Certificates: a.certificates,
		Presence:     p.agents,
		Traces:       tracer != nil,
		Clock:        c.Clock,
		Log:          log.Named("rpc"),
	}
	if measured != nil {
		p.broker.Counters.Observe(measured)
		p.offers.Observe(measured)
		p.locks.Observe(measured)
		options.Observer = measured
	}
	p.rpc = rpc.NewServer(options)
	webListener := p.rpc.Web()
	facts := admin.Facts{Version: c.Version, StartedAt: began, Sync: a.sync, DataDir: c.Dir, Listen: a.Addresses}
	a.reportDamage(p.store, p.rpc)
	p.backup = newBackup(p, c)
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
	explainers = append(explainers, p.drain)
	p.overview = newOverviews(p.store, p.events, c.Clock, log.Named("overview"), p.directory,
		overviewSources{commons{p.state, jobs}, p.diagnose, p.agents, explainers})
	a.onStop(func(context.Context) error { p.overview.Stop(); return nil })
	a.sleeping = func(ctx context.Context) ([]string, error) {
		return gauges.SleepingMailboxes(ctx, p.store, p.broker.Waiters, admin.MostProblems)
	}
	inspector := admin.NewInspector(p.store, tables{dir: c.Dir, sleeping: a.sleeping}, p.events)
	register(p.rpc, services{
		admin: adminService{
			admin.NewService(admin.Parts{
				Facts:      facts,
				Store:      p.store,
				Clock:      c.Clock,
				Directory:  p.directory,
				Agents:     census{p.agents},
				Mailboxes:  mailboxes{p.diagnose},
				Post:       post{p.deadletters},
				Commons:    commons{p.state, jobs},
				Traffic:    p.rpc,
				Inspector:  inspector,
				Explainers: explainers,
				Drains:     p.drain,
			}),
			backup.NewAdminService(p.backup),
			retention.NewPruneService(p.retention),
			drain.NewServer(p.drain),
			overview.NewWatchService(p.overview),
			&doorman{a, p.rpc},
		},
		agents:    agents.NewService(p.agents),
		artifacts: p.artifacts,
		blockers:  p.blockers,
		catalog:   p.catalog,
		auth:      auth.NewService(p.auth),
		handoffs:  p.handoffs,
		channels:  messagesrpc.NewChannelService(p.channels),
		decisions: p.decisions,
		locks:     locks.NewService(p.locks, p.rpc.ItemError),
		events:    events.NewService(p.events, p.directory, p.admission, reports{p.blockers}),
		messages: messagesrpc.NewService(
			p.broker, p.router, p.admission, p.inbox, p.conversations, p.deadletters, p.offers, p.catalog, p.agents,
			p.messagetrace, p.rpc.ItemError, log.Named("broker")),
		sessions: sessionService{sessions.NewService(p.sessions), retention.NewSessionService(p.retention)},
		state:    state.NewService(p.state),
		tasks:    p.tasks,
		tokens:   locks.NewTokenService(p.locks),
		votes:    p.votes,
	})

	pages := web.New(web.Options{RPC: p.rpc, Version: c.Version, Clock: c.Clock, Log: log.Named("web")})

	// What runs by itself.
	a.onStop(func(context.Context) error { p.agents.Stop(); return nil })
	if err := p.agents.Start(ctx); err != nil {
		return fmt.Errorf("start agents: %w", err)
	}
	a.onStop(func(context.Context) error { p.auth.Stop(); return nil })
	if err := p.auth.Start(ctx); err != nil {
		return fmt.Errorf("start credentials: %w", err)
	}
	a.onStop(func(context.Context) error { p.broker.Stop(); return nil })
	if err := p.broker.Start(ctx); err != nil {
		return fmt.Errorf("start broker: %w", err)
	}
	a.onStop(func(context.Context) error { p.backlog.Stop(); return nil })
	if err := p.backlog.Start(ctx); err != nil {
		return fmt.Errorf("start backlog: %w", err)
	}
	a.onStop(func(context.Context) error { p.admission.Stop(); return nil })
	if err := p.admission.Start(ctx); err != nil {
		return fmt.Errorf("start admission: %w", err)
	}
	a.onStop(func(context.Context) error { p.deadletters.Stop(); return nil })
	if err := p.deadletters.Start(ctx); err != nil {
		return fmt.Errorf("start dead letters: %w", err)
	}
	a.onStop(func(context.Context) error { p.state.Stop(); return nil })
	if err := p.state.Start(ctx); err != nil {
		return fmt.Errorf("start state: %w", err)
	}
	a.onStop(func(context.Context) error { p.locks.Stop(); return nil })
	if err := p.locks.Start(ctx); err != nil {
		return fmt.Errorf("start locks: %w", err)
	}
	if err := p.artifacts.Start(ctx); err != nil {
		return fmt.Errorf("start artifacts: %w", err)
	}
	for _, k := range p.work {
		a.onStop(func(context.Context) error { k.Stop(); return nil })
		k.Start()
	}
	a.onStop(func(context.Context) error { p.tasks.Stop(); return nil })
	if err := p.tasks.Start(ctx); err != nil {
		return fmt.Errorf("start tasks: %w", err)
	}
	a.onStop(func(context.Context) error { p.retention.Stop(); return nil })
	if err := p.retention.Start(); err != nil {
		return fmt.Errorf("start retention: %w", err)
	}
	if err := a.servePprof(); err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	health := &probes{store: p.store, disk: p.diskguard, drain: p.drain}
	if err := a.serveMetrics(measured, measures{p.store, p.agents, used}, health); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
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
	return nil
}

func (a *App) onStop(stop func(ctx context.Context) error) { a.teardown = append(a.teardown, stop) }

// fail takes note of the first failure.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
