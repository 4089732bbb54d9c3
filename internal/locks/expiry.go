package locks

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/store"
)

const (
	restartGrace = 30 * time.Second // on top of its full time, for what is held when the broker starts
	lapseAfter   = 10 * time.Second // of a ticket that nobody waits for
	contestAfter = time.Minute      // that somebody waits for a grant
	retryAfter   = time.Second      // when what is due could not be done
)

// collectWithin is how long a grant waits for its owner.
func collectWithin(kept bool) time.Duration {
	if kept {
		return 2 * time.Minute
	}
	return 10 * time.Second
}

// warnAfter is when the owner of a grant is told that its end is near.
func warnAfter(maxHold time.Duration) time.Duration { return maxHold / 5 * 4 }

// An alarm is something that happens to a grant or ticket when nobody does anything.
type alarm struct {
	kind   alarmKind
	number int64 // the fence, the ticket, or the session
}

type alarmKind int

const (
	holdAlarm    alarmKind = iota // its owner is warned, and the second time its hold is over
	collectAlarm                  // its owner has not asked for it
	contestAlarm                  // others wait for it
	lapseAlarm                    // of a ticket: nobody waits for it
	settleAlarm                   // of a session: settle has left a part of its queue
	closeAlarm                    // of a closed session: it still has grants
)

// An alarmRun does what the alarms of a table are for.
type alarmRun struct{ *Table }

// due does what some alarms are for, as much in one function as alarmPage permits.
func (r alarmRun) due(alarms []alarm) {
	for len(alarms) > 0 {
		n, err := r.ringSome(alarms, alarmPage)
		if err != nil && n > 1 {
			n, err = r.ringSome(alarms[:1], 0) // by itself, so that it does not delay the others
		}
		if err != nil {
			a := alarms[0]
			if _, renewed := r.alarms.Deadline(a); !renewed {
				r.alarms.Set(a, r.clock.Now().Add(retryAfter))
			}
			r.zap.Warn("what is due could not be done; trying again", zap.Error(err))
			n = 1
		}
		alarms = alarms[n:]
	}
}

// ringSome does what the first alarms are for, in one function. It returns how many they are: at least
// one, and further ones until so much is spent.
func (r alarmRun) ringSome(alarms []alarm, most int) (n int, err error) {
	err = r.store.Drain(context.Background(), func(tx *store.Tx) error {
		n = 0
		for spent := 0; n < len(alarms) && (n == 0 || spent < most); {
			a := alarms[n]
			n++
			if _, renewed := r.alarms.Deadline(a); renewed {
				continue
			}
			cost, err := r.ring(tx, a)
			if err != nil {
				return err
			}
			spent += alarmCost + cost
		}
		return nil
	})
	return n, err
}

// ring does what an alarm is for, and returns about how much it has spent.
func (r alarmRun) ring(tx *store.Tx, a alarm) (spent int, err error) {
	switch a.kind {
	case lapseAlarm:
		return r.lapse(tx, a.number)
	case settleAlarm:
		return r.settleFurther(tx, a.number)
	case closeAlarm:
		return r.closeFurther(tx, a.number)
	default:
	}
	g, err := findGrant(tx, selectGrant, a.number)
	if g == nil || err != nil {
		return 0, err
	}
	u, err := r.lockTx(tx, g.session)
	if err != nil {
		return 0, err
	}
	switch {
	case a.kind == contestAlarm:
		err = u.contest(g)
	case a.kind == collectAlarm && g.collected:
	case a.kind == collectAlarm:
		err = u.expire(g, "its owner has not asked for it")
	case !g.warned:
		err = u.warn(g)
	default:
		err = u.expire(g, "the longest hold is over")
	}
	return u.spent, err
}

