package app

import (
	"context"
	"encoding/json"
	"fmt"

	"go.uber.org/zap"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// logStart appends an event that the broker has started.
func (a *App) logStart(ctx context.Context, st *store.Store, journal *events.Log) {
	version, _ := json.Marshal(a.config.Version) // a string always marshals
	a.logLife(ctx, st, journal, events.Entry{
		Type: "broker.started", Summary: "the broker has started", Details: fmt.Sprintf(`{"version":%s,"sync":%q}`, version, a.sync),
	})
}

// logStop appends an event that the broker stops. After it, no call changes anything.
func (a *App) logStop(ctx context.Context, st *store.Store, journal *events.Log) {
	a.logLife(ctx, st, journal, events.Entry{Type: "broker.stopped", Summary: "the broker stops"})
}

// logLife appends an event of the broker itself. A broker that cannot write, because the disk is
// full or the database is damaged, starts and stops all the same.
func (a *App) logLife(ctx context.Context, st *store.Store, journal *events.Log, e events.Entry) {
	e.Category, e.Source = events.System, caller.System
	err := st.Write(ctx, func(tx *store.Tx) error {
		_, err := journal.Append(tx, e)
		return err
	})
	if err != nil {
		a.config.Log.Warn("cannot log the event "+e.Type, zap.Error(err))
	}
}
