package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// An end says how an agent has ended.
type end int

const (
	failed end = iota
	stopped
	deregistered
)

// why says why an agent no longer has what it had.
func (e end) why() string {
	return [...]string{failed: "its lease is over", stopped: "it has stopped", deregistered: "it has deregistered"}[e]
}

// err is the error of a request of an agent that has ended.
func (e end) err(agent string) error {
	if e == stopped {
		return fault.AgentStopped(agent)
	}
	return fault.New(fault.Precondition, "AGENT_NOT_REGISTERED", "agent %q does not wait any more: %s", agent, e.why())
}

// severity is that of the events about what an agent no longer has.
func (e end) severity() events.Severity {
	if e == stopped {
		return events.Info
	}
	return events.Warning
}

// AgentEnded takes all that an agent holds and waits for, with any of its workers, and grants it to the
// next waiters. It returns what was lost: tickets, then grants, each in their order. Calls that wait end
// with an error. It is a hook of the end of an agent.
func (t *Table) AgentEnded(tx *store.Tx, a directory.Agent) ([]directory.Loss, error) {
	if a.Stopped() {
		return t.agentEnded(tx, a.Session, a.Name, stopped)
	}
	return t.agentEnded(tx, a.Session, a.Name, failed)
}

// AgentGone is AgentEnded for an agent that has deregistered. It also forgets where the agent comes
// first. It is a hook of the deregistration.
func (t *Table) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := t.agentEnded(tx, a.Session, a.Name, deregistered)
	tx.Exec(deleteAgentsFirsts, a.Session, a.Name)
	return err
}

