package agents

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Presence keeps in memory which agents are alive: their leases, last calls and open calls, and the activity that their
// rows lack. Every call of every agent passes through it twice, so it does as little as it can. It may be used
// concurrently.
type Presence struct {
	store *store.Store
	dir   *directory.Directory
	clock clockwork.Clock
	zap   *zap.Logger

	revive func(ctx context.Context, who identity.Caller) // brings back a failed agent that calls
	leases *deadline.Queue[*life]                         // when the leases of silent agents expire
	gone   *deadline.Queue[*life]                         // when agents that have failed or stopped are deregistered
	writes *deadline.Queue[struct{}]                      // when the activity of all agents is written

	stop    context.CancelFunc // ends the runners
	runners sync.WaitGroup     // of the queues

	mu        sync.Mutex // guards started, lives, unwritten and what is in them
	started   time.Time  // when the broker started
	lives     map[agentKey]*life
	unwritten []*life // their rows lack some activity
}

type agentKey struct{ session, name string }

// A life is what is known of an agent in memory.
type life struct {
	agentKey
	activity
	unwritten   bool          // the row lacks some activity
	acted       time.Time     // the end of the last call that was no empty heartbeat
	worked      time.Time     // the last change of Messages; zero = none since it registered and the broker started
	begun       bool          // it has made a call other than heartbeats since it registered and the broker started
	lease       time.Duration // 0 = it is not registered
	incarnation int64
	awake       bool // see Harness.awake
	ended       ending
	open        int // calls without an incarnation
	own         int // calls that name the incarnation
}

// An ending says how an agent has ended.
type ending int

const (
	notEnded ending = iota
	hasFailed
	hasStopped
)

// ending says how the agent has ended.
func (a *Agent) ending() ending {
	switch {
	case a.Stopped():
		return hasStopped
	case a.Ended():
		return hasFailed
	default:
		return notEnded
	}
}

// Began takes note that a call in an agent's own name has begun at a time: Ended must follow. A call that
// believes in an incarnation that is no longer the newest is no sign of life of the agent that is. If the agent
// has failed, the call brings it back before it goes on; only those that change something need that for certain,
// and they look again. RegisterAgent and Heartbeat do it themselves. An agent that has stopped does not come
// back by a call that only reads: a person who looks at it in its name has not started its program.
func (p *Presence) Began(ctx context.Context, who identity.Caller, method string, at time.Time) {
	if acts := begins(method); p.began(who, acts, at) && acts {
		p.revive(ctx, who)
	}
}

// begins reports whether a call of this method shows that the agent has begun its work.
func begins(method string) bool { return method != registerMethod && method != heartbeatMethod }

// Ended notes that a call has ended, and renews the lease of the agent. A heartbeat without content
// does only that: programs send it for agents that are idle.
func (p *Presence) Ended(who identity.Caller, method string, size int) {
	acts := method != heartbeatMethod || size > 0
	p.ended(who, acts, p.clock.Now())
}

// began reports whether the call finds its agent failed.
func (p *Presence) began(who identity.Caller, begins bool, at time.Time) (failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := agentKey{who.Session, who.Agent}
	l := p.lives[k]
	if l == nil {
		if who.Incarnation != 0 {
			return false // the agent is not registered, so it has no incarnation
		}
		l = p.life(k)
	}
	if !l.count(who.Incarnation, 1) {
		return false
	}
	l.last, l.begun = at, l.begun || begins
	p.touch(l, at)
	return l.ended == hasFailed
}

func (p *Presence) ended(who identity.Caller, acts bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[agentKey{who.Session, who.Agent}]
	if l == nil || !l.count(who.Incarnation, -1) {
		return
	}
	l.last = now
	if acts {
		l.acted = now
	}
	p.touch(l, now)
	if l.lease > 0 && l.ended == notEnded {
		p.leases.Set(l, now.Add(l.lease))
	}
	p.sweep(l)
}

// count counts an open call, unless it believes in another incarnation.
func (l *life) count(incarnation int64, n int) bool {
	switch incarnation {
	case 0:
		l.open = max(0, l.open+n)
	case l.incarnation:
		l.own = max(0, l.own+n)
	default:
		return false
	}
	return true
}

func (l *life) calls() bool { return l.open+l.own > 0 }

// life returns what is known of an agent. The caller holds the mutex.
func (p *Presence) life(k agentKey) *life {
	l := p.lives[k]
	if l == nil {
		l = &life{agentKey: k}
		p.lives[k] = l
	}
	return l
}

// sweep forgets an agent that is not registered, has no open call and no unwritten activity. The
// caller holds the mutex.
func (p *Presence) sweep(l *life) {
	if l.lease == 0 && !l.calls() && !l.unwritten {
		delete(p.lives, l.agentKey)
	}
}

// alive starts an agent's lease.
func (p *Presence) alive(session string, a Agent, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.life(agentKey{session, a.Name})
	l.is(a)
	l.lease, l.ended = a.Lease, notEnded
	p.leases.Set(l, until)
	p.gone.Remove(l)
}

// ends takes note that an agent has failed or stopped, and is deregistered in the end. It reports whether a call
// of it is open.
func (p *Presence) ends(session string, a Agent) (calls bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.life(agentKey{session, a.Name})
	l.is(a)
	l.lease, l.ended = a.Lease, a.ending()
	p.leases.Remove(l)
	p.gone.Set(l, a.EndedAt().Add(endedFor))
	return l.calls()
}

