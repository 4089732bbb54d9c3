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

// A Work is a kind of work that finishes; see the fields of Part with the same names.
type Work interface {
	Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error)
	Erase(tx *store.Tx, session int64, limit int) (bool, error)
	Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error)
	CountFinished(q store.Querier, session int64, before time.Time) (int64, error)
	Remove(tx *store.Tx, session int64, done []work.Done) error
}

// WorkPart is the part of a session that has the work of a kind, such as votes.
func WorkPart(kind string, w Work) Part {
	return Part{
		File: kind + ".jsonl", Kind: kind, Lines: w.Records, Erase: w.Erase,
		Finished: w.Finished, CountFinished: w.CountFinished, Remove: w.Remove,
	}
}

// pageWork is how many pieces of finished work one transaction removes.
const pageWork = 100

// finished archives the finished work of Parts that is due, and returns when the next piece may be. A
// part of a session that cannot be archived does not stop the others.
func (k *Keeper) finished(ctx context.Context, p *plan) (next time.Time, err error) {
	for i := range k.Parts {
		if k.Parts[i].Kind == "" || p.pruning && k.Parts[i].CountFinished == nil {
			continue
		}
		for _, s := range p.sessions {
			if s.KeepMessages == 0 {
				continue
			}
			due, failed := k.finishedOf(ctx, p, &k.Parts[i], s)
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
func (k *Keeper) finishedOf(ctx context.Context, p *plan, part *Part, s Session) (next time.Time, err error) {
	var l lines
	for !k.isHeld(s.ID) {
		if p.dry {
			return next, k.countFinished(ctx, p, part, s)
		}
		began := k.Clock.Now()
		done, at, err := k.look(ctx, part, s.ID, p.now, p.now.Add(-s.KeepMessages))
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
		moved, err := k.move(ctx, p, s, part.Kind, &l, func(tx *store.Tx) error { return part.Remove(tx, s.ID, done) })
		p.counts.Work += moved
		if fault.KindOf(err) == fault.Conflict {
			k.wakeBy(k.Clock.Now().Add(retry))
			return next, nil
		}
		if err != nil {
			return next, err
		}
		if err := k.rest(ctx, k.Clock.Since(began), p.pauseFraction(k.Clock.Now(), oldest)); err != nil {
			return next, err
		}
	}
	return next, nil // the end of the export wakes the keeper
}

// look returns a page of the work of a part that finished at or before a time, or when the next piece
// of it finished.
func (k *Keeper) look(ctx context.Context, part *Part, session int64, now, before time.Time) (done []work.Done, next time.Time, err error) {
	if part.Look != nil {
		return part.Look(ctx, session, before, pageWork)
	}
	err = k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
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
func (k *Keeper) countFinished(ctx context.Context, p *plan, part *Part, s Session) error {
	return k.Store.Read(ctx, func(snap *store.Snapshot) error {
		n, err := part.CountFinished(snap, s.ID, p.now.Add(-s.KeepMessages))
		if err != nil {
			return fmt.Errorf("count finished %s of session %s: %w", part.Kind, s.Name, err)
		}
		p.counts.Work += n
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
