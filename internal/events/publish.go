package events

import (
	"context"
	"fmt"
	"slices"

	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Authors know who may publish.
type Authors interface {
	// Admit returns when the caller may publish one event; fault.Exhausted if it publishes too much, or the disk is full.
	Admit(ctx context.Context, c identity.Caller) error
	// Author returns the role of the registered agent that is calling, none for an operator without
	// agent; fault.Precondition if it is not registered or its incarnation is stale. It is called inside a transaction.
	Author(q store.Querier, session int64, c identity.Caller) (role string, err error)
}

// A Publisher adds events of agents' own to the log. Its method may be called concurrently.
type Publisher struct {
	log      *Log
	sessions Sessions
	authors  Authors
	blockers Blockers
}

// NewPublisher returns a publisher.
func NewPublisher(log *Log, sessions Sessions, authors Authors, blockers Blockers) *Publisher {
	return &Publisher{log, sessions, authors, blockers}
}

// A Published is the outcome of Publish.
type Published struct {
	Revision    int64
	Subscribers int    // open subscriptions that choose the event, and mailboxes that accepted its message
	Blocker     string // id of the blocker that was raised or resolved; empty = none
}

// Publish appends an event in the name of the caller, whose session, name and role it gets. With an
// obstacle, it raises or resolves the blocker in the same transaction, and names it in Related.
// fault.NotFound for a session that does not exist, fault.Precondition and fault.Exhausted as Authors has them, fault.Exists for a request id that
// was used for something else; as Blockers has them.
func (p *Publisher) Publish(ctx context.Context, c identity.Caller, req idempotency.Request, e Entry, o *Obstacle) (Published, error) {
	if err := p.authors.Admit(ctx, c); err != nil {
		return Published{}, fmt.Errorf("publish event: %w", err)
	}
	var out Published
	err := p.log.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &out, func() (err error) {
			if e.Session, err = p.sessions.ID(tx, c.Session); err != nil {
				return err
			}
			if e.SourceRole, err = p.authors.Author(tx, e.Session, c); err != nil {
				return err
			}
			e.Source = c.Name()
			blocker := ""
			if o != nil {
				if blocker, err = p.blockers.Report(tx, c, *o); err != nil {
					return err
				}
				e.TaskID = o.Task
				if len(e.Related) < maxRelated {
					e.Related = append(slices.Clone(e.Related), blocker)
				}
			}
			out, err = p.log.publish(tx, e)
			out.Blocker = blocker
			return err
		})
		return err
	})
	if err != nil {
		return Published{}, fmt.Errorf("publish event: %w", err)
	}
	return out, nil
}

// publish is Append for an event whose type comes from outside.
func (l *Log) publish(tx *store.Tx, e Entry) (Published, error) {
	revision := l.insert(tx, &e)
	event := Event{Revision: revision, Time: tx.Now(), Entry: e}
	out := Published{Revision: revision, Subscribers: l.subscriptions(&event)}
	if l.announce == nil {
		return out, nil
	}
	mailboxes, err := l.announce(tx, event)
	out.Subscribers += mailboxes
	return out, err
}
