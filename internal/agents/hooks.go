package agents

import (
	"context"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

// Hooks are functions of other features. All of them are set before the registry is used.
type Hooks struct {
	departures   []func(ctx context.Context, session, agent string) error
	registered   []func(tx *store.Tx, a directory.Agent) error
	completed    []func(tx *store.Tx, a directory.Agent) error
	ended        []func(tx *store.Tx, a directory.Agent) ([]directory.Loss, error)
	deregistered []func(tx *store.Tx, a directory.Agent, reason string) error
}

// AwaitDeparture adds functions that Register calls before its transaction, for features that cannot
// end all that a registration had in the transaction of its end. A function returns once that is done.
func (h *Hooks) AwaitDeparture(await ...func(ctx context.Context, session, agent string) error) {
	h.departures = append(h.departures, await...)
}

// OnRegister adds hooks that run in the same transaction when an agent registers, for the first time
// or again.
func (h *Hooks) OnRegister(hooks ...func(tx *store.Tx, a directory.Agent) error) {
	h.registered = append(h.registered, hooks...)
}

// OnCompleted adds hooks that run in the same transaction when an agent reports the status Completed
// and had another one.
func (h *Hooks) OnCompleted(hooks ...func(tx *store.Tx, a directory.Agent) error) {
	h.completed = append(h.completed, hooks...)
}

// OnEnd adds hooks that run in the same transaction when an agent fails or stops, and take what the
// agent holds; directory.Agent.Stopped reports which of the two. A hook returns what it has taken; the
// registry sets Loss.At. By then the agent's row says that it has ended.
func (h *Hooks) OnEnd(hooks ...func(tx *store.Tx, a directory.Agent) ([]directory.Loss, error)) {
	h.ended = append(h.ended, hooks...)
}

// OnDeregister adds hooks that run in the same transaction when a registration ends, and remove what
// depends on the registration. The reason is for people.
func (h *Hooks) OnDeregister(hooks ...func(tx *store.Tx, a directory.Agent, reason string) error) {
	h.deregistered = append(h.deregistered, hooks...)
}

// end runs the hooks of the end of an agent, and returns what they have taken from it.
func (h *Hooks) end(tx *store.Tx, a Agent) (losses []directory.Loss, err error) {
	for _, hook := range h.ended {
		taken, err := hook(tx, a.Entry())
		if err != nil {
			return nil, err
		}
		losses = append(losses, taken...)
	}
	return losses, nil
}
