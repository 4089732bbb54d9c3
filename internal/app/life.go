package app

import (
	"context"
	"encoding/json"
	"fmt"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// logStart appends an event that the broker has started.
func (a *App) logStart(ctx context.Context, st *store.Store, journal *events.Log) error {
	version, err := json.Marshal(a.config.Version)
	if err != nil {
		return err
	}
	return logLife(ctx, st, journal, events.Entry{
		Type: "broker.started", Summary: "the broker has started", Details: fmt.Sprintf(`{"version":%s,"sync":%q}`, version, a.sync),
	})
}

// logStop appends an event that the broker stops. After it, no call changes anything.
func logStop(ctx context.Context, st *store.Store, journal *events.Log) error {
	return logLife(ctx, st, journal, events.Entry{Type: "broker.stopped", Summary: "the broker stops"})
}

// logLife appends an event of the broker itself.
func logLife(ctx context.Context, st *store.Store, journal *events.Log, e events.Entry) error {
	e.Category, e.Source = events.System, caller.System
	err := st.Write(ctx, func(tx *store.Tx) error {
		_, err := journal.Append(tx, e)
		return err
	})
	if err != nil {
		return fmt.Errorf("log %s: %w", e.Type, err)
	}
	return nil
}