// is sets the row and the newest incarnation of the agent. Open calls of another incarnation no
// longer count as its own.
func (l *life) is(a Agent) {
	if l.row != a.ID {
		l.row, l.Messages = a.ID, a.Messages
	}
	l.awake = a.Harness.awake()
	if l.last.IsZero() {
		l.last = a.LastSeen
	}
	if l.acted.IsZero() { // the broker has started since
		l.acted = a.LastSeen
	}
	if l.incarnation != a.Incarnation {
		l.incarnation, l.own, l.worked, l.begun = a.Incarnation, 0, time.Time{}, false
	}
}

// forget takes note that an agent is not registered any more.
func (p *Presence) forget(session, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lives[agentKey{session, name}]; l != nil {
		p.end(l)
	}
}

// forgetSession takes note that nothing in a session changes any more.
func (p *Presence) forgetSession(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lives {
		if l.session == session {
			p.end(l)
		}
	}
}

// end ends the lease of an agent for good. The caller holds the mutex.
func (p *Presence) end(l *life) {
	l.lease, l.ended = 0, notEnded
	p.leases.Remove(l)
	p.gone.Remove(l)
	p.sweep(l)
}

// keeps reports whether an agent whose lease was over is not to fail: it was heard of since, or has a call open,
// which gives it the whole lease again.
func (p *Presence) keeps(l *life, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.lease == 0 || l.ended != notEnded {
		return true
	}
	if l.calls() {
		p.leases.Set(l, now.Add(l.lease))
	}
	_, runs := p.leases.Deadline(l)
	return runs
}

// look sets what the row of an agent may lack: the time of its last call, since when it is asleep, the
// counts of its messages, its health, and its status if it reports none. claims says that it holds a claim.
func (p *Presence) look(session string, a *Agent, claims bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[agentKey{session, a.Name}]
	if l != nil && l.last.After(a.LastSeen) {
		a.LastSeen = l.last
	}
	if l != nil && l.row == a.ID {
		a.Messages = l.Messages
	}
	a.AsleepSince = p.asleep(l, now)
	p.derive(a, l, claims, now)
	switch {
	case !a.FailedAt.IsZero() || a.Status == StatusFailed:
		a.Health = Failed
	case a.Degraded || a.Status == StatusDegraded:
		a.Health = Degraded
	case p.late(l, now):
		a.Health = Late
	default:
		a.Health = OK
	}
}

// State returns the state of an agent in one word, for people. Status and Health must be filled.
func (a *Agent) State() string {
	switch {
	case a.Health == Failed:
		return "failed"
	case a.Stopped() && a.Status == Completed:
		return "completed"
	case a.Stopped():
		return "stopped"
	case a.Health == Degraded:
		return "degraded"
	case a.Health == Late:
		return "late"
	}
	if s := a.Presence().State; a.Status <= Idle && (s == HarnessBusy || s == HarnessIdle) {
		return map[HarnessState]string{HarnessBusy: "busy", HarnessIdle: "idle"}[s]
	}
	switch a.Status {
	case Unreported, Initializing:
		return "starting"
	case Active:
		return "busy"
	case Terminated:
		return "stopped"
	default:
		return a.Status.String()
	}
}

// late reports whether the last call of an agent that has not stopped is longer ago than a third of its lease.
// The caller holds the mutex.
func (p *Presence) late(l *life, now time.Time) bool {
	if l == nil || l.lease == 0 || l.ended == hasStopped || l.calls() {
		return false
	}
	until, runs := p.leases.Deadline(l)
	return !runs || until.Sub(now) < l.lease-l.lease/3
}

// asleepAfter is the time after the last call, other than an empty heartbeat, from which an agent
// without an open call is asleep.
const asleepAfter = time.Minute

// Asleep reports whether a registered agent is asleep, and since when: it has no open call, and it has
// stopped, or its last call, other than an empty heartbeat, ended more than a minute ago. In the first
// minute after the start of the broker only an agent that has stopped is asleep, because others reconnect
// in that time. An agent whose coding agent is in a turn, or is woken by mail, is not asleep.
func (p *Presence) Asleep(session, name string) (since time.Time, asleep bool) {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	since = p.asleep(p.lives[agentKey{session, name}], now)
	return since, !since.IsZero()
}

// asleep returns since when an agent is asleep, zero if it is not. The caller holds the mutex.
func (p *Presence) asleep(l *life, now time.Time) time.Time {
	if l == nil || l.lease == 0 || l.calls() || l.awake && l.ended == notEnded {
		return time.Time{}
	}
	if l.ended != hasStopped && (now.Sub(l.acted) <= asleepAfter || now.Sub(p.started) <= asleepAfter) {
		return time.Time{}
	}
	return l.acted
}

// start notes when the broker started.
func (p *Presence) start(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = now
}

// A Census counts agents by their health. Degraded ones count as what they would be otherwise.
type Census struct{ OK, Late, Failed, Stopped int }

// Census counts the registered agents of all sessions that are open.
func (p *Presence) Census() Census {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var c Census
	for _, l := range p.lives {
		switch {
		case l.lease == 0:
		case l.ended == hasFailed:
			c.Failed++
		case l.ended == hasStopped:
			c.Stopped++
		case p.late(l, now):
			c.Late++
		default:
			c.OK++
		}
	}
	return c
}
