package locks

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// An Outcome says how a request stands. The numbers are those of the API.
type Outcome int

// The outcomes.
const (
	Granted Outcome = 1 + iota
	Queued
	Busy
)

// A Wish is what somebody asks for.
type Wish struct {
	Paths   []string // of a lock
	Mode    Mode
	Token   string        // TYPE/SCOPE; empty = a lock
	Longest time.Duration // of a token that nobody has asked for before: the longest hold; 0 = 7 days
	Wait    time.Duration
	MaxHold time.Duration // of a token 0 = 30 min, or its longest hold if that is less
	Holder  string
	DryRun  bool
	Reason  string
	Keep    bool // the ticket when the wait is over
}

// An Answer says how a request stands.
type Answer struct {
	Outcome   Outcome
	Fence     int64
	HeldUntil time.Time
	Held      bool // before the call
	Ticket    int64
	Position  int
	Obstacles []Obstacle
	PassedBy  string // of a token that was passed to the owner
	Note      string

	sent *sentAnswers // that this is one of; nil if it tells of no grant
}

// errOpen says that a request is not answered for good, so that its answer is not kept.
var errOpen = errors.New("the answer may change")

// Acquire grants a wish, or waits for its turn as long as it says. Errors: fault.Precondition without a registered agent,
// fault.Invalid for a path, fault.Conflict (DEADLOCK), fault.Exhausted
// (TOO_MANY_TICKETS, TOO_MANY_GLOBS, TOO_MANY_LOCKS, LOCK_TOO_BROAD).
func (t *Table) Acquire(ctx context.Context, c identity.Caller, req idempotency.Request, w Wish) (Answer, error) {
	a, err := newAcquireCall(t, c, req, w)
	if err != nil {
		return Answer{}, err
	}
	answer, err := a.finish(ctx, t.store.Write(ctx, a.decide))
	a.traceWait(ctx, &answer, err)
	t.Told(&answer, err == nil && ctx.Err() == nil)
	if err != nil {
		return Answer{}, err
	}
	return answer, nil
}

// claim is what the wish is for. fault.Invalid names the path.
func (w *Wish) claim(fold bool) (claim, error) {
	if w.Token != "" {
		return claim{kind: Token, mode: Exclusive, token: w.Token}, nil
	}
	return claimOf(w.Mode, w.Paths, func(raw string) (Path, error) { return parseNew(raw, fold) })
}

// namedClaim is the claim of paths that are held, perhaps since an older broker. fault.Invalid names
// the path.
func namedClaim(paths []string, fold bool) (claim, error) {
	return claimOf(0, paths, func(raw string) (Path, error) { return Parse(raw, fold) })
}

func claimOf(mode Mode, list []string, parse func(string) (Path, error)) (claim, error) {
	paths := make([]Path, len(list))
	var bad []fault.Violation
	for i, raw := range list {
		var err error
		if paths[i], err = parse(raw); err != nil {
			bad = append(bad, fault.Violation{Field: "paths[" + strconv.Itoa(i) + "]", Description: err.Error()})
		}
	}
	if err := fault.Fields(bad); err != nil {
		return claim{}, err
	}
	return pathsClaim(mode, paths), nil
}

// An acquireCall is one call of Acquire.
type acquireCall struct {
	table  *Table
	caller identity.Caller
	wish   Wish
	wanted claim
	req    idempotency.Request
	hear   func(verdict) // gets the verdict of a wait, from the writer; nil if finish is to return it

	answer  Answer
	refused error     // although something was changed, or for the answer's sake
	call    *call     // waits
	queued  time.Time // since when it waits
	maxHold time.Duration
	first   first // of a token: it comes before all others
}

func newAcquireCall(t *Table, c identity.Caller, req idempotency.Request, w Wish) (*acquireCall, error) {
	wanted, err := w.claim(false)
	if err != nil {
		return nil, err
	}
	return &acquireCall{table: t, caller: c, wish: w, wanted: wanted, req: req}, nil
}

