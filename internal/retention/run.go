package retention

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	pageItems = 500     // messages or events that one transaction removes
	pageRows  = 2000    // deliveries that it removes; one message may have more
	pageBytes = 1 << 20 // of lines that it archives

	// After a page, a run pauses for pauseFactor times as long as the page took, at most maxPause: a page
	// that took longer was suspended, or its disk stalled. It does not pause if at most quietFunctions
	// functions of the writer have run meanwhile, its own included.
	pauseFactor    = 4
	maxPause       = time.Second
	quietFunctions = 5

	// A run does not pause if it is behind by the shortest time to keep something, divided by lagDivisor,
	// or by maxLag.
	lagDivisor = 5
	maxLag     = time.Minute

	// The pause between two runs is at least the shortest time to keep something, divided by this.
	minPauseDivisor = 20

	retry     = time.Second // until the next try; twice as long after each failure, up to
	mostRetry = time.Minute
)

// A walk goes through the data once, for a run or a prune. It has the times to keep data, read at its
// start, and counts the data that it archives.
type walk struct {
	*Keeper
	now      time.Time
	sessions map[int64]Session
	channels map[int64]map[string]time.Duration
	shortest time.Duration // of all times; 0 = everything is kept without limit
	pruning  bool          // pause in full, even if the data was due long ago
	dry      bool          // count only
	counts   Counts
}

// newWalk returns the walk of a run.
func (k *Keeper) newWalk(ctx context.Context) (*walk, error) {
	w := &walk{Keeper: k, now: k.Clock.Now(), sessions: map[int64]Session{}}
	err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
		all, err := k.Sessions.All(snap)
		if err != nil {
			return err
		}
		for _, s := range all {
			w.sessions[s.ID] = s
			w.note(s.KeepMessages, s.KeepEvents, s.KeepDead)
		}
		w.channels, err = k.Messages.ChannelsKept(snap)
		for _, channels := range w.channels {
			for _, keep := range channels {
				w.note(keep)
			}
		}
		return err
	})
	return w, err
}

func (w *walk) note(times ...time.Duration) {
	for _, t := range times {
		if t > 0 && (w.shortest == 0 || t < w.shortest) {
			w.shortest = t
		}
	}
}

// due returns when messages are, all of them, as far as is known now: at the earliest. Zero is never.
func (w *walk) due(m *work.Standing) time.Time {
	s, known := w.sessions[m.Session]
	if !known {
		return time.Time{} // it is being deleted
	}
	keep := s.KeepMessages
	if own, ok := w.channels[m.Session][m.Channel]; ok && m.Channel != "" {
		keep = own
	}
	if !m.Finished {
		return w.now.Add(w.shortest)
	}
	var due time.Time
	if at := m.FinishedAt; !at.IsZero() || m.Deliveries == 0 {
		if keep == 0 {
			return time.Time{}
		}
		if at.Before(m.CreatedAt) {
			at = m.CreatedAt // of one without deliveries
		}
		due = at.Add(keep)
	}
	if !m.DeadAt.IsZero() {
		if s.KeepDead == 0 {
			return time.Time{}
		}
		if dead := m.DeadAt.Add(s.KeepDead); dead.After(due) {
			due = dead
		}
	}
	return due
}

// tick archives all due data, and schedules the next run.
func (k *Keeper) tick(ctx context.Context) {
	next, pause, err := k.work(ctx)
	if ctx.Err() != nil {
		return
	}
	now := k.Clock.Now()
	if err != nil {
		k.wakeBy(now.Add(min(retry<<k.failures, mostRetry)))
		k.failures = min(k.failures+1, 10)
		k.Log.Warn("a part of what is due could not be archived; trying again", zap.Error(err))
		return
	}
	k.failures = 0
	if next.IsZero() {
		return // until a setting changes
	}
	if soonest := now.Add(pause); next.Before(soonest) {
		next = soonest
	}
	k.wakeBy(next)
}

// work does one run. It returns when the next run can have something to do, and the shortest pause before it.
func (k *Keeper) work(ctx context.Context) (next time.Time, pause time.Duration, err error) {
	if err := k.resume(ctx); err != nil {
		return next, 0, err
	}
	w, err := k.newWalk(ctx)
	if err != nil {
		return next, 0, err
	}
	if w.shortest > 0 {
		var due time.Time
		due, err = w.all(ctx)
		next = earliest(w.now.Add(w.shortest), due) // the first is when new data can be due
	}
	if ctx.Err() != nil {
		return next, 0, ctx.Err()
	}
	return next, w.shortest / minPauseDivisor, errors.Join(err, k.tidy(ctx), k.vacuum(ctx))
}

