package agents

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	// endedFor is how long after its end an agent that has failed or stopped is deregistered.
	endedFor = 7 * 24 * time.Hour
	// restartGrace is what every lease gets on top of its full time when the broker starts again.
	restartGrace = 30 * time.Second
	leaseRetry   = time.Second
)

// Start starts the timers of leases and of the write of activity. A lease that was alive when the
// broker stopped gets its full time again and a grace of 30 s.
func (p *Presence) Start(ctx context.Context) error {
	err := p.store.Read(ctx, func(snap *store.Snapshot) error {
		rows := snap.Query(selectLeases)
		defer rows.Close()
		now := p.clock.Now()
		p.start(now)
		for rows.Next() {
			var a Agent
			var state int
			if err := rows.Scan(&a.Session, &a.ID, &a.Name, &a.Incarnation, &a.Lease, &a.FailedAt,
				&a.StoppedAt, &a.LastSeen, &a.Sent, &a.Received, &a.Processed, &state,
				&a.Harness.Listening); err != nil {
				return err
			}
			a.Harness.State = HarnessState(state)
			s, err := p.dir.ByID(snap, a.Session)
			if err != nil {
				return err
			}
			if s.Closed() {
				continue
			}
			if a.Ended() {
				p.ends(s.Name, a)
			} else {
				p.alive(s.Name, a, now.Add(a.Lease+restartGrace))
			}
		}
		return rows.Err()
	})
	if err != nil {
		return fmt.Errorf("take up leases: %w", err)
	}
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.runners.Go(func() { p.leases.Run(ctx) })
	p.runners.Go(func() { p.gone.Run(ctx) })
	p.runners.Go(func() { p.writes.Run(ctx) })
	return nil
}

// Stop ends what Start began, waits for it, and writes the activity that is in memory only.
// Stopping twice is fine.
func (p *Presence) Stop() {
	if p.stop == nil {
		return
	}
	p.stop()
	p.runners.Wait()
	p.writeActivity(nil)
}

// SessionClosed ends the leases of a session in which nothing changes any more. It is a hook of the closing.
func (p *Presence) SessionClosed(tx *store.Tx, session directory.Session) error {
	tx.OnCommit(func() { p.forgetSession(session.Name) })
	return nil
}

// A failure is an agent that has failed, and how much it has lost, by kind.
type failure struct {
	session string
	agent   Agent
	lost    map[directory.LossKind]int
}

// leasesOver fails the agents whose leases have expired, each in a separate function of the writer.
// The function checks the lease again: the writer's order decides between an activity and the end of
// the lease.
func (r *Registry) leasesOver(lives []*life) {
	var failures []failure // of the writer until each returns
	p := r.Presence
	p.each(p.leases, lives, func(tx *store.Tx, l *life) error {
		if p.keeps(l, r.clock.Now()) {
			return nil
		}
		return r.fail(tx, l, func(f failure) { failures = append(failures, f) })
	})
	for _, f := range failures {
		r.zap.Warn("an agent has failed: the broker received no call from it during its lease",
			zap.String("agent", f.agent.Name), zap.String("session", f.session), zap.String("role", f.agent.Role),
			zap.Duration("lease", f.agent.Lease), zap.Int64("incarnation", f.agent.Incarnation),
			zap.Int("claims", f.lost[directory.LostClaim]), zap.Int("locks", f.lost[directory.LostLock]),
			zap.Int("tokens", f.lost[directory.LostToken]), zap.Int("tickets", f.lost[directory.LostTicket]))
	}
}

// goneOver deregisters the agents that failed or stopped too long ago.
func (r *Registry) goneOver(lives []*life) {
	p := r.Presence
	p.each(p.gone, lives, func(tx *store.Tx, l *life) error {
		a, found, err := p.agent(tx, l)
		if err != nil || !found || !a.Ended() {
			return err
		}
		if at := a.EndedAt().Add(endedFor); at.After(tx.Now()) { // the clock was set back
			tx.OnCommit(func() { p.gone.Set(l, at) })
			return nil
		}
		why := "failed for 7 days"
		if a.Stopped() {
			why = "stopped for 7 days"
		}
		_, err = r.end(tx, l.session, a, identity.System, why)
		return err
	})
}

