package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

const listBytes = 3 << 20 // of one page, well below the 4 MiB that an answer may have

// Acting returns the registered agent that calls: its ID, Session, Name, Role and Incarnation; the
// other fields are empty. An operator without an agent, and an observer that reads, act as the zero
// Agent with the name "system". In a transaction that may change something, Acting revives an agent
// that has failed or stopped.
//
// fault.Precondition (AGENT_NOT_REGISTERED) if there is no such agent, fault.Precondition (STALE_INCARNATION) if
// the caller believes in another incarnation, fault.Precondition (FENCE_LOST) if it does not hold the lock or
// token that the call depends on, fault.Denied for others without an agent.
func (r *Registry) Acting(q store.Querier, session int64, c identity.Caller) (Agent, error) {
	if c.Agent == "" {
		_, changing := q.(*store.Tx)
		if c.Access == identity.Operator || c.Access == identity.Observer && !changing {
			return Agent{Name: identity.System}, nil
		}
		return Agent{}, fault.New(fault.Denied, "AGENT_REQUIRED", "only an operator may call without an agent's name")
	}
	a, registered, err := r.Lookup(q, session, c.Agent)
	if err != nil {
		return Agent{}, err
	}
	if !registered {
		return Agent{}, notRegistered(c)
	}
	if err := r.admit(q, session, c, a); err != nil {
		return Agent{}, err
	}
	if tx, changing := q.(*store.Tx); changing && a.Ended() {
		return r.revive(tx, c.Session, a)
	}
	return a, nil
}

// admit refuses a caller that is not the newest incarnation of its agent, or has lost what its call depends on.
func (r *Registry) admit(q store.Querier, session int64, c identity.Caller, a Agent) error {
	if err := fresh(c, a.Incarnation); err != nil {
		return err
	}
	return r.fenced(q, session, c)
}

// Lookup returns what the rules need to know of a registered agent on the path of every message: its ID, Session,
// Name, Role, Incarnation, FailedAt, StoppedAt, Capabilities and Attention.
func (r *Registry) Lookup(q store.Querier, session int64, name string) (Agent, bool, error) {
	key := rowKey{session, name}
	var a Agent
	var err error
	if tx, ok := q.(*store.Tx); ok {
		a, err = r.known.Get(tx, key, func() (Agent, error) { return lookup(tx, key) })
	} else {
		a, err = lookup(q, key)
	}
	return a, a.ID != 0, err
}

type rowKey struct {
	session int64
	name    string
}

// lookup returns an agent without ID if none is registered.
func lookup(q store.Querier, k rowKey) (Agent, error) {
	a := Agent{Session: k.session, Name: k.name}
	var registered bool
	var capabilities []byte
	var attention int
	err := q.QueryRow(selectActing, k.session, k.name).
		Scan(&a.ID, &a.Role, &a.Incarnation, &registered, &a.FailedAt, &a.StoppedAt, &capabilities, &attention)
	a.Attention = Attention(attention)
	if errors.Is(err, store.ErrNoRows) {
		return a, nil
	}
	if err == nil && len(capabilities) > 0 {
		err = json.Unmarshal(capabilities, &a.Capabilities)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("look up agent: %w", err)
	}
	if !registered {
		a.ID = 0
	}
	return a, nil
}

// Find returns the registered agent of a name, all but LastSeen, Health and Gate.
func (r *Registry) Find(q store.Querier, session int64, name string) (Agent, bool, error) {
	rows := q.Query(selectAgent, session, name)
	defer rows.Close()
	if !rows.Next() {
		return Agent{}, false, rows.Err()
	}
	a, err := scan(rows, session)
	return a, err == nil, err
}

// Matching returns the registered agents of a role whose names match a pattern, by name; an empty role or
// pattern matches all. In a pattern only * and ? are special. ID, Session, Name, Role,
// Incarnation, FailedAt and StoppedAt are filled.
func (r *Registry) Matching(q store.Querier, session int64, role, pattern string) ([]Agent, error) {
	return r.MatchingSome(q, session, role, pattern, "", math.MaxInt)
}

