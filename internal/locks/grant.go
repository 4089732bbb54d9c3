package locks

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/deadline"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A grant is a request that is held.
type grant struct {
	fence     int64
	session   int64
	owner     Owner
	role      string // the agent's
	claim     claim
	reason    string
	grantedAt time.Time
	heldUntil time.Time // as it was when the hold began, or was extended
	maxHold   time.Duration
	ticket    int64 // that it came from; 0 = none
	kept      bool  // that ticket was kept on purpose
	collected bool
	warned    bool
	contested bool
	passedBy  string // of a token that was passed on: by whom. It is not of the row
	note      string
}

// readGrants reads the rows of a query with grantColumns.
func readGrants(rows *store.Rows) ([]*grant, error) {
	defer rows.Close()
	var found []*grant
	for rows.Next() {
		g := &grant{}
		var kind, mode int
		var text string
		err := rows.Scan(&g.fence, &g.session, &g.owner.Agent, &g.owner.Holder, &g.role, &kind, &mode, &text, &g.reason,
			&g.grantedAt, &g.heldUntil, &g.maxHold, &g.ticket, &g.kept, &g.collected, &g.warned, &g.contested)
		if err == nil {
			g.claim, err = parseClaim(Kind(kind), Mode(mode), text)
		}
		if err != nil {
			return nil, fmt.Errorf("read grant: %w", err)
		}
		found = append(found, g)
	}
	return found, rows.Err()
}

// findGrant returns what one of the queries for one grant finds, nil if there is none.
func findGrant(q store.Querier, query string, args ...any) (*grant, error) {
	found, err := readGrants(q.Query(query, args...))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// until returns when the hold of a grant ends, unless its owner extends it.
func (g *grant) until(alarms *deadline.Queue[alarm]) time.Time {
	at, running := alarms.Deadline(alarm{holdAlarm, g.fence})
	switch {
	case !running:
		return g.heldUntil
	case !g.warned:
		return at.Add(g.maxHold - warnAfter(g.maxHold)).UTC()
	}
	return at.UTC()
}

// A lockTx is the changes of one function of the writer to the locks of a session. Before it ends, it grants what it
// has freed to the next requests.
type lockTx struct {
	*Table
	tx *store.Tx
	view
	granted []*grant        // by this function
	aborted map[int64]error // tickets, by this function, with what their calls are told; nil = none
	freed   []*claim        // of grants and tickets that have ended, for settle
}

func (t *Table) lockTx(tx *store.Tx, session int64) (*lockTx, error) {
	v, err := t.view(tx, session)
	return &lockTx{Table: t, tx: tx, view: v}, err
}

// eventTypes are the types of one event: about a lock, and about a token.
type eventTypes struct{ lock, token string }

// append adds an event about a request of an owner.
func (u *lockTx) append(what eventTypes, severity events.Severity, o Owner, role string, c *claim, summary string, more details) (int64, error) {
	eventType, resource := what.lock, c.names()[0]
	if c.kind == Token {
		eventType = what.token
	}
	related := []string{o.Agent, short(resource)}
	source := o.Agent
	more = more.of(o, c)
	if source == "" { // what was passed to a role is nobody's yet
		more = append(more, detail{"role", role})
		source, role, related = identity.System, "", related[1:]
	}
	text, err := more.text()
	if err != nil {
		return 0, err
	}
	entry := events.Entry{
		Session: u.session, Category: events.Coordination, Type: eventType, Severity: severity,
		Source: source, SourceRole: role, Summary: summary, Details: text, Related: related,
	}
	revision, err := u.log.Append(u.tx, entry)
	if err != nil {
		return 0, err
	}
	if c.kind == Token {
		u.tx.Exec(updateToken, revision, u.session, c.token)
	}
	return revision, nil
}

// namedPaths is how many paths an event names.
const namedPaths = 100

// short is a name as related ids may have it.
func short(name string) string {
	const most = 128
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most], "")
}

// spoken names a claim in a sentence, a token as commands take it.
func (c *claim) spoken() string {
	if c.kind == Token {
		kind, scope, _ := strings.Cut(c.title(), "/")
		return "the token " + kind + " " + scope
	}
	return "the lock on " + c.title()
}

// title names a claim in a line.
func (c *claim) title() string {
	names := c.names()
	if len(names) == 1 {
		return short(names[0])
	}
	return short(names[0]) + " and " + strconv.Itoa(len(names)-1) + " more"
}

// grant makes a grant of a request. Nobody is in its way.
func (u *lockTx) grant(g *grant) error {
	more := details{{"max_hold_seconds", g.maxHold.Seconds()}}
	if g.ticket != 0 {
		more = append(more, detail{"ticket", g.ticket})
	}
	if g.reason != "" {
		more = append(more, detail{"reason", g.reason})
	}
	g.grantedAt, g.heldUntil = u.tx.Now(), u.tx.Now().Add(g.maxHold)
	var err error
	g.fence, err = u.append(eventTypes{"lock.granted", "token.granted"}, 0, g.owner, g.role, &g.claim, g.owner.String()+" holds "+g.claim.title(), more)
	if err != nil {
		return err
	}
	u.insert(g)
	u.granted = append(u.granted, g)
	if err := u.firstServed(g); err != nil {
		return err
	}
	u.tx.OnCommit(func() {
		u.alarms.Set(alarm{holdAlarm, g.fence}, u.tx.Now().Add(warnAfter(g.maxHold)))
		if !g.collected {
			u.alarms.Set(alarm{collectAlarm, g.fence}, u.tx.Now().Add(collectWithin(g.kept)))
		}
	})
	u.contend(g)
	return nil
}