// each runs a function in the writer for every agent whose deadline has passed, and waits for all. It returns an agent
// to the queue if its function fails.
func (p *Presence) each(queue *deadline.Queue[*life], lives []*life, do func(*store.Tx, *life) error) {
	var wait sync.WaitGroup
	for _, l := range lives {
		wait.Add(1)
		change := func(tx *store.Tx) error { return do(tx, l) }
		p.store.Submit(context.Background(), store.LaneDrain, 0, change, func(err error) {
			defer wait.Done()
			switch fault.KindOf(err) {
			case fault.NotFound, fault.Precondition: // its session is gone, or closed
			default:
				if err != nil {
					queue.Set(l, p.clock.Now().Add(leaseRetry))
					p.zap.Warn("the end of a lease could not be noted; trying again", zap.String("agent", l.name), zap.Error(err))
				}
			}
		})
	}
	wait.Wait()
}

// agent returns the row of a registered agent.
func (p *Presence) agent(tx *store.Tx, l *life) (Agent, bool, error) {
	session, err := p.dir.SessionID(tx, l.session)
	if err != nil {
		return Agent{}, false, err
	}
	return find(tx, session, l.name)
}

// fail ends an agent's lease with all that depends on it. It increments the incarnation, so that the
// broker refuses clients that still use the old one. It calls failed after the commit.
func (r *Registry) fail(tx *store.Tx, l *life, failed func(failure)) error {
	a, found, err := r.Presence.agent(tx, l)
	if err != nil || !found || a.Ended() {
		return err
	}
	a.Incarnation++
	a.FailedAt = tx.Now()
	summary := fmt.Sprintf("%s failed: it was silent for its lease of %v", a.Name, a.Lease)
	a.Revision, err = r.append(tx, a, identity.System, events.Warning, "agent.failed", summary, map[string]any{
		"agent": a.Name, "incarnation": a.Incarnation, "lease_seconds": a.Lease.Seconds(),
	})
	if err != nil {
		return err
	}
	tx.Exec(updateFailed, a.FailedAt, a.Incarnation, a.Revision, a.ID)
	r.dir.AgentsChanged(tx)
	losses, err := r.Hooks.end(tx, a)
	if err != nil {
		return err
	}
	if err := keepLosses(tx, a.ID, losses); err != nil {
		return err
	}
	tx.OnCommit(func() {
		lost := map[directory.LossKind]int{}
		for _, loss := range losses {
			lost[loss.Kind]++
		}
		failed(failure{l.session, a, lost})
		if r.Presence.ends(l.session, a) {
			r.bringBack(l)
		}
	})
	return nil
}

// bringBack revives an agent of which a call had begun when its failing was already decided: it may be one that
// only waits.
func (r *Registry) bringBack(l *life) {
	r.store.Submit(context.Background(), store.LaneDrain, 0, func(tx *store.Tx) error {
		a, found, err := r.Presence.agent(tx, l)
		if err != nil || !found || a.FailedAt.IsZero() {
			return err
		}
		_, err = r.revive(tx, l.session, a)
		return err
	}, func(err error) {
		if err != nil {
			r.zap.Warn("an agent that had just failed was not brought back; its next call will", zap.String("agent", l.name), zap.Error(err))
		}
	})
}

// reviveCalling brings back an agent that the directory has found to call.
func (r *Registry) reviveCalling(tx *store.Tx, c identity.Caller, found directory.Agent) (directory.Agent, error) {
	a, err := r.revive(tx, c.Session, Agent{
		ID: found.ID, Session: found.Session, Name: found.Name, Incarnation: found.Incarnation,
		Description: Description{Role: found.Role, Capabilities: found.Capabilities},
		Attention:   found.Attention, FailedAt: found.FailedAt, StoppedAt: found.StoppedAt,
	})
	return a.Entry(), err
}

// revive brings back an agent that has failed or stopped and calls, and returns it.
func (r *Registry) revive(tx *store.Tx, session string, a Agent) (Agent, error) {
	summary := fmt.Sprintf("%s is back, incarnation %d", a.Name, a.Incarnation)
	ended := "failed_at"
	if a.Stopped() {
		ended = "stopped_at"
	}
	var err error
	a.Revision, err = r.append(tx, a, a.Name, events.Info, "agent.revived", summary, map[string]any{
		"agent": a.Name, "incarnation": a.Incarnation, ended: a.EndedAt().UTC().Format(time.RFC3339Nano),
	})
	if err != nil {
		return a, err
	}
	a.FailedAt, a.StoppedAt, a.ChangedAt = time.Time{}, time.Time{}, tx.Now()
	if a.Status == Stopped {
		a.Status, a.Reason = Unreported, ""
	}
	if err := tx.QueryRow(updateRevived, a.ChangedAt, a.Revision, a.ID).Scan(&a.Lease); err != nil {
		return a, err
	}
	r.dir.AgentsChanged(tx)
	tx.OnCommit(func() { r.Presence.alive(session, a, r.clock.Now().Add(a.Lease)) })
	return a, nil
}
