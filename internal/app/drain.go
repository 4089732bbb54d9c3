package app

import (
	"github.com/jonboulle/clockwork"

	"brokerd/internal/drain"
	"brokerd/internal/gauges"
	"brokerd/internal/store"
)

// newDrain returns the switch that drains the broker, and connects it with the parts that give out work.
func newDrain(p *parts, clock clockwork.Clock) *drain.Switch {
	d := drain.New(drain.Options{
		Store: p.store, Log: p.events, Clock: clock, Directory: p.directory,
		Messages: func(q store.Querier) ([]drain.Held, error) {
			held, err := gauges.Holders(q)
			all := make([]drain.Held, len(held))
			for i, h := range held {
				all[i] = drain.Held(h)
			}
			return all, err
		},
		Tasks: func(q store.Querier) ([]drain.Held, error) {
			held, err := p.tasks.Held(q)
			all := make([]drain.Held, len(held))
			for i, h := range held {
				all[i] = drain.Held(h)
			}
			return all, err
		},
		Resumed: []func(*store.Tx) error{p.broker.Waiters.DrainEnded, p.tasks.DrainEnded},
	})
	p.admission.Gates.UseDrains(d)
	return d
}
