package events

import (
	"context"
	"fmt"
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Limiter bounds how many events callers publish.
type Limiter interface {
	// Admit returns when the caller may publish so many events, each of which counts as a message;
	// fault.Exhausted if it publishes too much, or the disk is full.
	Admit(ctx context.Context, c identity.Caller, events int) error
}

// A Publisher adds events of agents' own to the log. Its method may be called concurrently.
type Publisher struct {
	log      *Log
	dir      *directory.Directory
	limiter  Limiter
	blockers Blockers
}

// NewPublisher returns a publisher.
func NewPublisher(log *Log, dir *directory.Directory, limiter Limiter, blockers Blockers) *Publisher {
	return &Publisher{log, dir, limiter, blockers}
}

// A Published is the outcome of Publish.
type Published struct {
	Revision    int64
	Subscribers int    // open subscriptions that choose the event, and mailboxes that accepted its message
	Blocker     string // id of the blocker that was raised or resolved; empty = none
}

// Publish appends an event in the name of the caller, whose session, name and role it gets. With an
// obstacle, it raises or resolves the blocker in the same transaction, and names it in Related.
// Errors: as directory.Directory.Session and Acting have them, fault.Exhausted as Limiter has it, fault.Exists for
// a request id that was used for something else; as Blockers has them.
func (p *Publisher) Publish(ctx context.Context, c identity.Caller, req idempotency.Request, e Entry, o *Obstacle) (Published, error) {
	if err := p.limiter.Admit(ctx, c, 1); err != nil {
		return Published{}, fmt.Errorf("publish event: %w", err)
	}
	var out Published
	err := p.log.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &out, func() (err error) {
			if e.Session, err = p.dir.SessionID(tx, c.Session); err != nil {
				return err
			}
			author, err := p.dir.Acting(tx, e.Session, c)
			if err != nil {
				return err
			}
			e.Source, e.SourceRole = c.Name(), author.Role
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
