package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	frameBytes   = 120 << 10 // of a frame, unless a single revision has more: the memory that an unread watch costs
	frameChanges = 1000
	stretch      = 20_000      // numbers that one read looks at, so that none takes long
	markEvery    = time.Second // between progress marks, unless
	markStretch  = 10_000      // revisions without a match have passed
)

// A Watch says what to follow.
type Watch struct {
	Namespace string // empty = all but Global
	Prefix    string
	After     *int64 // changes after this revision; nil = from now on
}

// A Frame is all that has changed since the one before, or a progress mark if nothing that is watched has.
type Frame struct {
	Changes  []Entry
	Revision int64 // everything up to this has been looked at
}

// Watch sends the changes of keys without gaps and in order, all those of a revision in one frame, until ctx ends (nil), Drain is
// called (fault.Unavailable, SHUTTING_DOWN) or send fails. The first frame is a mark, at once. fault.Invalid for a position in the
// future, fault.OutOfRange (STATE_COMPACTED) for one from before what is kept, also later, when what was not read yet is removed;
// fault.OutOfRange (RESTORED) for one that a restore has left out; fault.Exhausted (TOO_MANY_WATCHES); fault.NotFound if the session does not exist, or was deleted.
//
// send may block for as long as it likes: nothing is held meanwhile.
func (k *Keys) Watch(ctx context.Context, c identity.Caller, w Watch, send func(Frame) error) error {
	leave, err := k.hub.enter()
	if err != nil {
		return fmt.Errorf("watch state: %w", err)
	}
	defer leave()
	f := &watcher{keys: k, caller: c, watch: w, send: send, timer: k.clock.NewTimer(markEvery)}
	f.timer.Stop() // until a mark is put off
	defer f.timer.Stop()
	scope, err := f.scope(ctx)
	if err != nil {
		return fmt.Errorf("watch state: %w", err)
	}
	woken, leaveScope := k.hub.join(scope)
	defer leaveScope()
	if err := f.open(ctx); err != nil {
		return fmt.Errorf("watch state: %w", err)
	}
	if err := f.mark(); err != nil {
		return err
	}
	for {
		more, err := f.next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if more {
			select {
			case <-k.drained:
				return errDrained()
			default:
				continue
			}
		}
		select {
		case <-woken:
		case <-f.due():
		case <-k.drained:
			return errDrained()
		case <-ctx.Done():
			return nil
		}
	}
}

// A watcher is one watch under way. It belongs to one goroutine.
type watcher struct {
	keys   *Keys
	caller identity.Caller
	watch  Watch
	send   func(Frame) error
	timer  clockwork.Timer

	session  int64
	position int64     // everything up to this has been looked at, and sent if it matched
	told     int64     // position that the last frame had
	toldAt   time.Time // when that was
}

// scope finds out which scope is watched.
func (f *watcher) scope(ctx context.Context) (int64, error) {
	err := f.keys.store.ReadPage(ctx, func(snap *store.Snapshot) (err error) {
		f.session, err = f.keys.dir.SessionID(snap, f.caller.Session)
		return err
	})
	return scopeOf(f.session, f.watch.Namespace), err
}

// open finds the position to begin at.
func (f *watcher) open(ctx context.Context) error {
	return f.keys.store.ReadPage(ctx, func(snap *store.Snapshot) error {
		f.position = snap.Revision()
		if after := f.watch.After; after != nil {
			if *after > snap.Revision() {
				return future("after_revision", *after, snap.Revision())
			}
			if err := f.keys.store.CheckResume(*after); err != nil {
				return err
			}
			f.position = *after
		}
		return f.kept(snap)
	})
}

// kept refuses a position some changes after which are gone.
func (f *watcher) kept(snap *store.Snapshot) error {
	floor, err := floorOf(snap, scopeOf(f.session, f.watch.Namespace))
	if err != nil || f.position >= floor {
		return err
	}
	return compacted(f.position, floor)
}

// next reads and sends one frame, and reports whether there is more to look at.
func (f *watcher) next(ctx context.Context) (more bool, err error) {
	var frame Frame
	err = f.keys.store.ReadPage(ctx, func(snap *store.Snapshot) error {
		session, err := f.keys.dir.SessionID(snap, f.caller.Session)
		if err != nil {
			return err
		}
		if session != f.session {
			return fault.Missing("session", f.caller.Session, "the session %q was deleted; another has its name now", f.caller.Session)
		}
		if err := f.kept(snap); err != nil {
			return err
		}
		frame, err = f.read(snap)
		more = frame.Revision < snap.Revision()
		return err
	})
	if err != nil {
		return false, fmt.Errorf("watch state: %w", err)
	}
	f.position = frame.Revision
	if len(frame.Changes) > 0 {
		if err := f.tell(frame); err != nil {
			return false, err
		}
	}
	if f.position > f.told && (f.position-f.told >= markStretch || f.wait() <= 0) {
		return more, f.mark()
	}
	return more, nil
}

// read returns the next frame that a snapshot shows.
func (f *watcher) read(snap *store.Snapshot) (Frame, error) {
	scope := scopeOf(f.session, f.watch.Namespace)
	frame := Frame{Revision: snap.Revision()}
	var from int64
	err := snap.QueryRow(firstAfter, scope, f.position).Scan(&from)
	if errors.Is(err, store.ErrNoRows) {
		return frame, nil
	}
	if err != nil {
		return frame, err
	}
	to := min(f.keys.store.SkipGap(from+stretch), snap.Revision()) // a position that CheckResume accepts
	frame.Revision = to
	rows := snap.Query(selectChanges, scope, f.position, to+MaxChanges, f.position, to,
		f.watch.Namespace, f.watch.Namespace, f.watch.Prefix, f.watch.Prefix, f.watch.Prefix)
	defer rows.Close()
	bytes, whole := 0, 0 // whole is how many changes belong to revisions that have been read to their end
	for rows.Next() {
		_, e, err := scanVersion(rows)
		if err != nil {
			return frame, err
		}
		if n := len(frame.Changes); n > 0 && frame.Changes[n-1].Revision != e.Revision {
			if n >= frameChanges {
				frame.Revision = e.Revision - 1
				return frame, nil
			}
			whole = n
		}
		if bytes += e.size(); bytes > frameBytes && whole > 0 {
			frame.Changes, frame.Revision = frame.Changes[:whole], e.Revision-1
			return frame, nil
		}
		frame.Changes = append(frame.Changes, e)
	}
	return frame, rows.Err()
}

// mark tells the position.
func (f *watcher) mark() error { return f.tell(Frame{Revision: f.position}) }

// tell sends a frame. The time until the next mark begins before a client that gets the frame can act on it.
func (f *watcher) tell(frame Frame) error {
	f.told, f.toldAt = f.position, f.keys.clock.Now()
	return f.send(frame)
}

// due returns what fires when a mark that was put off is to be made up for; nil if none was.
func (f *watcher) due() <-chan time.Time {
	if f.position <= f.told {
		return nil
	}
	f.timer.Reset(f.wait())
	return f.timer.Chan()
}

// wait returns how long it is until the next mark.
func (f *watcher) wait() time.Duration { return markEvery - f.keys.clock.Since(f.toldAt) }

func errDrained() error {
	return fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down: watch again after the last revision")
}