// all archives all data that is due, and returns the earliest time at which more may be. Data that
// cannot be archived does not stop other kinds, parts and sessions.
func (w *walk) all(ctx context.Context) (next time.Time, err error) {
	if err := w.beginWalks(ctx); err != nil {
		return next, err
	}
	defer w.endWalks()
	for _, step := range []func(context.Context) (time.Time, error){w.messages, w.finished, w.events} {
		due, failed := step(ctx)
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		err, next = errors.Join(err, failed), earliest(next, due)
	}
	return next, err
}

// messages archives the messages that are due, and returns when the next may be.
func (w *walk) messages(ctx context.Context) (next time.Time, err error) {
	l := look{walk: w}
	var failed error // of some sessions
	for {
		began := w.Clock.Now()
		if err := w.Store.Read(ctx, func(snap *store.Snapshot) error { return l.messages(snap, w.Messages) }); err != nil {
			return next, errors.Join(failed, err)
		}
		next = earliest(next, l.next)
		for i := range l.due {
			failed = errors.Join(failed, w.archive(ctx, &l.due[i]))
		}
		if err := w.pause(ctx, began, l.oldest); err != nil || l.last {
			return next, errors.Join(failed, err)
		}
	}
}

// A look is the result of one read. The next read reuses its memory.
type look struct {
	*walk
	after  int64     // revision of the last message checked
	last   bool      // no message after it can be due
	next   time.Time // when the next message becomes due
	oldest time.Time // when the oldest due message became due; zero = none is due
	due    []page
}

// A page has the due messages of a session.
type page struct {
	session  Session
	messages []work.Standing
	dead     int64 // of these, those with a dead delivery
	lines    lines
}

// messages finds messages after a revision, and reads at most a page of those that are due.
func (l *look) messages(snap *store.Snapshot, messages Messages) error {
	l.last, l.next, l.oldest, l.due = true, time.Time{}, time.Time{}, l.due[:0]
	found, err := l.standings(snap, messages)
	if err != nil || len(found) == 0 {
		return err
	}
	var due []work.Standing
	skipped := true
	for i := range found {
		m := &found[i]
		// Nothing can be finished for longer than it exists.
		if born := m.CreatedAt.Add(l.shortest); born.After(l.now) {
			l.next = earliest(l.next, born)
			skipped = true
			continue
		}
		l.last = false
		at := l.walk.due(m)
		if at.IsZero() || at.After(l.now) {
			l.next = earliest(l.next, at)
			skipped = true
			continue
		}
		l.oldest = earliest(l.oldest, at)
		m.Follows = m.Follows && !skipped
		skipped = false
		due = append(due, *m)
	}
	l.after = found[len(found)-1].Last
	return l.read(snap, messages, due)
}

// standings returns the next messages: those that are alike and due as one, others one by one.
func (l *look) standings(snap *store.Snapshot, messages Messages) ([]work.Standing, error) {
	for _, n := range []int{pageItems, pageItems / 4} {
		found, err := messages.Standings(snap, 0, l.after, n, false)
		if err != nil || len(found) != 1 || found[0].Messages == 1 {
			return found, err
		}
		if at := l.walk.due(&found[0]); !at.After(l.now) {
			return found, nil
		}
	}
	return messages.Standings(snap, 0, l.after, pageItems, true)
}

// read reads at most a page of the due messages.
func (l *look) read(snap *store.Snapshot, messages Messages, due []work.Standing) error {
	rows, bytes, whole := 0, 0, true
	previous := int64(0)
	dead := map[int64]bool{} // messages that are alike have no dead deliveries
	for i := range due {
		if !due[i].DeadAt.IsZero() {
			dead[due[i].First] = true
		}
	}
	err := messages.Records(snap, due, func(m *work.Standing, line []byte) bool {
		if rows += m.Deliveries; rows > pageRows && previous > 0 {
			whole = false
			return false
		}
		p := l.page(m.Session)
		if n := len(p.messages); n > 0 && m.Follows && p.messages[n-1].Last == previous {
			p.messages[n-1].Join(m)
		} else {
			p.messages = append(p.messages, *m)
		}
		p.lines.add(m.CreatedAt, line)
		if dead[m.First] {
			p.dead++
		}
		previous = m.Last
		bytes += len(line)
		whole = bytes <= pageBytes
		return whole
	})
	if !whole {
		l.after = previous
	}
	return err
}

// page returns the page of a session.
func (l *look) page(session int64) *page {
	for i := range l.due {
		if l.due[i].session.ID == session {
			return &l.due[i]
		}
	}
	n := len(l.due)
	if n == cap(l.due) {
		l.due = append(l.due, page{})
	}
	l.due = l.due[:n+1]
	p := &l.due[n]
	p.session, p.messages, p.dead = l.sessions[session], p.messages[:0], 0
	p.lines.reset()
	return p
}

