package app

import (
	"github.com/jonboulle/clockwork"

	"brokerd/internal/broker"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
)

// newDrains returns what drains the broker, and connects it with what gives out work.
func newDrains(st *store.Store, journal *events.Log, clock clockwork.Clock, scopes *sessions.Registry, post *broker.Broker, board *tasks.Tasks) *drain.Switch {
	drains := drain.New(drain.Options{
		Store: st, Log: journal, Clock: clock, SessionName: scopes.Name,
		Messages: func(q store.Querier) ([]drain.Held, error) {
			held, err := post.Held(q)
			all := make([]drain.Held, len(held))
			for i, h := range held {
				all[i] = drain.Held(h)
			}
			return all, err
		},
		Tasks: func(q store.Querier) ([]drain.Held, error) {
			held, err := board.Held(q)
			all := make([]drain.Held, len(held))
			for i, h := range held {
				all[i] = drain.Held(h)
			}
			return all, err
		},
		Resumed: []func(*store.Tx) error{post.DrainEnded, board.DrainEnded},
	})
	post.UseDrains(drains)
	return drains
}
