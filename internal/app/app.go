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
	"brokerd/internal/broker"
	"brokerd/internal/catalog"
	"brokerd/internal/decisions"
	"brokerd/internal/disk"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/locks"
	"brokerd/internal/metrics"
	"brokerd/internal/once"
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
	config  Config
	metrics string // where they are served
	sync    store.Sync
	failed  chan error
	serving sync.WaitGroup // of the goroutines that accept connections

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

// Failed gets an error if the daemon can no longer answer calls; it must be stopped then.
func (a *App) Failed() <-chan error { return a.failed }

// Stop stops the daemon: streams are told to go away, calls may finish until StopTimeout is over or
// ctx ends and are cut off then, what was accepted is written, and the data folder is free again.
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

	// The store, and with it the lock on the data folder.
	measured := newMetrics(c)
	reserve := disk.NewReserve(c.Dir, log.Named("disk"))
	st, err := openStore(ctx, c, store.Options{Sync: a.sync, Checkpoint: checkpoint, Full: reserve.Free}, measured)
	if err != nil {
		return err
	}
	a.onStop(func(context.Context) error { return st.Close() })
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
	journal := events.New(st, c.Clock, log.Named("events"))
	if measured != nil {
		journal.Observe(measured.Event)
	}
	scopes := sessions.New(st, journal)
	registry := agents.New(st, journal, scopes, c.Clock, log.Named("agents"))
	post := broker.New(st, journal, directory{scopes, registry}, c.Clock, log.Named("broker"))
	kinds := catalog.New(st, journal, catalogDirectory{scopes, registry})
	post.UseCatalog(kinds)
	post.UseTracer(tracer)
	held := locks.New(st, journal, holders{scopes, registry}, c.Clock, log.Named("locks"))
	connect(journal, scopes, registry, post)
	connectLocks(scopes, registry, post, held)
	held.UseCrew(post)
	held.UseTracer(tracer)
	// After the hooks are in place: it looks at once, and what it finds is an event.
	used := func() (float64, error) { return c.DiskUsed(c.Dir) }
	space := disk.New(st, journal, c.Clock, log.Named("disk"), used, c.Dir, reserve)
	post.UseDisk(space)
	keys := state.New(st, journal, stateDirectory{scopes, registry}, c.Clock, log.Named("state"))
	keys.UseDisk(space)
	connectState(scopes, registry, keys)
	people, letters := directoryOfWork{scopes, registry}, postOfWork{post}
	obstacles := blockers.New(st, journal, people, letters, c.Clock, log.Named("blockers"))
	connectBlockers(scopes, registry, obstacles)
	board := tasks.New(st, journal, people, letters, c.Clock, log.Named("tasks"))
	connectTasks(scopes, registry, post, board)
	drains := newDrains(st, journal, c.Clock, scopes, post, board)
	obstacles.UseTasks(board)
	board.UseBlockers(obstacles)
	board.OnDone(obstacles.TaskDone)
	board.UseRelated(carriers{post, journal, keys})
	files, err := openArtifacts(c, st, journal, people, space, measured, log)
	if err != nil {
		return err
	}
	deals := handoffs.New(st, journal, people, letters, board, handoffLocks{held}, files, c.Clock, log.Named("handoffs"))
	connectHandoffs(scopes, registry, deals)
	grants := auth.New(st, journal, scopes, secret, c.Clock, log.Named("auth"))
	a.onStop(func(context.Context) error { return files.Stop() })
	polls := votes.New(st, journal, people, letters, c.Clock, log.Named("votes"))
	connectVotes(scopes, registry, polls)
	verdicts := decisions.New(decisions.Parts{
		Store: st, Log: journal, Directory: people, Post: letters, Tokens: reviewTokens{held}, Crew: post,
		Clock: c.Clock, Zap: log.Named("decisions"),
	})
	connectDecisions(scopes, registry, verdicts)
	connectArtifacts(files, post, keys, board, verdicts, deals)
	for _, f := range []ofTask{verdicts, obstacles, deals, polls, files} {
		board.UseRelated(workOfTasks{f})
	}
	jobs := workFeatures{board, verdicts, obstacles, deals, polls}
	registry.UseHolders(jobs)
	connectMailboxes(scopes, registry, post)
	keeper := retention.New(retention.Options{
		Store: st, Sessions: kept{scopes, grants}, Messages: keptMessages{post, []closer{held, keys, board, verdicts, obstacles, deals, polls}}, Events: keptEvents{journal}, Parts: slices.Concat(parts(registry, post, keys, held), partsOfWork(board, verdicts, obstacles, deals, polls), []retention.Part{artifactPart(files), typePart(kinds)}),
		Tidy: post.Tidy, Archived: c.archived, Dir: c.Dir, Clock: c.Clock, Log: log.Named("retention"),
	})
	wake(keeper, scopes, post)

	// The server.
	options := rpc.Options{
		UID:          os.Getuid(),
		Credentials:  grants,
		Certificates: a.certificates,
		Presence:     registry,
		Traces:       tracer != nil,
		Clock:        c.Clock,
		Log:          log.Named("rpc"),
	}
	if measured != nil {
		post.Observe(measured)
		held.Observe(measured)
		verdicts.Observe(measured)
		obstacles.Observe(measured)
		deals.Observe(measured)
		polls.Observe(measured)
		board.Observe(measured)
		options.Observer = measured
	}
	server := rpc.NewServer(options)
	webListener := server.Web()
	facts := admin.Facts{Version: c.Version, StartedAt: began, Sync: a.sync, DataDir: c.Dir, Listen: a.Addresses}
	a.reportDamage(st, server)
	backups := newBackups(c, st, journal, scopes, files)
	if err := backups.Start(); err != nil {
		return fmt.Errorf("start backups: %w", err)
	}
	if err := drains.Start(ctx); err != nil {
		return fmt.Errorf("start drains: %w", err)
	}
	explainers := []admin.Explainer{registry, post, held, keys, space, board, verdicts, obstacles, deals, polls, drains}
	views := newOverviews(st, journal, c.Clock, log.Named("overview"), scopes,
		overviewSources{commons{held, keys, jobs}, post, registry, explainers})
	a.onStop(func(context.Context) error { views.Stop(); return nil })
	inspector := admin.NewInspector(st, tables{dir: c.Dir}, journal)
	register(server, services{
		admin: adminService{admin.NewService(admin.Parts{
			Facts: facts, Store: st, Clock: c.Clock, Directory: census{scopes, registry}, Mailboxes: mailboxes{post}, Post: mailboxes{post}, Commons: commons{held, keys, jobs},
			Traffic: server, Inspector: inspector,
			Explainers: explainers, Drains: drains,
		}), backup.NewAdminService(backups), retention.NewPruneService(keeper), drain.NewServer(drains),
			overview.NewWatchService(views), &doorman{a, server}},
		agents:   agents.NewService(registry),
		files:    artifacts.NewService(files),
		blockers: blockers.NewService(obstacles),
		catalog:  catalog.NewService(kinds),
		grants:   auth.NewService(grants),
		handoffs: handoffs.NewService(deals),
		channels: broker.NewChannelService(post),
		verdicts: decisions.NewService(verdicts),
		locks:    locks.NewService(held, server.ItemError),
		events:   events.NewService(journal, scopes, authors{registry, post}, reports{obstacles}),
		messages: broker.NewService(post, server.ItemError),
		sessions: sessionService{sessions.NewService(scopes), retention.NewSessionService(keeper)},
		state:    state.NewService(keys),
		tasks:    tasks.NewService(board),
		tokens:   locks.NewTokenService(held),
		votes:    votes.NewService(polls),
	})

	pages := web.New(web.Options{RPC: server, Version: c.Version, Clock: c.Clock, Log: log.Named("web")})

	// What runs by itself.
	a.onStop(func(context.Context) error { registry.Stop(); return nil })
	if err := registry.Start(ctx); err != nil {
		return fmt.Errorf("start agents: %w", err)
	}
	a.onStop(func(context.Context) error { grants.Stop(); return nil })
	if err := grants.Start(ctx); err != nil {
		return fmt.Errorf("start credentials: %w", err)
	}
	a.onStop(func(context.Context) error { post.Stop(); return nil })
	if err := post.Start(ctx); err != nil {
		return fmt.Errorf("start broker: %w", err)
	}
	a.onStop(func(context.Context) error { keys.Stop(); return nil })
	if err := keys.Start(ctx); err != nil {
		return fmt.Errorf("start state: %w", err)
	}
	a.onStop(func(context.Context) error { held.Stop(); return nil })
	if err := held.Start(ctx); err != nil {
		return fmt.Errorf("start locks: %w", err)
	}
	if err := files.Start(ctx); err != nil {
		return fmt.Errorf("start artifacts: %w", err)
	}
	a.onStop(func(context.Context) error { obstacles.Stop(); return nil })
	obstacles.Start()
	a.onStop(func(context.Context) error { deals.Stop(); return nil })
	deals.Start()
	a.onStop(func(context.Context) error { verdicts.Stop(); return nil })
	verdicts.Start()
	a.onStop(func(context.Context) error { polls.Stop(); return nil })
	polls.Start()
	a.onStop(func(context.Context) error { board.Stop(); return nil })
	if err := board.Start(ctx); err != nil {
		return fmt.Errorf("start tasks: %w", err)
	}
	a.onStop(func(context.Context) error { keeper.Stop(); return nil })
	if err := keeper.Start(); err != nil {
		return fmt.Errorf("start retention: %w", err)
	}
	if err := a.servePprof(); err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	health := &probes{store: st, space: space, drains: drains}
	if err := a.serveMetrics(measured, gauges{st, post, registry, used}, health); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	a.logStart(ctx, st, journal)
	a.onStop(func(ctx context.Context) error {
		a.logStop(context.WithoutCancel(ctx), st, journal)
		return nil
	})
	a.onStop(func(ctx context.Context) error {
		drains.Stop()
		views.Drain()
		post.Drain()
		keys.Drain()
		held.Drain()
		files.Drain()
		backups.Drain()
		verdicts.Drain()
		obstacles.Drain()
		deals.Drain()
		polls.Drain()
		board.Drain()
		journal.Stop()
		return a.stopServer(ctx, server, pages)
	})
	a.onStop(func(context.Context) error { a.closeDoor(); return nil })
	a.onStop(health.drain)
	a.serving.Go(func() {
		if err := pages.Serve(webListener); err != nil {
			a.fail(fmt.Errorf("serve HTTP: %w", err))
		}
	})
	for _, l := range listeners {
		a.serve(server, l)
	}
	if err := a.announce(); err != nil {
		return err
	}
	st.CheckBehind()
	health.enter(serving)
	return nil
}

