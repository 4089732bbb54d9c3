package app

import (
	"context"

	"brokerd/internal/admin"
	"brokerd/internal/artifacts"
	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/locks"
	"brokerd/internal/offers"
	"brokerd/internal/rpc"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A workKind is a kind of joint work that work.Table keeps.
type workKind interface {
	work.Feature
	admin.Explainer
	// Data is what the keeper exports, archives and removes.
	Data() work.Data
	// AwaitClosed does the rest of the closing of a session.
	AwaitClosed(ctx context.Context, session int64) error
	// OfTask finds the work that names a task, the newest first.
	OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error)
	runner
	Drain()
	// AgentGone and SessionClosed end work when an agent deregisters, and when a session closes.
	AgentGone(tx *store.Tx, a directory.Agent, reason string) error
	SessionClosed(tx *store.Tx, session directory.Session) error
}

// A runner has goroutines.
type runner interface {
	Start(ctx context.Context) error
	// Stop ends what Start has begun, and waits for it. Without Start it does nothing.
	Stop()
}

// An observer counts and measures for the metrics.
type observer interface {
	work.Observer
	artifacts.Transfers
	broker.Observer
	locks.Observer
	offers.Observer
	rpc.Observer
}