// insert adds the rows of a grant.
func (u *lockTx) insert(g *grant) {
	globs, broad := g.claim.globs(), g.claim.broad()
	if !broad && g.claim.mode == Exclusive && g.reason == "" && g.ticket == 0 && !g.kept && g.collected { // as most are: binding takes its time
		u.tx.Exec(insertPlainGrant, g.fence, g.session, g.owner.Agent, g.owner.Holder, g.role, int(g.claim.kind), g.claim.text(),
			g.grantedAt, g.heldUntil, g.maxHold)
	} else {
		var from any
		if g.ticket != 0 {
			from = g.ticket
		}
		u.tx.Exec(insertGrant, g.fence, g.session, g.owner.Agent, g.owner.Holder, g.role, int(g.claim.kind), int(g.claim.mode),
			g.claim.text(), globs, broad, g.reason, g.grantedAt, g.heldUntil, g.maxHold, from, g.kept, g.collected)
	}
	if broad {
		u.rebroaden()
	}
	u.found = nil
	u.spent += grantCost + pathCost*g.claim.size()
	count(u.tx, &u.spots.owned, agentKey{g.session, g.owner.Agent}, g.claim.size())
	g.claim.eachPlace(func(place, name string) {
		count(u.tx, &u.spots.held, spot{g.session, g.claim.kind, place}, 1)
		u.tx.Exec(insertPath, g.session, int(g.claim.kind), place, g.fence, name)
	})
}

// rebroaden says that grants of more than single files have come or gone.
func (u *lockTx) rebroaden() {
	u.Table.broad.Clear(u.tx)
	u.view.broad = true // to look too far does no harm
}

// end removes the rows of a grant, which is a release of a token. The caller grants the free paths
// or the token to the next owner.
func (u *lockTx) end(g *grant) error {
	if g.claim.kind == Token {
		u.tx.Exec(updateReleased, u.tx.Now(), u.session, g.claim.token)
	}
	return u.remove(g)
}

// remove is end without a release.
func (u *lockTx) remove(g *grant) error {
	u.tx.Exec(deleteGrant, g.fence)
	if g.kept || g.warned || g.contested { // only these have notices
		if err := u.withdraw(g.fence, ""); err != nil {
			return err
		}
	}
	if g.claim.broad() {
		u.rebroaden()
	}
	u.tx.OnCommit(func() {
		u.alarms.Remove(alarm{holdAlarm, g.fence})
		u.alarms.Remove(alarm{collectAlarm, g.fence})
		u.alarms.Remove(alarm{contestAlarm, g.fence})
	})
	u.callers.answers.Delete(u.tx, g.fence)
	u.clear(g, &g.claim)
	return nil
}

// clear removes the rows of some paths of a grant.
func (u *lockTx) clear(g *grant, c *claim) {
	u.found = nil
	u.spent += grantCost + pathCost*c.size()
	count(u.tx, &u.spots.owned, agentKey{g.session, g.owner.Agent}, -c.size())
	c.eachPlace(func(place, name string) {
		count(u.tx, &u.spots.held, spot{g.session, c.kind, place}, -1)
		u.tx.Exec(deletePath, g.session, int(c.kind), place, g.fence, name)
	})
}

// queueUp makes a ticket of a request.
func (u *lockTx) queueUp(t *ticket) error {
	t.createdAt = u.tx.Now()
	more := details{{"kept", t.kept}}
	if t.reason != "" {
		more = append(more, detail{"reason", t.reason})
	}
	var err error
	t.number, err = u.append(eventTypes{"lock.queued", "token.queued"}, events.Debug, t.owner, t.role, &t.claim, t.owner.String()+" waits for "+t.claim.title(), more)
	if err != nil {
		return err
	}
	if t.place == 0 {
		t.place = t.number
	}
	u.tx.Exec(insertTicket, t.number, t.session, t.owner.Agent, t.owner.Holder, t.role, int(t.claim.kind), int(t.claim.mode),
		t.claim.text(), t.reason, t.createdAt, t.maxHold, t.kept, t.place)
	u.changesQueue()
	u.queue.add(t)
	return nil
}

// drop removes a ticket, and returns the calls that wait for it. The caller answers them, and grants the requests that
// the ticket has blocked.
func (u *lockTx) drop(t *ticket) []*call {
	u.tx.Exec(deleteTicket, t.number)
	u.changesQueue()
	u.queue.remove(t)
	u.tx.OnCommit(func() { u.alarms.Remove(alarm{lapseAlarm, t.number}) })
	return u.callers.remove(u.tx, t.number)
}

