package retention

import (
	"context"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

const (
	lookAt    = 1000        // messages or events that one read looks at
	pageItems = 250         // messages or events that one transaction removes
	pageRows  = 2000        // deliveries that it removes, unless a single message has more
	pageBytes = 1 << 20     // of lines that it archives
	restFor   = 4           // times as long as a page took, if others are at work
	quiet     = 5           // changes meanwhile, its own included, that do not count as work of others
	mostRest  = time.Second // what took longer was not all work: the process was suspended, or the disk hung
	retry     = time.Second

	// A turn comes no sooner after another than this part of the shortest time to keep something.
	linger = 20
)

// A plan is how long things are kept, as of the beginning of a turn.
type plan struct {
	now      time.Time
	sessions map[int64]Session
	channels map[int64]map[string]time.Duration
	shortest time.Duration // of all times; 0 = everything is kept for ever
}

func (k *Keeper) plan(ctx context.Context) (plan, error) {
	p := plan{now: k.Clock.Now(), sessions: map[int64]Session{}}
	err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
		all, err := k.Sessions.All(snap)
		if err != nil {
			return err
		}
		for _, s := range all {
			p.sessions[s.ID] = s
			p.note(s.KeepMessages, s.KeepEvents, s.KeepDead)
		}
		p.channels, err = k.Messages.ChannelsKept(snap)
		for _, channels := range p.channels {
			for _, keep := range channels {
				p.note(keep)
			}
		}
		return err
	})
	return p, err
}

func (p *plan) note(times ...time.Duration) {
	for _, t := range times {
		if t > 0 && (p.shortest == 0 || t < p.shortest) {
			p.shortest = t
		}
	}
}

// due returns when a message is, as far as is known now: at the earliest. Zero is never.
func (p *plan) due(m *Message) time.Time {
	s, known := p.sessions[m.Session]
	if !known {
		return time.Time{} // it is being deleted
	}
	keep := s.KeepMessages
	if own, ok := p.channels[m.Session][m.Channel]; ok && m.Channel != "" {
		keep = own
	}
	if !m.Finished {
		return p.now.Add(p.shortest)
	}
	var due time.Time
	if at := m.FinishedAt; !at.IsZero() || m.Deliveries == 0 {
		if keep == 0 {
			return time.Time{}
		}
		if at.IsZero() {
			at = m.CreatedAt
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

// turn archives all that is due, and plans the next turn.
func (k *Keeper) turn(ctx context.Context) {
	next, pause, err := k.work(ctx)
	if ctx.Err() != nil {
		return
	}
	now := k.Clock.Now()
	if err != nil {
		k.Log.Warn("what is due could not be archived; trying again", zap.Error(err))
		k.wakeBy(now.Add(retry))
		return
	}
	if next.IsZero() {
		return // until a setting changes
	}
	if soonest := now.Add(pause); next.Before(soonest) {
		next = soonest
	}
	k.wakeBy(next)
}

// work does what a turn does, and returns when there can be something to do again, and how long to pause at least.
func (k *Keeper) work(ctx context.Context) (next time.Time, pause time.Duration, err error) {
	if err := k.resume(ctx); err != nil {
		return next, 0, err
	}
	p, err := k.plan(ctx)
	if err != nil {
		return next, 0, err
	}
	if p.shortest > 0 {
		next = p.now.Add(p.shortest) // of what comes from now on
		for _, walk := range []func(context.Context, *plan) (time.Time, error){k.messages, k.events} {
			due, err := walk(ctx, &p)
			if err != nil {
				return next, 0, err
			}
			if !due.IsZero() && due.Before(next) {
				next = due
			}
		}
	}
	if err := k.tidy(ctx); err != nil {
		return next, 0, err
	}
	return next, p.shortest / linger, k.vacuum(ctx)
}

// messages archives the messages that are due, and returns when the next may be.
func (k *Keeper) messages(ctx context.Context, p *plan) (next time.Time, err error) {
	for after := int64(0); ; {
		began := k.Clock.Now()
		var found []Message
		err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			found, err = k.Messages.Standings(snap, 0, after, lookAt)
			return err
		})
		if err == nil {
			err = k.rest(ctx, k.Clock.Since(began))
		}
		if err != nil || len(found) == 0 {
			return next, err
		}
		after = found[len(found)-1].Revision
		old := false
		bySession := map[int64][]Message{}
		for i := range found {
			m := &found[i]
			// Nothing can be finished for longer than it exists.
			if born := m.CreatedAt.Add(p.shortest); born.After(p.now) {
				next = earliest(next, born)
				continue
			}
			old = true
			due := p.due(m)
			if due.IsZero() || due.After(p.now) {
				next = earliest(next, due)
				continue
			}
			bySession[m.Session] = append(bySession[m.Session], *m)
		}
		for id, due := range bySession {
			if err := k.archiveMessages(ctx, p.sessions[id], due); err != nil {
				return next, err
			}
		}
		if !old {
			return next, nil
		}
	}
}

// archiveMessages archives messages of one session in pages.
func (k *Keeper) archiveMessages(ctx context.Context, s Session, due []Message) error {
	for len(due) > 0 && !k.isHeld(s.ID) {
		began := k.Clock.Now()
		page, lines, err := k.messagePage(ctx, s, due)
		if err != nil {
			return err
		}
		err = k.move(ctx, s, "messages", lines, func(tx *store.Tx) error { return k.Messages.Remove(tx, page) })
		switch {
		case fault.KindOf(err) == fault.Conflict:
			k.wakeBy(k.Clock.Now().Add(retry)) // it stays, and another turn looks at it
		case err != nil:
			return err
		}
		due = due[len(page):]
		if err := k.rest(ctx, k.Clock.Since(began)); err != nil {
			return err
		}
	}
	return nil
}

// messagePage reads the first of the messages, as many as make a page.
func (k *Keeper) messagePage(ctx context.Context, s Session, due []Message) ([]Message, []line, error) {
	var lines []line
	err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
		rows, bytes := 0, 0
		for _, m := range due[:min(len(due), pageItems)] {
			if rows += m.Deliveries; len(lines) > 0 && (rows > pageRows || bytes > pageBytes) {
				return nil
			}
			text, err := k.Messages.Record(snap, s.ID, m.Revision)
			if err != nil {
				return err
			}
			lines = append(lines, line{m.CreatedAt, text})
			bytes += len(text)
		}
		return nil
	})
	return due[:len(lines)], lines, err
}

