package app

import (
	"context"
	"slices"

	"brokerd/internal/agents"
	"brokerd/internal/artifacts"
	"brokerd/internal/auth"
	"brokerd/internal/blockers"
	"brokerd/internal/catalog"
	"brokerd/internal/decisions"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/idempotency"
	"brokerd/internal/locks"
	"brokerd/internal/metrics"
	"brokerd/internal/retention"
	"brokerd/internal/rpc"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// openStore opens the data folder with the tables of every feature. Commits are observed unless measured is nil.
func openStore(ctx context.Context, c Config, options store.Options, measured *metrics.Metrics) (*store.Store, error) {
	options.Dir, options.Clock, options.Log = c.Dir, c.Clock, c.Log.Named("store")
	options.Migrations = slices.Concat(
		events.Migrations(),
		idempotency.Migrations(),
		sessions.Migrations(),
		agents.Migrations(),
		schema.Migrations(),
		state.Migrations(),
		locks.Migrations(),
		work.Migrations(),
		decisions.Migrations(),
		artifacts.Migrations(),
		blockers.Migrations(),
		handoffs.Migrations(),
		votes.Migrations(),
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