// archive archives a page of messages.
func (w *walk) archive(ctx context.Context, due *page) error {
	moved, err := w.move(ctx, due.session, messagesKind, &due.lines, func(tx *store.Tx) error {
		return w.Messages.Remove(tx, due.messages)
	})
	if moved > 0 {
		w.counts.Messages += moved - due.dead
		w.counts.DeadLetters += due.dead
	}
	if fault.KindOf(err) == fault.Conflict {
		w.wakeBy(w.Clock.Now().Add(retry)) // the messages stay; the next run checks them again
		return nil
	}
	return err
}

// events archives the events that are due, and returns when the next may be.
func (w *walk) events(ctx context.Context) (next time.Time, err error) {
	var l lines
	var failed error
	ended := map[int64]bool{} // sessions of which something stays: what follows stays too, so that there is no gap
	for after := int64(0); ; {
		began := w.Clock.Now()
		var found []events.Record
		err := w.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			found, after, err = w.Events.After(snap, 0, after, pageItems, pageBytes)
			return err
		})
		if err != nil || after == 0 {
			return next, errors.Join(failed, err)
		}
		old := len(found) == 0 // then what follows may be old
		bySession := map[int64][]events.Record{}
		due := map[int64]int{} // how many of them
		var oldest time.Time
		for i := range found {
			e := &found[i]
			happened := e.Time()
			old = old || !happened.Add(w.shortest).After(w.now)
			s, known := w.sessions[e.Session]
			if !known || s.KeepEvents == 0 {
				continue
			}
			bySession[e.Session] = append(bySession[e.Session], *e)
			if at := happened.Add(s.KeepEvents); at.After(w.now) {
				next = earliest(next, at)
			} else {
				due[e.Session] = len(bySession[e.Session]) // and all before it
				oldest = earliest(oldest, at)
			}
		}
		for id, page := range bySession {
			moved := 0
			if n := due[id]; n > 0 && !ended[id] {
				moved, err = w.archiveEvents(ctx, w.sessions[id], page[:n], &l)
				failed = errors.Join(failed, err)
			}
			ended[id] = ended[id] || moved < len(page)
		}
		if !old {
			return next, failed
		}
		if len(due) > 0 || len(found) == 0 {
			if err := w.pause(ctx, began, oldest); err != nil {
				return next, errors.Join(failed, err)
			}
		}
	}
}

// archiveEvents archives the oldest events of a session, one page, and returns how many: 0 while the session is being
// exported.
func (w *walk) archiveEvents(ctx context.Context, s Session, due []events.Record, l *lines) (int, error) {
	l.reset()
	revisions := make([]int64, len(due))
	var text []byte
	for i := range due {
		e := &due[i]
		var err error
		if text, err = e.Append(text[:0], s.Name); err != nil {
			return 0, err
		}
		l.add(e.Time(), text)
		revisions[i] = e.Revision
	}
	moved, err := w.move(ctx, s, eventsKind, l, func(tx *store.Tx) error { return w.Events.Remove(tx, s.ID, revisions) })
	w.counts.Events += moved
	return int(moved), err
}

// tidy removes what is of no use any more.
func (k *Keeper) tidy(ctx context.Context) error {
	for k.Tidy != nil {
		began := k.Clock.Now()
		var n int64
		err := k.Store.Write(ctx, func(tx *store.Tx) (err error) {
			n, err = k.Tidy(tx, pageItems)
			return err
		})
		if err != nil || n < pageItems {
			return err
		}
		if err := k.pauseFor(ctx, began, 1); err != nil {
			return err
		}
	}
	return nil
}

// pause is pauseFor with a fraction (0 to 1) of the usual pause. oldest is the time at which the oldest
// pending item became due. A run that falls behind pauses less, so removal keeps pace with new data.
func (w *walk) pause(ctx context.Context, began, oldest time.Time) error {
	fraction := 1.0
	if !w.pruning && !oldest.IsZero() {
		lag := w.Clock.Since(oldest)
		fraction = max(0, 1-float64(lag)/float64(min(w.shortest/lagDivisor, maxLag)))
	}
	return w.pauseFor(ctx, began, fraction)
}

// pauseFor pauses after a page that began then, for a fraction of the usual pause, so that other functions
// can run. It does not pause if no other function has run meanwhile.
func (k *Keeper) pauseFor(ctx context.Context, began time.Time, fraction float64) error {
	ran := k.Store.Stats().Functions
	meanwhile := ran - k.ran.Swap(ran)
	took := time.Duration(fraction * float64(k.Clock.Since(began)))
	if took <= 0 || meanwhile <= quietFunctions {
		return ctx.Err()
	}
	timer := k.Clock.NewTimer(min(pauseFactor*took, maxPause))
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// earliest returns the earlier of two times, of which zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
