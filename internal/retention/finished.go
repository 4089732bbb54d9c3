package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// pageWork is how many pieces of finished work one transaction removes.
const pageWork = 100

// finished archives the finished work of Parts that is due, and returns when the next piece may be. A
// part of a session that cannot be archived does not stop the others.
func (w *walk) finished(ctx context.Context) (next time.Time, err error) {
	for i := range w.Parts {
		if w.Parts[i].Kind == "" || w.pruning && w.Parts[i].CountFinished == nil {
			continue
		}
		for _, s := range w.sessions {
			if s.KeepMessages == 0 {
				continue
			}
			due, failed := w.finishedOf(ctx, &w.Parts[i], s)
			if ctx.Err() != nil {
				return next, ctx.Err()
			}
			err, next = errors.Join(err, failed), earliest(next, due)
		}
	}
	return next, err
}

// finishedOf archives the finished work of one part of a session that is due. It returns when the
// next piece will be, zero if there is none.
func (w *walk) finishedOf(ctx context.Context, part *work.Data, s Session) (next time.Time, err error) {
	var l lines
	for !w.isHeld(s.ID) {
		if w.dry {
			return next, w.countFinished(ctx, part, s)
		}
		began := w.Clock.Now()
		done, at, err := w.look(ctx, part, s.ID, w.now, w.now.Add(-s.KeepMessages))
		if !at.IsZero() {
			next = at.Add(s.KeepMessages)
		}
		if err != nil {
			return next, fmt.Errorf("look for finished %s of session %s: %w", part.Kind, s.Name, err)
		}
		if len(done) == 0 {
			return next, nil
		}
		oldest := done[0].At.Add(s.KeepMessages)
		done = l.take(done)
		moved, err := w.move(ctx, s, part.Kind, &l, func(tx *store.Tx) error { return part.Remove(tx, s.ID, done) })
		w.counts.Work += moved
		if fault.KindOf(err) == fault.Conflict {
			w.wakeBy(w.Clock.Now().Add(retry))
			return next, nil
		}
		if err != nil {
			return next, err
		}
		if err := w.pause(ctx, began, oldest); err != nil {
			return next, err
		}
	}
	return next, nil // the end of the export wakes the keeper
}

// look returns a page of the work of a part that finished at or before a time, or when the next piece
// of it finished.
func (w *walk) look(ctx context.Context, part *work.Data, session int64, now, before time.Time) (done []work.Done, next time.Time, err error) {
	if part.Look != nil {
		return part.Look(ctx, session, before, pageWork)
	}
	err = w.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
		if done, err = part.Finished(snap, session, before, pageWork); err != nil || len(done) > 0 {
			return err
		}
		ahead, err := part.Finished(snap, session, now, 1)
		if len(ahead) > 0 {
			next = ahead[0].At
		}
		return err
	})
	return done, next, err
}

// countFinished counts the finished work of one part of a session that is due.
func (w *walk) countFinished(ctx context.Context, part *work.Data, s Session) error {
	return w.Store.Read(ctx, func(snap *store.Snapshot) error {
		n, err := part.CountFinished(snap, s.ID, w.now.Add(-s.KeepMessages))
		if err != nil {
			return fmt.Errorf("count finished %s of session %s: %w", part.Kind, s.Name, err)
		}
		w.counts.Work += n
		return nil
	})
}

// take replaces the lines by those of finished work, as many as make a page, and returns that work.
func (l *lines) take(done []work.Done) []work.Done {
	l.reset()
	bytes := 0
	for i, d := range done {
		if bytes += len(d.Line); bytes > pageBytes && i > 0 {
			return done[:i]
		}
		l.add(d.At, d.Line)
	}
	return done
}