// decide is the part of it that runs in the writer.
func (a *acquireCall) decide(tx *store.Tx) error {
	a.answer, a.refused, a.call = Answer{}, nil, nil
	seen, err := a.req.Do(tx, &a.answer, func() error { return a.run(a.table, tx, a.caller) })
	if errors.Is(err, errOpen) {
		return nil
	}
	if seen && err == nil {
		return a.recall(tx)
	}
	return err
}

// recall tells once more what a request was answered before.
func (a *acquireCall) recall(tx *store.Tx) error {
	fence := a.answer.Fence
	news, err := recollect(tx, a.table.alarms, fence)
	if _, noted := a.table.callers.answers.Find(fence); err == nil && (news || noted) {
		a.answer.sent = a.table.callers.promise(tx, fence, false)
	}
	return err
}

// finish returns the answer once decide has ended with err; it waits for the ticket to be granted, if the caller does. An answer beside an error comes to nobody.
func (a *acquireCall) finish(ctx context.Context, err error) (Answer, error) {
	if err = cmp.Or(err, a.refused); err != nil {
		return Answer{}, err
	}
	if a.call != nil {
		return a.await(ctx)
	}
	return a.answer, nil
}

// run decides. It returns nil if the answer is for good.
func (a *acquireCall) run(t *Table, tx *store.Tx, c identity.Caller) error {
	session, agent, err := t.acting(tx, c)
	if err != nil {
		return err
	}
	if session.Settings.GetFoldCase() {
		if a.wanted, err = a.wish.claim(true); err != nil {
			return err
		}
	}
	u, err := t.lockTx(tx, session.ID)
	if err != nil {
		return err
	}
	u.budget = newBudget()
	owner := Owner{agent.Name, a.wish.Holder}
	a.maxHold = a.wish.MaxHold
	if a.wanted.kind == Token {
		if answered, err := a.token(u, owner, agent.Role); answered || err != nil {
			return err
		}
	}
	held, blocked, err := u.look(&a.wanted, owner)
	if err != nil {
		return err
	}
	if held != nil {
		return a.again(u, held)
	}
	mine := u.queue.waitingFor(&a.wanted, owner)
	before := int64(now)
	if mine != nil {
		before = mine.place
	} else if a.first.revision != 0 {
		before = a.first.place()
	}
	if !blocked {
		waiting, err := u.ahead(&a.wanted, owner, before)
		if err != nil {
			return err
		}
		blocked = len(waiting) > 0
	}
	switch {
	case a.wish.DryRun:
		a.answer.Outcome = Granted
		if blocked {
			a.answer.Outcome = Busy
			a.answer.Obstacles, a.answer.Position, err = u.obstacles(&a.wanted, owner, before)
		}
		return errors.Join(err, errOpen)
	case !blocked:
		return a.grant(u, owner, agent.Role)
	case mine == nil && a.wish.Wait == 0 && !a.wish.Keep:
		a.answer.Outcome = Busy
		if a.answer.Obstacles, a.answer.Position, err = u.obstacles(&a.wanted, owner, before); err != nil {
			return err
		}
		return errOpen
	case mine == nil:
		return a.queueUp(u, owner, agent.Role)
	}
	return a.wait(u, mine)
}

// look finds out whether the owner holds all of a claim with one grant, and whether others hold some of it.
func (v *view) look(c *claim, o Owner) (held *grant, blocked bool, err error) {
	covered := map[int64]int{} // how many of the paths, by own fence
	last := -1                 // of the paths
	var counted []int64        // own fences that cover it
	err = v.overlapping(c, func(i int, h *holder) bool {
		if h.owner != o {
			blocked = blocked || c.mode != Shared || h.mode != Shared
			return true
		}
		if i != last {
			last, counted = i, counted[:0]
		}
		suits := h.mode == Exclusive || c.mode == Shared
		if !suits || c.kind == Lock && !contains(h.path, c.paths[i]) {
			return true
		}
		for _, f := range counted {
			if f == h.fence {
				return true
			}
		}
		counted = append(counted, h.fence)
		covered[h.fence]++
		return true
	})
	for fence, n := range covered {
		if err == nil && n == max(len(c.paths), 1) && (held == nil || fence > held.fence) {
			held, err = findGrant(v.q, selectGrant, fence)
		}
	}
	return held, blocked, err
}

