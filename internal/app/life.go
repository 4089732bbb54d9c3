package app

import (
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A startReport has the details of the event broker.started. Those of the run before are missing at the first start on
// a data folder, and those of replicas where there are none.
type startReport struct {
	Version     string   `json:"version"`
	Sync        string   `json:"sync"`
	CleanStop   *bool    `json:"clean_stop,omitempty"`
	DownSeconds *float64 `json:"down_seconds,omitempty"` // since the last commit before
	Replica     string   `json:"replica,omitempty"`      // which leads from here on
	Epoch       int64    `json:"epoch,omitempty"`
	Before      string   `json:"before,omitempty"` // the replica that led before, unless it has left
}

// A stopReport has the details of the event broker.stopped.
type stopReport struct {
	Reason string `json:"reason,omitempty"`
}

// logStart appends an event that the broker has started. It says how the run before ended, with a
// warning if that was no clean stop.
func (a *App) logStart(ctx context.Context, st *store.Store, journal *events.Log) {
	report := startReport{Version: a.config.Version, Sync: a.sync.String()}
	e := events.Entry{Type: "broker.started", Summary: "the broker has started"}
	if a.front != nil {
		report.Epoch, _ = a.database.Led()
		report.Replica, report.Before = a.front.replica.Address(), a.front.replica.LeaderBefore(report.Epoch)
		e.Summary = "the replica " + report.Replica + " leads"
	}
	if last := st.LastRun(); !last.Ended.IsZero() {
		down := max(0, a.config.Clock.Since(last.Ended).Round(time.Millisecond).Seconds())
		report.CleanStop, report.DownSeconds = &last.Clean, &down
		if !last.Clean {
			e.Severity = events.Warning
			e.Summary += "; the run before did not stop cleanly"
		}
	}
	a.logLife(ctx, st, journal, e, report)
}

// logStop appends an event that the broker stops. After it, no call changes anything.
func (a *App) logStop(ctx context.Context, st *store.Store, journal *events.Log) {
	a.logLife(ctx, st, journal, events.Entry{Type: "broker.stopped", Summary: "the broker stops"}, stopReport{a.reason})
}

// logLife appends an event of the broker itself. A broker that cannot write, because the disk is
// full or the database is damaged, starts and stops all the same.
func (a *App) logLife(ctx context.Context, st *store.Store, journal *events.Log, e events.Entry, report any) {
	details, _ := json.Marshal(report) // strings, numbers and flags always marshal
	e.Category, e.Source, e.Details = events.System, identity.System, string(details)
	err := st.Write(ctx, func(tx *store.Tx) error {
		_, err := journal.Append(tx, e)
		return err
	})
	if err != nil {
		a.config.Log.Warn("cannot log the event "+e.Type, zap.Error(err))
	}
}