// MatchingSome is Matching for the first agents, up to limit, behind a name.
func (r *Registry) MatchingSome(q store.Querier, session int64, role, pattern, after string, limit int) ([]Agent, error) {
	var rows *store.Rows
	low, high := between(pattern)
	if low = max(low, after); role == "" {
		rows = q.Query(matchingAgents, session, low, high)
	} else {
		rows = q.Query(matchingOfRole, session, role, low, high)
	}
	defer rows.Close()
	var found []Agent
	for len(found) < limit && rows.Next() {
		a := Agent{Session: session}
		if err := rows.Scan(&a.ID, &a.Name, &a.Role, &a.Incarnation, &a.FailedAt, &a.StoppedAt); err != nil {
			return nil, err
		}
		if a.Name != after && matches(pattern, a.Name) {
			found = append(found, a)
		}
	}
	return found, rows.Err()
}

// Nearest returns the registered names that take the fewest edits to become the given one, at most
// three, nearest first.
func (r *Registry) Nearest(q store.Querier, session int64, name string) ([]string, error) {
	rows := q.Query(selectNames, session, nearest.Limit)
	defer rows.Close()
	var others []string
	for rows.Next() {
		var other string
		if err := rows.Scan(&other); err != nil {
			return nil, err
		}
		others = append(others, other)
	}
	return nearest.Names(name, others), rows.Err()
}

// A Found is an agent together with its mail.
type Found struct {
	Agent
	Unread      int64
	Claimable   int64
	Holdings    Holdings
	Checkpoints []Checkpoint // newest first
	At          int64        // revision that this is true at
}

// Get returns a registered agent of the caller's session, with its holdings and checkpoints if all of it is wanted.
// fault.NotFound names the nearest names.
func (r *Registry) Get(ctx context.Context, who identity.Caller, name string, full bool) (Found, error) {
	var f Found
	var claimants map[string]bool
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		f = Found{}
		session, err := r.sessions.ID(snap, who.Session)
		if err != nil {
			return err
		}
		f.At = snap.Revision()
		a, ok, err := r.Find(snap, session, name)
		if err != nil {
			return err
		}
		if !ok {
			return r.missing(snap, session, name)
		}
		f.Agent = a
		if f.Unread, f.Claimable, err = r.counts(snap, a); err != nil {
			return err
		}
		if f.Gate, claimants, err = r.gate(snap, a); err != nil || !full {
			return err
		}
		for _, h := range r.holders {
			if err := h.Holdings(snap, a, &f.Holdings); err != nil {
				return err
			}
		}
		f.Checkpoints, err = checkpoints(snap, a.ID, listBytes-f.Holdings.size())
		return err
	})
	if err != nil {
		return Found{}, fmt.Errorf("get agent: %w", err)
	}
	r.presence.look(who.Session, &f.Agent, claimants[f.Name], r.clock.Now())
	return f, nil
}

// A Filter chooses agents. What is empty does not restrict, and all that is set must match.
type Filter struct {
	Role         string
	Capabilities []string // all of these
	Status       Status
	Pattern      string // of the name, with * and ?
	Health       Health
}

// A RoleSummary counts the agents of one role.
type RoleSummary struct {
	Role   string
	Agents int
	Active int // of these, with status Active
	Failed int // of these
}

// A Page is a part of a list of agents, by name.
type Page struct {
	Agents   []Agent
	More     bool          // there are agents after the last one
	Roles    []RoleSummary // over all that match, by role
	Revision int64         // what the page is true at
}

// List returns up to limit registered agents of the caller's session whose names come after the given one.
func (r *Registry) List(ctx context.Context, who identity.Caller, f Filter, after string, limit int) (Page, error) {
	var page Page
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		session, err := r.sessions.ID(snap, who.Session)
		if err != nil {
			return err
		}
		page.Revision = snap.Revision()
		capabilities, err := json.Marshal(append([]string{}, f.Capabilities...))
		if err != nil {
			return err
		}
		gated, claimants, err := r.gates(snap, session, "")
		if err != nil {
			return err
		}
		names, active, err := r.inState(snap, who.Session, session, f, gated, claimants)
		if err != nil {
			return err
		}
		args := []any{session, f.Role, f.Role, names, names, string(capabilities)}
		if err := page.summarize(snap, append([]any{active}, args...)); err != nil {
			return err
		}
		if err := page.fill(snap, session, append(args, after, limit+1), limit); err != nil {
			return err
		}
		now := r.clock.Now()
		for i := range page.Agents {
			a := &page.Agents[i]
			a.Gate = gated[a.Name]
			r.presence.look(who.Session, a, claimants[a.Name], now)
		}
		return nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("list agents: %w", err)
	}
	return page, nil
}