// again answers with a grant that the owner has.
func (a *acquireCall) again(u *lockTx, g *grant) error {
	a.answer = Answer{Outcome: Granted, Fence: g.fence, HeldUntil: g.until(u.alarms), Held: g.collected, PassedBy: g.passedBy, Note: g.note}
	if a.wish.DryRun {
		a.answer.Fence = 0
		return errOpen
	}
	a.answer.sent = u.callers.promise(u.tx, g.fence, g.collected)
	if g.collected {
		return nil
	}
	return u.collect(g)
}

// grant grants the wish at once.
func (a *acquireCall) grant(u *lockTx, o Owner, role string) error {
	if err := u.checkLimits(&a.wanted, o); err != nil {
		return err
	}
	g := &grant{session: u.session, owner: o, role: role, claim: a.wanted, reason: a.wish.Reason, maxHold: a.maxHold, collected: true}
	if err := u.grant(g); err != nil {
		return err
	}
	a.answer = Answer{
		Outcome: Granted, Fence: g.fence, HeldUntil: g.heldUntil, PassedBy: g.passedBy, Note: g.note, sent: u.callers.promiseFirst(u.tx, g, 1),
	}
	if err := u.untangle(o); err != nil {
		return err
	}
	return u.settle(nil)
}

// checkLimits refuses a claim of an owner beyond the limits of what is held and waited for.
func (v *view) checkLimits(c *claim, o Owner) error {
	own, globs := v.near.owned.Get(agentKey{v.session, o.Agent}), 0
	for _, k := range v.queue.tickets {
		if k.owner.Agent == o.Agent {
			own += k.claim.size()
		}
		globs += k.claim.globs()
	}
	if own+c.size() > maxHeld {
		return exhausted("TOO_MANY_LOCKS", maxHeld,
			"agent %q holds, or waits for, %d paths and tokens, and it may do so for at most %d: release some, or lock directories", o.Agent, own, maxHeld)
	}
	more := c.globs()
	if more == 0 {
		return nil
	}
	var held int
	if err := v.q.QueryRow(sumGlobs, v.session).Scan(&held); err != nil {
		return err
	}
	if globs += held; globs+more <= maxGlobs {
		return nil
	}
	return exhausted("TOO_MANY_GLOBS", maxGlobs,
		"%d globs are held or waited for in this session, and at most %d may be: name directories or files, or wait until other agents release theirs", globs, maxGlobs)
}

func exhausted(reason string, limit int, format string, args ...any) error {
	e := fault.New(fault.Exhausted, reason, format, args...).With("limit", strconv.Itoa(limit))
	e.RetryAfter = time.Second
	return e
}

