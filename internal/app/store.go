package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/artifacts"
	"brokerd/internal/auth"
	"brokerd/internal/blockers"
	"brokerd/internal/catalog"
	"brokerd/internal/decisions"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/fault"
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
	"brokerd/internal/store/postgres"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// Migrations returns the steps that make the tables of every feature.
func Migrations() []store.Migration {
	return slices.Concat(
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
}

// openStore opens the data folder, and the database of the options or the configuration, with the tables of every
// feature. Commits are observed unless measured is nil.
func openStore(ctx context.Context, c Config, options store.Options, measured *metrics.Metrics) (*store.Store, error) {
	options.Clock, options.Log = c.Clock, c.Log.Named("store")
	if c.Replica == "" { // else the folder is locked for longer than the store is open
		options.Dir = c.Dir
	}
	options.Migrations = Migrations()
	if measured != nil {
		options.Committed = measured.Committed
	}
	if c.Store != "" && options.Database == nil {
		database, err := c.database()
		if err != nil {
			return nil, err
		}
		options.Database = database
	}
	if c.Options != nil {
		c.Options(&options)
	}
	return openPatiently(ctx, c, options)
}

// database returns the database of Store, without connecting to it.
func (c Config) database() (*postgres.Database, error) {
	password, err := c.password()
	if err != nil {
		return nil, err
	}
	database, err := postgres.New(c.Store, password, c.Clock)
	if err == nil && c.RequireStandby {
		database.RequireStandby()
	}
	return database, err
}

// password returns the first line of the password file; empty if there is none.
func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fault.Field("store_password_file", "%v", err)
	}
	password, _, _ := strings.Cut(string(text), "\n")
	if password = strings.TrimSuffix(password, "\r"); password == "" {
		return "", fault.Field("store_password_file", "%s has no password in its first line", c.PasswordFile)
	}
	return password, nil
}

// For how long a start waits for a database server, and between two attempts. A server that starts together with the
// broker, as in a Compose file, needs seconds; one that recovers from a crash can need a minute.
const (
	serverPatience = 2 * time.Minute
	serverPause    = time.Second
)

// passing are the reasons for which a start waits: the server cannot be reached yet, was not made the primary yet, or
// has no connection left at present.
var passing = []string{postgres.ReasonLost, postgres.ReasonReadOnly, postgres.ReasonBusy}

// openPatiently opens the store. It waits for a database server that is not ready yet.
func openPatiently(ctx context.Context, c Config, options store.Options) (*store.Store, error) {
	began, told := c.Clock.Now(), false
	for {
		st, err := store.Open(ctx, options)
		var f *fault.Error
		late := c.Clock.Since(began) > serverPatience || ctx.Err() != nil
		if late || !errors.As(err, &f) || !slices.Contains(passing, f.Reason) {
			return st, err
		}
		if !told {
			options.Log.Warn("waiting for the database", zap.Duration("at_most", serverPatience), zap.Error(err))
			told = true
		}
		select {
		case <-c.Clock.After(serverPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// warnOfLoss says in the log if the loss of a database server would be the loss of confirmed messages.
func (a *App) warnOfLoss(ctx context.Context, st *store.Store) error {
	if !st.OnServer() {
		return nil
	}
	facts, err := st.Facts(ctx)
	if err == nil && !facts.Standby {
		a.config.Log.Warn("the database has no synchronous standby", zap.String("confirmed_is", facts.Confirmed))
	}
	if err != nil {
		return fmt.Errorf("read from %s: %w", st.Name(), err)
	}
	return nil
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