// passOn grants what waits for something that is free now.
func (u *lockTx) passOn(freed ...*claim) error {
	u.freed = append(u.freed, freed...)
	return u.settle(nil)
}

// settle tries to grant tickets in the order of the queue: those that conflict with what this function has freed,
// and those for which also(queue, index) is true; also may be nil. When a grant ends tickets to break a
// deadlock, settle begins at the front again: an earlier ticket may wait for what they free, and no later one
// may pass it.
//
// If that is more work than one function may do, settle leaves the rest of the queue to an alarm. A request
// of another call cannot pass the tickets meanwhile: it waits for earlier ones that it conflicts with.
func (u *lockTx) settle(also func(queue []*ticket, i int) bool) error {
	queue := u.queue.tickets
	for i := 0; i < len(queue); i++ {
		if u.spent > settlePage { // what the function has done before counts
			u.settleLater(queue[i].place)
			break
		}
		t, freed := queue[i], len(u.freed)
		if !slices.ContainsFunc(u.freed, func(c *claim) bool { return u.conflict(&t.claim, c) }) && (also == nil || !also(queue, i)) {
			continue
		}
		if err := u.try(t); err != nil {
			return err
		}
		if len(u.freed) > freed {
			queue, i = u.queue.tickets, -1
		}
	}
	u.freed = nil
	return nil
}

// settleLater leaves the tickets from a place on to an alarm.
func (u *lockTx) settleLater(place int64) {
	if before, known := u.pending.Find(u.session); !known || place < before {
		u.pending.Set(u.tx, u.session, place)
	}
	u.tx.OnCommit(func() { u.alarms.Set(alarm{settleAlarm, u.session}, u.tx.Now()) })
}

// settleFurther tries the next tickets that settle has left.
func (r alarmRun) settleFurther(tx *store.Tx, session int64) (spent int, err error) {
	from, known := r.pending.Find(session)
	if !known {
		return 0, nil
	}
	u, err := r.lockTx(tx, session)
	if err != nil {
		return 0, err
	}
	r.pending.Delete(tx, session)
	err = u.settle(func(queue []*ticket, i int) bool { return queue[i].place >= from })
	return u.spent, err
}

// try grants a ticket if no request is in its way. It ends a ticket for which it would read or compare more
// than one function may.
func (u *lockTx) try(t *ticket) error {
	if u.queue.find(t.number) != t { // granted or aborted by now
		return nil
	}
	for _, g := range u.granted { // most of those that wait for the same
		if g.owner != t.owner && u.conflict(&g.claim, &t.claim) {
			if still, err := stillHeld(u.tx, g.fence); still || err != nil {
				return err
			}
		}
	}
	u.budget = &budget{rows: ticketRows, pairs: maxPairs}
	defer func() { u.budget = nil }()
	free, err := u.free(&t.claim, t.owner, t.place)
	if tooBroad(err) {
		return u.refuse(t, err)
	}
	if err != nil || !free {
		return err
	}
	calls := u.drop(t)
	g := &grant{session: t.session, owner: t.owner, role: t.role, claim: t.claim, reason: t.reason, maxHold: t.maxHold, ticket: t.number, kept: t.kept}
	g.collected = len(calls) > 0
	if err := u.grant(g); err != nil {
		return err
	}
	if u.observer != nil {
		u.tx.OnCommit(func() { u.observer.Waited(t.claim.kind.noun(), max(0, g.grantedAt.Sub(t.createdAt))) })
	}
	if err := u.answer(calls, g); err != nil {
		return err
	}
	if !g.collected && g.kept {
		err := u.notify(g.owner, &g.claim, g.fence, "granted",
			g.claim.spoken()+" is granted to you: acquire it within 2 min to collect it",
			details{{"fence", g.fence}, {"ticket", g.ticket}})
		if err != nil {
			return err
		}
	}
	return u.untangle(t.owner)
}

// stillHeld reports whether a grant of this function was not ended by the same function.
func stillHeld(tx *store.Tx, fence int64) (bool, error) {
	var one int
	err := tx.QueryRow(`SELECT 1 FROM lock_grants WHERE fence = ?`, fence).Scan(&one)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// notify sends the owner of a claim a notice. about is the fence, or another revision by which
// withdraw finds it; 0 = it is never withdrawn.
func (u *lockTx) notify(o Owner, c *claim, about int64, what, subject string, more details) error {
	if u.notices == nil || o.Agent == "" {
		return nil
	}
	text, err := append(more, detail{"holder", o.Holder}).on(c).text()
	if err != nil {
		return err
	}
	return u.notices.Notify(u.tx, u.session,
		work.Notice{Agent: o.Agent, Type: c.kind.noun() + "_" + what, Subject: subject, Payload: text, About: about})
}

// withdraw withdraws the notices of one type, or all, that the end, the collection or the extension
// of a grant makes moot.
func (u *lockTx) withdraw(about int64, what string) error {
	if u.notices == nil {
		return nil
	}
	return u.notices.Withdraw(u.tx, u.session, work.Moot{About: about, Type: what})
}