// queueUp makes a ticket, unless that closes a circle: then the call is refused.
func (a *acquireCall) queueUp(u *lockTx, o Owner, role string) error {
	if n := len(u.queue.tickets); n >= maxTickets {
		return exhausted("TOO_MANY_TICKETS", maxTickets, "%d requests wait in this session, and no more may: try again later", n)
	}
	if n := u.queue.size(); n+a.wanted.size() > maxWaiting {
		return exhausted("TOO_MANY_TICKETS", maxWaiting,
			"the requests that wait in this session are for %d paths and tokens, and at most %d may be: try again later, or name fewer paths", n, maxWaiting)
	}
	if err := u.checkLimits(&a.wanted, o); err != nil {
		return err
	}
	t := &ticket{number: now, session: u.session, owner: o, role: role, claim: a.wanted, reason: a.wish.Reason, maxHold: a.maxHold, kept: a.wish.Keep, place: a.first.place()}
	held, err := u.holders(&t.claim, o, math.MaxInt)
	if err != nil {
		return err
	}
	circle, err := u.circle(t, held, u.queue.byOwner())
	if err != nil {
		return err
	}
	var early []*ticket // others may wait behind it
	if t.place < 0 {
		early = append(early, t)
	}
	waiting, err := u.waitersFor(o, early...)
	if err != nil {
		return err
	}
	if circle != nil {
		a.refused = deadlock(circle, t)
		return errors.Join(u.tellDeadlock(circle, t), errOpen)
	}
	if err := u.queueUp(t); err != nil {
		return err
	}
	for _, h := range held {
		u.contestLater(h.fence)
	}
	if err := a.wait(u, t); !errors.Is(err, errOpen) {
		return err
	}
	u.budget = nil
	if len(waiting) > 0 { // some requests may pass theirs, since the owner of the new ticket waits as well
		waiting[o] = true
		if err := u.letPass(waiting, t); err != nil {
			return err
		}
	}
	if why := u.aborted[t.number]; why != nil && a.call == nil { // what was granted to others by then closed a circle
		a.refused = why
		return errOpen
	}
	for _, g := range u.granted {
		if g.ticket == t.number && !g.collected { // who waited for it had to give way
			return a.again(u, g)
		}
	}
	return errOpen
}

// wait lets the call wait for a ticket, or answers that it stands in the queue. It returns errOpen.
func (a *acquireCall) wait(u *lockTx, t *ticket) error {
	if a.wish.Keep && !t.kept {
		u.tx.Exec(updateTicketKept, t.number)
		u.changesQueue()
		t.kept = true
		u.tx.OnCommit(func() { u.alarms.Remove(alarm{lapseAlarm, t.number}) })
	}
	if a.wish.Wait > 0 {
		a.call, a.queued = u.callers.join(u.tx, t, a.req, a.hear), u.tx.Now()
		u.tx.OnCommit(func() { u.alarms.Remove(alarm{lapseAlarm, t.number}) })
		u.tx.Patient() // the call is answered when the ticket is granted
		return errOpen
	}
	u.tx.OnCommit(func() { u.lapseLater(t) })
	a.answer = Answer{Outcome: Queued, Ticket: t.number}
	var err error
	if a.answer.Obstacles, a.answer.Position, err = u.obstacles(&t.claim, t.owner, t.place); err != nil {
		return err
	}
	return errOpen
}

// deadlock is the error for the youngest ticket of a circle.
func deadlock(circle []link, victim *ticket) error {
	return fault.New(fault.Conflict, "DEADLOCK", "waiting for %s would never end: %s. Release what you hold, or ask for less, and try again",
		victim.claim.title(), spell(circle, victim)).With("circle", spell(circle, victim))
}

// tellDeadlock appends the event that a circle was broken.
func (u *lockTx) tellDeadlock(circle []link, victim *ticket) error {
	var steps []map[string]any
	for _, l := range circle {
		step := map[string]any{"agent": l.ticket.owner.Agent, "holder": l.ticket.owner.Holder, "waits_for": l.holder.at,
			"held_by": l.holder.owner.Agent, "held_by_holder": l.holder.owner.Holder, "fence": l.holder.fence}
		if l.ticket.number != now {
			step["ticket"] = l.ticket.number
		}
		steps = append(steps, step)
	}
	summary := "deadlock: " + spell(circle, victim)
	if len(summary) > 512 {
		summary = strings.ToValidUTF8(summary[:509], "") + "…"
	}
	more := details{{"circle", steps}}
	if victim.number != now {
		more = append(more, detail{"ticket", victim.number})
	}
	_, err := u.append(eventTypes{"lock.deadlock", "token.deadlock"}, events.Warning, victim.owner, victim.role, &victim.claim, summary, more)
	return err
}