// events archives the events that are due, and returns when the next may be.
func (k *Keeper) events(ctx context.Context, p *plan) (next time.Time, err error) {
	for after := int64(0); ; {
		began := k.Clock.Now()
		var found []Event
		err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			found, err = k.Events.After(snap, 0, after, pageItems, pageBytes)
			return err
		})
		if err != nil || len(found) == 0 {
			return next, err
		}
		after = found[len(found)-1].Revision
		old := false
		bySession := map[int64][]Event{}
		due := map[int64]int{} // how many of them
		for _, e := range found {
			old = old || !e.At.Add(p.shortest).After(p.now)
			s, known := p.sessions[e.Session]
			if !known || s.KeepEvents == 0 {
				continue
			}
			bySession[e.Session] = append(bySession[e.Session], e)
			if at := e.At.Add(s.KeepEvents); at.After(p.now) {
				next = earliest(next, at)
			} else {
				due[e.Session] = len(bySession[e.Session]) // and all before it, so that what is kept has no gap
			}
		}
		for id, n := range due {
			if err := k.archiveEvents(ctx, p.sessions[id], bySession[id][:n]); err != nil {
				return next, err
			}
		}
		if !old {
			return next, nil
		}
		if len(due) > 0 {
			if err := k.rest(ctx, k.Clock.Since(began)); err != nil {
				return next, err
			}
		}
	}
}

// archiveEvents archives the oldest events of a session: one page.
func (k *Keeper) archiveEvents(ctx context.Context, s Session, due []Event) error {
	lines := make([]line, len(due))
	revisions := make([]int64, len(due))
	for i, e := range due {
		text, err := e.Record(s.Name)
		if err != nil {
			return err
		}
		lines[i], revisions[i] = line{e.At, text}, e.Revision
	}
	return k.move(ctx, s, "events", lines, func(tx *store.Tx) error { return k.Events.Remove(tx, s.ID, revisions) })
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
		if err := k.rest(ctx, k.Clock.Since(began)); err != nil {
			return err
		}
	}
	return nil
}

// Free pages are kept for what comes, unless they are more than this, and more than a quarter.
const spare = 1024

// vacuum gives free pages back to the file system.
func (k *Keeper) vacuum(ctx context.Context) error {
	var left store.Space
	err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
		left, err = store.SpaceOf(snap)
		return err
	})
	for err == nil && left.Free > spare && left.Free > left.Pages/4 {
		began := k.Clock.Now()
		err = k.Store.Write(ctx, func(tx *store.Tx) (err error) {
			left, err = tx.Vacuum()
			return err
		})
		if err == nil {
			err = k.rest(ctx, k.Clock.Since(began))
		}
	}
	return err
}

// rest lets others work after something that took so long. If nobody else does it goes on at once.
func (k *Keeper) rest(ctx context.Context, took time.Duration) error {
	ran := k.Store.Stats().Functions
	meanwhile := ran - k.ran.Swap(ran)
	if took <= 0 || meanwhile <= quiet {
		return ctx.Err()
	}
	timer := k.Clock.NewTimer(min(restFor*took, mostRest))
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