// inState returns JSON lists of names: of the agents with the name, the health and the status that a
// filter wants, nil if it wants all, and of those that are active without having reported it. Health
// and derived status depend on what is in memory only.
func (r *Registry) inState(q store.Querier, name string, session int64, f Filter, gated map[string]Gate,
	claimants map[string]bool) (wanted, active any, err error) {
	found, derived, now := []string{}, []string{}, r.clock.Now()
	rows := q.Query(selectVitals, session)
	defer rows.Close()
	for rows.Next() {
		var a Agent
		var reported int
		if err := rows.Scan(&a.Name, &reported, &a.RegisteredAt, &a.FailedAt, &a.StoppedAt); err != nil {
			return nil, nil, err
		}
		a.Status, a.Gate = Status(reported), gated[a.Name]
		r.presence.look(name, &a, claimants[a.Name], now)
		if a.Status == Active && reported == int(Unreported) {
			derived = append(derived, a.Name)
		}
		if (f.Health == 0 || f.Health == a.Health) && (f.Status == 0 || f.Status == a.Status) && matches(f.Pattern, a.Name) {
			found = append(found, a.Name)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	if f.Health != 0 || f.Status != 0 || f.Pattern != "" {
		wanted = jsonOrNull(1, found)
	}
	return wanted, jsonOrNull(1, derived), nil
}

// gates returns what keeps work from the agents of a session, and which of them hold a claim; a
// name restricts the latter to that agent.
func (r *Registry) gates(q store.Querier, session int64, name string) (
	gated map[string]Gate, claimants map[string]bool, err error) {
	if r.mail == nil {
		return nil, nil, nil
	}
	if gated, err = r.mail.Gated(q, session); err != nil {
		return nil, nil, err
	}
	claimants, err = r.mail.Claimants(q, session, name)
	return gated, claimants, err
}

func (r *Registry) gate(q store.Querier, a Agent) (Gate, map[string]bool, error) {
	gated, claimants, err := r.gates(q, a.Session, a.Name)
	return gated[a.Name], claimants, err
}

func (p *Page) summarize(snap *store.Snapshot, args []any) error {
	rows := snap.Query(summarizeRoles, args...)
	defer rows.Close()
	for rows.Next() {
		var s RoleSummary
		if err := rows.Scan(&s.Role, &s.Agents, &s.Active, &s.Failed); err != nil {
			return err
		}
		p.Roles = append(p.Roles, s)
	}
	return rows.Err()
}

// fill reads agents until there are enough of them, or of bytes.
func (p *Page) fill(snap *store.Snapshot, session int64, args []any, limit int) error {
	rows := snap.Query(listAgents, args...)
	defer rows.Close()
	for size := 0; rows.Next(); {
		if len(p.Agents) == limit || size > listBytes {
			p.More = true
			return nil
		}
		a, err := scan(rows, session)
		if err != nil {
			return err
		}
		p.Agents = append(p.Agents, a)
		size += a.size()
	}
	return rows.Err()
}

// size is about what an agent takes in an answer.
func (a *Agent) size() int {
	n := 360
	for _, s := range []string{a.Name, a.Role, a.DisplayName, a.Purpose, a.Instance, a.Worktree, a.Reason, a.Activity, a.TaskID,
		a.LastTool, a.LastFile, a.Harness.Session, a.Harness.Program, a.Harness.Tool} {
		n += len(s)
	}
	for _, c := range a.Capabilities {
		n += 4 + len(c)
	}
	for k, v := range a.Labels {
		n += 8 + len(k) + len(v)
	}
	return n
}

// calling returns the agent that calls, all but LastSeen, Health and Gate. Like Acting it brings back one that
// has ended. Errors: as Acting; fault.Precondition for an operator without an agent.
func (r *Registry) calling(q store.Querier, who identity.Caller) (Agent, error) {
	a, err := r.admitted(q, who)
	if tx, changing := q.(*store.Tx); err == nil && changing && a.Ended() {
		return r.revive(tx, who.Session, a)
	}
	return a, err
}

// admitted is calling for an agent that may stay as it has ended.
func (r *Registry) admitted(q store.Querier, who identity.Caller) (Agent, error) {
	session, err := r.sessions.ID(q, who.Session)
	if err != nil {
		return Agent{}, err
	}
	if who.Agent == "" {
		return Agent{}, fault.AgentRequired()
	}
	a, ok, err := r.Find(q, session, who.Agent)
	if err != nil {
		return Agent{}, err
	}
	if !ok {
		return Agent{}, notRegistered(who)
	}
	if err := r.admit(q, session, who, a); err != nil {
		return Agent{}, err
	}
	return a, nil
}

func (r *Registry) counts(q store.Querier, a Agent) (unread, claimable int64, err error) {
	if r.mail == nil {
		return 0, 0, nil
	}
	return r.mail.Counts(q, a)
}

func (r *Registry) missing(q store.Querier, session int64, name string) error {
	names, err := r.Nearest(q, session, name)
	if err != nil {
		return err
	}
	hint := cmp.Or(nearest.Hint(name, names), "the session has no agents")
	return fault.Missing("agent", name, "no agent %q is registered; %s", name, hint)
}

func notRegistered(c identity.Caller) error {
	e := fault.New(fault.Precondition, "AGENT_NOT_REGISTERED",
		"the agent %q, which makes this call, is not registered in session %q: register it first", c.Agent, c.Session)
	e.Resource, e.Name = "agent", c.Agent
	return e
}

// fresh refuses a caller that believes in another incarnation than the newest.
func fresh(c identity.Caller, newest int64) error {
	if c.Incarnation == 0 || c.Incarnation == newest {
		return nil
	}
	return fault.New(fault.Precondition, "STALE_INCARNATION",
		"the agent %q has registered again: incarnation %d calls, and %d is the newest", c.Agent, c.Incarnation, newest).
		With("incarnation", strconv.FormatInt(newest, 10))
}

// fenced refuses a call that depends on a grant which its agent does not hold any more.
func (r *Registry) fenced(q store.Querier, session int64, c identity.Caller) error {
	if c.Fence == 0 {
		return nil
	}
	for _, f := range r.fences {
		if held, err := f.Holds(q, session, c.Agent, c.Fence); err != nil || held {
			return err
		}
	}
	return fault.New(fault.Precondition, "FENCE_LOST",
		"the agent %q no longer holds the lock, token or task with fence %d, on which this call depends: nothing was done; "+
			"acquire it again first", c.Agent, c.Fence).
		With("fence", strconv.FormatInt(c.Fence, 10))
}

// scan reads an agent, and what a query has beside its columns.
func scan(rows *store.Rows, session int64, more ...any) (Agent, error) {
	a := Agent{Session: session}
	var capabilities, labels []byte
	var status, state, attention int
	h := &a.Harness
	err := rows.Scan(append([]any{&a.ID, &a.Name, &a.Role, &a.Incarnation, &capabilities, &a.Instance, &a.Worktree, &labels,
		&a.Lease, &a.DisplayName, &a.Purpose, &status, &a.Reason, &a.Activity, &a.TaskID, &a.Progress, &a.Turns, &a.ModelTokens,
		&a.Files, &a.ToolCalls, &a.Errors, &a.LastTool, &a.LastFile, &a.RegisteredAt, &a.ChangedAt, &a.LastSeen, &a.CompletedAt,
		&a.FailedAt, &a.StoppedAt, &a.Sent, &a.Received, &a.Processed, &a.Revision,
		&h.Session, &h.Program, &state, &h.Tool, &h.Listening, &h.Since, &attention}, more...)...)
	if err != nil {
		return Agent{}, err
	}
	a.Status, h.State, a.Attention = Status(status), HarnessState(state), Attention(attention)
	if capabilities != nil {
		err = json.Unmarshal(capabilities, &a.Capabilities)
	}
	if labels != nil && err == nil {
		err = json.Unmarshal(labels, &a.Labels)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("agent %s: %w", a.Name, err)
	}
	return a, nil
}