// openStore opens the data folder with the tables of every feature. Commits are observed unless measured is nil.
func openStore(ctx context.Context, c Config, options store.Options, measured *metrics.Metrics) (*store.Store, error) {
	options.Dir, options.Clock, options.Log = c.Dir, c.Clock, c.Log.Named("store")
	options.Migrations = slices.Concat(
		events.Migrations(),
		once.Migrations(),
		sessions.Migrations(),
		agents.Migrations(),
		broker.Migrations(),
		state.Migrations(),
		locks.Migrations(),
		decisions.Migrations(),
		artifacts.Migrations(),
		blockers.Migrations(),
		handoffs.Migrations(),
		votes.Migrations(),
		work.Migrations(),
		tasks.Migrations(),
		retention.Migrations(),
		catalog.Migrations(),
		auth.Migrations(),
		drain.Migrations(),
	)
	if measured != nil {
		options.Committed = measured.Committed
	}
	if c.Store != nil {
		c.Store(&options)
	}
	return store.Open(ctx, options)
}

// reportDamage makes the server's health show damage of the database as soon as the store finds it.
func (a *App) reportDamage(st *store.Store, server *rpc.Server) {
	stopping := make(chan struct{})
	a.onStop(func(context.Context) error { close(stopping); return nil })
	a.serving.Go(func() {
		select {
		case <-st.Damaged():
			server.Damaged()
		case <-stopping:
		}
	})
}

func (a *App) onStop(stop func(ctx context.Context) error) { a.teardown = append(a.teardown, stop) }

// fail takes note of the first failure.
func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
