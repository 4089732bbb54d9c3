// Package drain stops the delivery of new work in all sessions while open claims end: before
// maintenance, or before a planned stop.
//
// A drain is a row, so it survives a restart. The features that give out work ask Draining before each
// claim, inside the writer, so no claim starts after the drain is committed. A call waits for the
// commits of the log: every end of a claim is an event.
package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Options are what a Switch needs.
type Options struct {
	Store *store.Store
	Log   *events.Log
	Clock clockwork.Clock
	// Directory names the sessions of the claims.
	Directory *directory.Directory
	// Messages and Tasks return all open claims on messages and tasks, one entry for an agent.
	Messages, Tasks func(store.Querier) ([]work.Held, error)
	// Resumed functions run in the transaction that ends a drain.
	Resumed []func(*store.Tx) error
}

// A Switch begins and ends drains. Its methods may be called concurrently.
type Switch struct {
	Options
	began    store.Cache[struct{}, time.Time] // zero = no drain
	active   atomic.Bool
	stopping chan struct{}
	stopOnce sync.Once
}

// New returns the switch of a store that was opened with Migrations.
func New(o Options) *Switch {
	return &Switch{Options: o, stopping: make(chan struct{})}
}

// Start reads whether a drain is in force, for Active.
func (s *Switch) Start(ctx context.Context) error {
	return s.Store.Read(ctx, func(snap *store.Snapshot) error {
		since, err := s.Since(snap)
		s.active.Store(!since.IsZero())
		return err
	})
}

// Stop ends the waits of all calls.
func (s *Switch) Stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// Active reports whether a drain is in force.
func (s *Switch) Active() bool { return s.active.Load() }

// Draining reports whether a drain is in force for the function of tx.
func (s *Switch) Draining(tx *store.Tx) (bool, error) {
	since, err := s.began.Get(tx, struct{}{}, func() (time.Time, error) { return s.Since(tx) })
	return !since.IsZero(), err
}

// Since returns when the drain began that is in force; zero if there is none.
func (*Switch) Since(q store.Querier) (since time.Time, err error) {
	if err = q.QueryRow(selectDrain).Scan(&since); errors.Is(err, store.ErrNoRows) {
		err = nil
	}
	return since, err
}

// A Holder is an agent that holds claims.
type Holder struct {
	Session, Agent  string
	Messages, Tasks int64
	Since           time.Time // the time of the oldest claim
}

// A Report says what is claimed.
type Report struct {
	Revision        int64
	Since           time.Time // when the drain began; zero = no drain is in force
	Messages, Tasks int64
	Holders         []Holder // the agents with the oldest claims
}

// mostHolders is how many agents a report names.
const mostHolders = 20

// Drain begins a drain, unless one is in force, and waits until nothing is claimed. The report says
// what is claimed at the end of the wait. Errors: fault.Precondition (DRAIN_ENDED) if another call has
// ended the drain.
func (s *Switch) Drain(ctx context.Context, c identity.Caller, wait time.Duration) (Report, error) {
	committed, leave := s.Log.Commits()
	defer leave()
	err := s.change(ctx, c, func(tx *store.Tx, since time.Time, e *events.Entry) error {
		if !since.IsZero() {
			return errUnchanged
		}
		e.Type, e.Summary = "broker.draining", "the broker delivers no new work"
		tx.Exec(insertDrain, tx.Now())
		return nil
	})
	if err != nil {
		return Report{}, fmt.Errorf("drain: %w", err)
	}
	timer := s.Clock.NewTimer(wait)
	defer timer.Stop()
	for ended := wait == 0; ; {
		r, err := s.report(ctx)
		switch {
		case err != nil:
			return Report{}, fmt.Errorf("drain: %w", err)
		case r.Since.IsZero():
			return Report{}, fault.New(fault.Precondition, "DRAIN_ENDED", "another call has ended the drain")
		case ended || r.Messages+r.Tasks == 0:
			return r, nil
		}
		select {
		case <-committed:
		case <-timer.Chan():
			ended = true
		case <-s.stopping:
			e := fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops; the drain stays in force")
			e.RetryAfter = time.Second
			return Report{}, e
		case <-ctx.Done():
			return Report{}, ctx.Err()
		}
	}
}

// Resume ends the drain, if one is in force.
func (s *Switch) Resume(ctx context.Context, c identity.Caller) (Report, error) {
	err := s.change(ctx, c, func(tx *store.Tx, since time.Time, e *events.Entry) error {
		if since.IsZero() {
			return errUnchanged
		}
		e.Type, e.Summary = "broker.resumed", "the broker delivers work again"
		e.Details = fmt.Sprintf(`{"draining_since":%q}`, since.UTC().Format(time.RFC3339Nano))
		tx.Exec(deleteDrain)
		return nil
	})
	if err != nil {
		return Report{}, fmt.Errorf("end the drain: %w", err)
	}
	return s.report(ctx)
}

// errUnchanged says that a change has nothing to do.
var errUnchanged = errors.New("unchanged")

// change begins or ends the drain with fn, and appends the event that fn describes.
func (s *Switch) change(ctx context.Context, c identity.Caller, fn func(*store.Tx, time.Time, *events.Entry) error) error {
	err := s.Store.Drain(ctx, func(tx *store.Tx) error {
		since, err := s.Since(tx)
		if err != nil {
			return err
		}
		e := events.Entry{Category: events.System, Source: cmp.Or(c.Agent, identity.System)}
		if err := fn(tx, since, &e); err != nil {
			return err
		}
		s.began.Clear(tx)
		if !since.IsZero() {
			for _, resumed := range s.Resumed {
				if err := resumed(tx); err != nil {
					return err
				}
			}
		}
		tx.OnCommit(func() { s.active.Store(since.IsZero()) })
		_, err = s.Log.Append(tx, e)
		return err
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// report reads what is claimed.
func (s *Switch) report(ctx context.Context) (r Report, err error) {
	err = s.Store.Read(ctx, func(snap *store.Snapshot) error {
		r = Report{Revision: snap.Revision()}
		var err error
		if r.Since, err = s.Since(snap); err != nil {
			return err
		}
		messages, err := s.Messages(snap)
		if err != nil {
			return err
		}
		tasks, err := s.Tasks(snap)
		if err != nil {
			return err
		}
		return r.fill(snap, s.Directory, messages, tasks)
	})
	return r, err
}

// fill adds up claims on messages and tasks.
func (r *Report) fill(q store.Querier, dir *directory.Directory, messages, tasks []work.Held) error {
	type agent struct {
		session int64
		name    string
	}
	holders := map[agent]Holder{}
	for i, h := range slices.Concat(messages, tasks) {
		k := agent{h.Session, h.Agent}
		o := holders[k]
		if o.Since.IsZero() || h.Since.Before(o.Since) {
			o.Since = h.Since
		}
		if i < len(messages) {
			o.Messages = h.Claims
			r.Messages += h.Claims
		} else {
			o.Tasks = h.Claims
			r.Tasks += h.Claims
		}
		holders[k] = o
	}
	for k, h := range holders {
		s, err := dir.ByID(q, k.session)
		if err != nil {
			return err
		}
		if h.Agent = k.name; !s.Closed() {
			h.Session = s.Name
		}
		r.Holders = append(r.Holders, h)
	}
	slices.SortFunc(r.Holders, func(a, b Holder) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Agent, b.Agent))
	})
	r.Holders = r.Holders[:min(len(r.Holders), mostHolders)]
	return nil
}
