package retention

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// A Selection is the finished data that Prune removes.
type Selection struct {
	OlderThan   time.Duration
	Session     string // empty = all sessions
	Messages    bool
	DeadLetters bool
	Events      bool
	Work        bool
	DryRun      bool
}

// Counts counts data that was archived and removed.
type Counts struct {
	Messages    int64 `json:"messages"` // without a dead delivery
	DeadLetters int64 `json:"dead_letters"`
	Events      int64 `json:"events"`
	Work        int64 `json:"work"`
}

// Pruned is the outcome of a prune.
type Pruned struct {
	Counts
	FreeBytes int64 // inside the database file; 0 on a database server
	Revision  int64 // of the event; after a dry run, the newest
}

// beginWalks waits until no other goroutine walks. Two walks would archive the same rows.
func (k *Keeper) beginWalks(ctx context.Context) error {
	select {
	case k.walks <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Keeper) endWalks() { <-k.walks }

// Prune archives and removes finished data that is older than a time, and appends an event. It uses
// the walks of a run, so its transactions and pauses are those of a run that is not late. A dry run counts
// with the same walks. If it ends early, the event counts the data that is removed. Errors:
// fault.NotFound if there is no such session.
func (k *Keeper) Prune(ctx context.Context, who identity.Caller, s Selection) (Pruned, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	w, session, err := k.pruneWalk(ctx, s)
	if err != nil {
		return Pruned{}, err
	}
	if err := w.prune(ctx, s); err != nil {
		err = fmt.Errorf("prune: %w", err)
		if w.counts != (Counts{}) && !s.DryRun {
			_, logged := k.logPrune(ctx, session, who, s, w.counts)
			err = errors.Join(err, logged)
		}
		return Pruned{}, err
	}
	out := Pruned{Counts: w.counts, Revision: k.Store.Revision()}
	if !s.DryRun {
		k.Wake() // it returns free space to the file system
		if out.Revision, err = k.logPrune(ctx, session, who, s, w.counts); err != nil {
			return out, err
		}
	}
	return out, k.Store.Read(ctx, func(snap *store.Snapshot) error {
		space, err := store.SpaceOf(snap)
		out.FreeBytes = space.FreeBytes()
		return err
	})
}

// pruneWalk returns a walk through the selected sessions that archives nothing yet, and the row id of the one
// that is named.
func (k *Keeper) pruneWalk(ctx context.Context, s Selection) (w *walk, named int64, err error) {
	w = &walk{
		Keeper: k, now: k.Clock.Now(), sessions: map[int64]Session{}, shortest: s.OlderThan, pruning: true, dry: s.DryRun,
	}
	if s.Session != "" {
		found, err := k.find(ctx, s.Session)
		w.sessions[found.ID] = found
		return w, found.ID, err
	}
	err = k.Store.Read(ctx, func(snap *store.Snapshot) error {
		all, err := k.Sessions.All(snap)
		for _, found := range all {
			w.sessions[found.ID] = found
		}
		return err
	})
	return w, 0, err
}

// prune walks once for the selected kinds of messages, once for work, and once for events.
func (w *walk) prune(ctx context.Context, s Selection) error {
	if err := w.beginWalks(ctx); err != nil {
		return err
	}
	defer w.endWalks()
	age := func(selected bool) time.Duration {
		if selected {
			return s.OlderThan
		}
		return 0
	}
	for _, step := range []struct {
		selected bool
		keep     Session
		archive  func(context.Context) (time.Time, error)
	}{
		{s.Messages || s.DeadLetters, Session{KeepMessages: age(s.Messages), KeepDead: age(s.DeadLetters)}, w.messages},
		{s.Work, Session{KeepMessages: s.OlderThan}, w.finished},
		{s.Events, Session{KeepEvents: s.OlderThan}, w.events},
	} {
		if !step.selected {
			continue
		}
		for id, found := range w.sessions {
			found.KeepMessages, found.KeepDead = step.keep.KeepMessages, step.keep.KeepDead
			found.KeepEvents = step.keep.KeepEvents
			w.sessions[id] = found
		}
		if _, err := step.archive(ctx); err != nil {
			return err
		}
	}
	return nil
}

// logPrune appends the event, also if the caller no longer waits.
func (k *Keeper) logPrune(
	ctx context.Context, session int64, who identity.Caller, s Selection, c Counts,
) (revision int64, err error) {
	details, err := json.Marshal(struct {
		OlderThan float64 `json:"older_than_seconds"`
		Counts
	}{s.OlderThan.Seconds(), c})
	if err != nil {
		return 0, err
	}
	verb := "archived and removed"
	if k.Archive == "" {
		verb = "removed"
	}
	err = k.Store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) (err error) {
		revision, err = k.Events.Append(tx, events.Entry{
			Session: session, Category: events.System, Type: "data.pruned", Source: who.Name(),
			Summary: "finished data older than " + validate.Short(s.OlderThan) + " was " + verb,
			Details: string(details),
		})
		return err
	})
	return revision, err
}