func (t *Table) agentEnded(tx *store.Tx, session int64, agent string, how end) ([]directory.Loss, error) {
	why := how.why()
	u, err := t.lockTx(tx, session)
	if err != nil {
		return nil, err
	}
	var losses []directory.Loss
	err = u.each(agent, func(g *grant) error {
		losses = append(losses, loss(&g.claim, g.fence))
		u.freed = append(u.freed, &g.claim)
		_, err := u.append(eventTypes{"lock.released", "token.released"}, how.severity(), g.owner, g.role, &g.claim,
			g.owner.String()+" has lost "+g.claim.title()+": "+why, details{{"fence", g.fence}, {"cause", why}})
		if err != nil {
			return err
		}
		return u.end(g)
	}, func(k *ticket) error {
		losses = append(losses, directory.Loss{
			Kind: directory.LostTicket, Name: lossName(&k.claim), Revision: k.number,
		})
		u.freed = append(u.freed, &k.claim)
		_, err := u.append(eventTypes{"lock.cancelled", "token.cancelled"}, events.Debug, k.owner, k.role, &k.claim,
			k.owner.String()+" waits for "+k.claim.title()+" no more: "+why, details{{"ticket", k.number}, {"cause", why}})
		if err != nil {
			return err
		}
		tell(tx, u.drop(k), verdict{err: how.err(agent)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return losses, u.settle(nil)
}

// loss describes a grant that was lost.
func loss(c *claim, fence int64) directory.Loss {
	if c.kind == Token {
		return directory.Loss{Kind: directory.LostToken, Name: lossName(c), Revision: fence}
	}
	return directory.Loss{Kind: directory.LostLock, Name: lossName(c), Revision: fence}
}

// lossName names a claim as losses do.
func lossName(c *claim) string {
	name := strings.Join(c.names(), " ")
	if len(name) > validate.MaxLine {
		name = strings.ToValidUTF8(name[:validate.MaxLine-3], "") + "…"
	}
	return name
}

// SessionClosed releases all that is held in a session that is closed for good, and ends what waits. If
// that is more than one function may do, an alarm releases the rest. It is a hook of the closing.
func (t *Table) SessionClosed(tx *store.Tx, session directory.Session) error {
	u, err := t.lockTx(tx, session.ID)
	if err != nil {
		return err
	}
	closed := fault.SessionClosed(session.Name)
	for _, k := range u.queue.tickets {
		tell(tx, u.drop(k), verdict{err: closed})
	}
	tx.Exec(insertClosing, session.ID)
	_, err = u.closeSome()
	return err
}

// AwaitClosed releases what is still held in a closed session, and returns when that is done.
func (t *Table) AwaitClosed(ctx context.Context, session int64) error {
	for more := true; more; {
		err := t.store.Drain(ctx, func(tx *store.Tx) error {
			if _, err := (alarmRun{t}).closeFurther(tx, session); err != nil {
				return err
			}
			return tx.QueryRow(existsClosing, session).Scan(&more)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// closeFurther releases the next grants of a session that is closed.
func (r alarmRun) closeFurther(tx *store.Tx, session int64) (spent int, err error) {
	var known bool
	if err := tx.QueryRow(existsClosing, session).Scan(&known); err != nil || !known {
		return 0, err
	}
	u, err := r.lockTx(tx, session)
	if err != nil {
		return 0, err
	}
	return u.closeSome()
}

// closeSome releases grants of the closed session, and leaves the rest to an alarm.
func (u *lockTx) closeSome() (spent int, err error) {
	for u.spent < closePage {
		g, err := findGrant(u.tx, selectAll, u.session, 0, 1)
		if err != nil {
			return u.spent, err
		}
		if g == nil {
			u.tx.Exec(deleteClosing, u.session)
			return u.spent, nil
		}
		_, err = u.append(eventTypes{"lock.released", "token.released"}, 0, g.owner, g.role, &g.claim,
			g.owner.String()+" has lost "+g.claim.title()+": the session is closed", details{{"fence", g.fence}, {"cause", "the session is closed"}})
		if err != nil {
			return u.spent, err
		}
		if err := u.end(g); err != nil {
			return u.spent, err
		}
	}
	u.tx.OnCommit(func() { u.alarms.Set(alarm{closeAlarm, u.session}, u.tx.Now()) })
	return u.spent, nil
}

// Records returns what is held in a session, and then what waits, each as one line of JSON, after the mark that
// an earlier call has returned as the last one's.
func Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	mark := Mark{}
	if after != "" {
		if err := json.Unmarshal([]byte(after), &mark); err != nil {
			return nil, "", err
		}
	}
	add := func(r record, next Mark) error {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		place, _ := json.Marshal(next) // numbers always marshal
		lines, last = append(lines, line), string(place)
		return nil
	}
	if !mark.Tickets {
		held, err := readGrants(q.Query(selectAll, session, mark.After, limit))
		if err != nil {
			return nil, "", err
		}
		for _, g := range held {
			r := record{Fence: g.fence, Ticket: g.ticket, GrantedAt: &g.grantedAt, HeldUntil: &g.heldUntil}
			r.fill(g.owner, g.role, &g.claim, g.reason, g.maxHold)
			if err := add(r, Mark{After: g.fence}); err != nil {
				return nil, "", err
			}
		}
		mark.After = 0
	}
	list, err := loadQueue(q, session)
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(list.tickets, func(a, b *ticket) int { return cmp.Compare(a.number, b.number) })
	for _, k := range list.tickets {
		if k.number <= mark.After || len(lines) >= limit {
			continue
		}
		r := record{Ticket: k.number, Waits: true, CreatedAt: &k.createdAt}
		r.fill(k.owner, k.role, &k.claim, k.reason, k.maxHold)
		if err := add(r, Mark{Tickets: true, After: k.number}); err != nil {
			return nil, "", err
		}
	}
	return lines, last, nil
}

// A record is a request as an export has it.
type record struct {
	Kind      string     `json:"kind"`
	Fence     int64      `json:"fence,omitempty"`
	Ticket    int64      `json:"ticket,omitempty"`
	Waits     bool       `json:"waits"`
	Agent     string     `json:"agent"`
	Holder    string     `json:"holder"`
	Role      string     `json:"role"`
	Mode      string     `json:"mode"`
	Names     []string   `json:"names"`
	Reason    string     `json:"reason"`
	MaxHold   float64    `json:"max_hold_seconds"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	GrantedAt *time.Time `json:"granted_at,omitempty"`
	HeldUntil *time.Time `json:"held_until,omitempty"`
}

func (r *record) fill(o Owner, role string, c *claim, reason string, maxHold time.Duration) {
	r.Kind, r.Agent, r.Holder, r.Role, r.Mode = c.kind.noun(), o.Agent, o.Holder, role, c.mode.String()
	r.Names, r.Reason, r.MaxHold = c.names(), reason, maxHold.Seconds()
}

// Erase removes some of the grants, tickets and tokens of a session that is being deleted, and reports
// whether there may be more. The row of a token stays until then: the longest hold that its first
// acquirer has set, the revision of its last change and the time of its last release outlive its
// grants, and no fence depends on it.
func (t *Table) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	u, err := t.lockTx(tx, session)
	if err != nil {
		return false, err
	}
	tx.Exec(deleteClosing, session)
	for _, k := range u.queue.tickets[:min(len(u.queue.tickets), limit)] {
		u.drop(k)
		u.spent += grantCost
	}
	for len(u.queue.tickets) == 0 && u.spent < closePage {
		g, err := findGrant(tx, selectAll, session, 0, 1)
		if err != nil {
			return false, err
		}
		if g == nil {
			left, err := tx.ExecPage(limit, []string{deleteSomeTokens, deleteSomeFirsts}, session)
			return left == 0, err
		}
		if err := u.remove(g); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Data is what the keeper exports and removes of a session.
func (t *Table) Data() work.Data {
	return work.Data{File: "locks.jsonl", Lines: Records, Erase: t.Erase}
}
