package locks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// A table remembers in memory where something is held, and must not believe what was undone.

func TestGrant_StandsIfItsEndIsUndone(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewRealClock()
	st := newStore(t, clock)
	table := newTable(t, st, clock)
	acquire := func(agent string, token string, paths ...string) locks.Outcome {
		t.Helper()
		as := identity.Caller{Access: identity.Agent, Session: "default", Agent: agent}
		a, err := table.Acquire(t.Context(), as, idempotency.Request{}, locks.Wish{Paths: paths, Token: token, Mode: locks.Exclusive, MaxHold: time.Hour})
		apptest.NoError(t, err)
		return a.Outcome
	}
	want(t, "a takes the file", acquire("a", "", "src/a.go"), locks.Granted)
	want(t, "a takes the token", acquire("a", "review/x"), locks.Granted)
	undone := errors.New("undone")
	err := st.Write(context.Background(), func(tx *store.Tx) error {
		if _, err := table.AgentEnded(tx, directory.Agent{Session: 1, Name: "a"}); err != nil {
			return err
		}
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	want(t, "b tries the file", acquire("b", "", "src/a.go"), locks.Busy)
	want(t, "b tries the token", acquire("b", "review/x"), locks.Busy)
}

// newStore returns a store with the agents a, b, c and d.
func newStore(t *testing.T, clock clockwork.Clock) *store.Store {
	t.Helper()
	st := testkit.Store(t, t.TempDir(), clock, idempotency.Migrations(), sessions.Migrations(), agents.Migrations(),
		events.Migrations(), locks.Migrations())
	testkit.Agents(t, st, "", "a", "b", "c", "d")
	return st
}

// newTable returns a table by itself.
func newTable(t *testing.T, st *store.Store, clock clockwork.Clock) *locks.Table {
	t.Helper()
	table := locks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop())
	apptest.NoError(t, table.Start(t.Context()))
	t.Cleanup(table.Stop)
	return table
}

func TestGrant_StandsOverARestart(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.lock("src/a.go")
	a.lock("lib/")
	w.Restart()
	for _, path := range []string{"src/a.go", "lib/x/y.go", "src/"} {
		want(t, "b tries "+path, b.try(path).Outcome, busy)
	}
	b.lock("src/b.go")
}