// lapse ends a ticket that nobody waits for.
func (r alarmRun) lapse(tx *store.Tx, number int64) (spent int, err error) {
	var session int64
	err = tx.QueryRow(selectTicketSession, number).Scan(&session)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	u, err := r.lockTx(tx, session)
	if err != nil {
		return 0, err
	}
	u.callers.leave(tx, number)
	k := u.queue.find(number)
	if k == nil || k.kept || u.callers.awaited(number) {
		return 0, nil
	}
	_, err = u.append(eventTypes{"lock.lapsed", "token.lapsed"}, events.Debug, k.owner, k.role, &k.claim, k.owner.String()+" waits for "+k.claim.title()+" no more",
		details{{"ticket", k.number}})
	if err != nil {
		return 0, err
	}
	u.drop(k)
	err = u.passOn(&k.claim)
	return u.spent, err
}

// warn tells the owner of a grant that its end is near.
func (u *lockTx) warn(g *grant) error {
	left := g.maxHold - warnAfter(g.maxHold)
	more := details{{"fence", g.fence}, {"left_seconds", left.Seconds()}}
	_, err := u.append(eventTypes{"lock.expiring", "token.expiring"}, events.Warning, g.owner, g.role, &g.claim, "the hold of "+g.claim.title()+" by "+g.owner.String()+" ends in "+left.String(), more)
	if err != nil {
		return err
	}
	u.tx.Exec(updateWarned, g.fence)
	u.callers.changed(u.tx, g)
	u.tx.OnCommit(func() { u.alarms.Set(alarm{holdAlarm, g.fence}, u.tx.Now().Add(left)) })
	return u.notify(g.owner, &g.claim, g.fence, "expiring",
		"your hold of "+g.claim.spoken()+" ends in "+left.String()+": extend it, or finish", more)
}

// expire ends a grant whose time is over.
func (u *lockTx) expire(g *grant, why string) error {
	_, err := u.append(eventTypes{"lock.expired", "token.expired"}, events.Warning, g.owner, g.role, &g.claim, g.owner.String()+" has lost "+g.claim.title()+": "+why,
		details{{"fence", g.fence}, {"cause", why}})
	if err != nil {
		return err
	}
	if err := u.end(g); err != nil {
		return err
	}
	err = u.notify(g.owner, &g.claim, 0, "expired",
		"you have lost "+g.claim.spoken()+": "+why, details{{"fence", g.fence}, {"cause", why}})
	if err != nil {
		return err
	}
	return u.passOn(&g.claim)
}

// contend has the owner of a grant told before long if somebody waits for it already.
func (u *lockTx) contend(g *grant) {
	for _, k := range u.queue.tickets {
		if k.owner != g.owner && u.conflict(&k.claim, &g.claim) {
			u.contestLater(g.fence)
			return
		}
	}
}

func (u *lockTx) contestLater(fence int64) {
	u.tx.OnCommit(func() {
		a := alarm{contestAlarm, fence}
		if _, set := u.alarms.Deadline(a); !set {
			u.alarms.Set(a, u.tx.Now().Add(contestAfter))
		}
	})
}

// contest tells the owner of a grant, once, that somebody has been waiting for it.
func (u *lockTx) contest(g *grant) error {
	if g.contested {
		return nil
	}
	var waiting []string
	var first time.Time
	for _, k := range u.queue.tickets {
		if k.owner != g.owner && u.conflict(&k.claim, &g.claim) {
			if len(waiting) == 0 {
				first = k.createdAt
			}
			waiting = append(waiting, k.owner.String())
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	since := first
	if g.grantedAt.After(since) {
		since = g.grantedAt
	}
	if left := contestAfter - u.tx.Now().Sub(since); left > 0 {
		u.tx.OnCommit(func() { u.alarms.Set(alarm{contestAlarm, g.fence}, u.tx.Now().Add(min(left, contestAfter))) })
		return nil
	}
	more := details{{"fence", g.fence}, {"waiting", waiting[:min(len(waiting), mostObstacles)]}, {"waiting_count", len(waiting)}}
	_, err := u.append(eventTypes{"lock.contested", "token.contested"}, 0, g.owner, g.role, &g.claim, waiting[0]+" waits for "+g.claim.title()+", held by "+g.owner.String(), more)
	if err != nil {
		return err
	}
	u.tx.Exec(updateContested, g.fence)
	u.callers.changed(u.tx, g)
	return u.notify(g.owner, &g.claim, g.fence, "contested",
		waiting[0]+" waits for "+g.claim.spoken()+", which you hold", more)
}
