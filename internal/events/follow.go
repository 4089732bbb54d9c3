package events

import (
	"context"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

const (
	cursorKind  = "events"
	followLimit = 256         // events of a page
	followBytes = 120 << 10   // of a page, and so the memory that an unread subscription costs
	markEvery   = time.Second // between progress marks, unless
	markStretch = 10_000      // revisions without a match have passed
	saveEvery   = time.Second // between saves of a cursor
)

// A Subscription says what to follow.
type Subscription struct {
	Scope  Scope
	Filter Filter
	After  *int64 // events after this; nil = from now on, or with Filter.Since from the beginning
	Owner  string // whose cursor it is
	Cursor string // empty = none; one that exists wins over After
}

// Follow sends the events of a subscription without gaps and in order, until ctx ends (nil), the
// log stops (fault.Unavailable, SHUTTING_DOWN) or send fails. The first page is empty and tells the
// position; after that an empty page is a progress mark. A position in the future is refused as
// fault.Invalid, a session that does not exist as fault.NotFound. A position before the oldest event that is kept ends it as
// fault.OutOfRange (EVENTS_REMOVED), also later, when what it has not read yet is removed. A position that a restore has left out is
// refused as fault.OutOfRange (RESTORED).
//
// send may block for as long as it likes: nothing is held meanwhile.
func (r *Reader) Follow(ctx context.Context, s Subscription, send func(Page) error) error {
	listener, leave := r.log.join()
	defer leave()
	f := &follower{log: r.log, dir: r.dir, sub: s, send: send}
	err := f.open(ctx)
	if err != nil {
		return fmt.Errorf("subscribe to events: %w", err)
	}
	defer f.save(ctx)
	r.log.restrict(listener, &f.query)
	f.timer = r.log.clock.NewTimer(markEvery)
	f.timer.Stop() // until something is put off
	defer f.timer.Stop()
	if err := f.mark(); err != nil {
		return err
	}
	for read := true; ; {
		more := false
		if read {
			if more, err = f.next(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := f.report(ctx); err != nil {
			return err
		}
		if more {
			select {
			case <-r.log.stopped:
				return errStopped()
			default:
				continue
			}
		}
		before := f.position
		if read = f.look(listener); read || f.position > before {
			continue
		}
		select {
		case <-listener.woken:
		case <-f.due():
		case <-r.log.stopped:
			return errStopped()
		case <-ctx.Done():
			return nil
		}
		read = f.look(listener)
	}
}

// A follower is one subscription under way. It belongs to one goroutine.
type follower struct {
	log   *Log
	dir   *directory.Directory
	sub   Subscription
	send  func(Page) error
	query query
	timer clockwork.Timer

	position int64     // everything up to this has been looked at, and sent if it matched
	told     int64     // position that the last page or mark had
	toldAt   time.Time // when that was
	saved    int64     // position that the cursor has
	savedAt  time.Time
}

// open finds the position to begin at. A new cursor is kept at once: what happens from now on is
// not lost if the stream breaks before its first event.
func (f *follower) open(ctx context.Context) error {
	var known bool
	err := f.log.store.ReadPage(ctx, func(snap *store.Snapshot) error {
		session, err := f.dir.SessionID(snap, f.sub.Scope.Session)
		if err != nil {
			return err
		}
		f.query = newQuery(session, f.sub.Scope.Broker, f.sub.Filter)
		f.position = snap.Revision()
		if !f.sub.Filter.Since.IsZero() {
			f.position = 0
		}
		if after := f.sub.After; after != nil {
			if *after > snap.Revision() {
				return fault.Field("after_revision", "%d lies in the future: the newest revision is %d", *after, snap.Revision())
			}
			if err := f.log.store.CheckResume(*after); err != nil {
				return err
			}
			f.position = *after
		}
		if f.sub.Cursor != "" {
			if known, err = f.resume(snap); known || err != nil {
				return err
			}
		}
		f.position, err = fromKept(snap, session, f.position)
		return err
	})
	if err != nil {
		return err
	}
	f.saved = f.position
	if f.sub.Cursor == "" || known {
		return nil
	}
	return f.log.store.Write(ctx, f.keep)
}

// resume takes the position of the cursor, if it is kept. One from before the oldest event that is kept gives way to
// the position that the caller gives, so that there is a way out.
func (f *follower) resume(snap *store.Snapshot) (bool, error) {
	session := f.query.session
	kept, found, err := LoadCursor(snap, session, f.sub.Owner, cursorKind, f.sub.Cursor)
	if err != nil || !found {
		return false, err
	}
	floor, err := floorOf(snap, session)
	switch {
	case err != nil:
		return false, err
	case kept >= floor:
		f.position = kept
		return true, nil
	case f.sub.After != nil:
		return false, nil
	}
	return false, removed(snap, session, kept, floor)
}

// next reads and sends one page, and reports whether there is more to look at.
func (f *follower) next(ctx context.Context) (more bool, err error) {
	var page Page
	err = f.log.store.ReadPage(ctx, func(snap *store.Snapshot) error {
		session, err := f.dir.SessionID(snap, f.sub.Scope.Session)
		if err != nil {
			return err
		}
		if session != f.query.session {
			return fault.Missing("session", f.sub.Scope.Session, "the session %q was deleted; another has its name now", f.sub.Scope.Session)
		}
		if f.position, err = fromKept(snap, session, f.position); err != nil {
			return err
		}
		page, err = f.log.read(snap, f.query, Selection{After: f.position, Limit: followLimit}, followBytes)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("follow events: %w", err)
	}
	looked, more := page.Looked, page.More
	if len(page.Events) > 0 {
		// Nothing uses the page after this, so that a wait in send keeps no events in memory.
		f.told, f.toldAt = looked, f.log.clock.Now() // before a client that gets the page can act on it
		if err := f.send(page); err != nil {
			return false, err
		}
	}
	f.position = looked
	return more, nil
}

// report sends a progress mark and saves the cursor, if they are due.
func (f *follower) report(ctx context.Context) error {
	if f.position > f.told && (f.position-f.told >= markStretch || f.wait(f.toldAt, markEvery) <= 0) {
		if err := f.mark(); err != nil {
			return err
		}
	}
	if f.wait(f.savedAt, saveEvery) <= 0 {
		f.save(ctx)
	}
	return nil
}

// look reports whether there may be events to read. Without a read, it advances to the revision up
// to which the log has none.
func (f *follower) look(l *listener) (read bool) {
	read, passed := f.log.look(l, f.alert())
	f.position = max(f.position, passed)
	return read
}

// alert returns the revision at which a mark is due without a match. If the last mark tells the
// position, the next commit starts the time until the next mark.
func (f *follower) alert() int64 {
	if f.position == f.told {
		return 0
	}
	return f.told + markStretch
}

// mark tells the position.
func (f *follower) mark() error {
	f.told, f.toldAt = f.position, f.log.clock.Now() // as above
	return f.send(Page{Looked: f.position})
}

// save keeps the position, if there is a cursor and it has moved, even for a caller that has gone: what
// it was sent counts as read. A failure ends nothing: the next save makes up for it, and at worst
// events come again.
func (f *follower) save(ctx context.Context) {
	if f.sub.Cursor == "" || f.position == f.saved {
		return
	}
	f.savedAt = f.log.clock.Now()
	err := f.log.store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := MoveCursor(tx, f.query.session, f.sub.Owner, cursorKind, f.sub.Cursor, f.position)
		return err // a cursor that has ended with its agent's registration stays away
	})
	if err != nil {
		f.log.log.Warn("cursor not saved", zap.String("cursor", f.sub.Cursor), zap.String("owner", f.sub.Owner), zap.Error(err))
		return
	}
	f.saved = f.position
}

func (f *follower) keep(tx *store.Tx) error {
	return SaveCursor(tx, f.query.session, f.sub.Owner, cursorKind, f.sub.Cursor, f.position)
}

// due returns what fires when a mark or a save that was put off is to be made up for; nil if none was.
func (f *follower) due() <-chan time.Time {
	var next time.Duration = -1
	if f.position > f.told {
		next = f.wait(f.toldAt, markEvery)
	}
	if f.sub.Cursor != "" && f.position > f.saved {
		if d := f.wait(f.savedAt, saveEvery); next < 0 || d < next {
			next = d
		}
	}
	if next < 0 {
		return nil
	}
	f.timer.Reset(next)
	return f.timer.Chan()
}

// wait returns how long it is until a period after a time is over.
func (f *follower) wait(since time.Time, period time.Duration) time.Duration {
	return period - f.log.clock.Since(since)
}

func errStopped() error {
	return fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down: subscribe again after the last revision")
}
