package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const listBytes = 3 << 20 // of one page, well below the 4 MiB that an answer may have

// find returns the registered agent of a name, all but LastSeen, Health and Gate.
func find(q store.Querier, session int64, name string) (Agent, bool, error) {
	rows := q.Query(selectAgent, session, name)
	defer rows.Close()
	if !rows.Next() {
		return Agent{}, false, rows.Err()
	}
	a, err := scan(rows, session)
	return a, err == nil, err
}

// A Found is an agent together with its mail.
type Found struct {
	Agent
	Unread      int64
	Claimable   int64
	Holdings    work.Holdings
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
		session, err := r.dir.SessionID(snap, who.Session)
		if err != nil {
			return err
		}
		f.At = snap.Revision()
		a, ok, err := find(snap, session, name)
		if err != nil {
			return err
		}
		if !ok {
			return missing(r.dir, snap, session, name)
		}
		f.Agent = a
		if f.Unread, f.Claimable, err = r.mail.Counts(snap, session, a.Entry()); err != nil {
			return err
		}
		gated, claiming, err := r.gates(snap, session, name)
		if f.Gate, claimants = gated[name], claiming; err != nil || !full {
			return err
		}
		for _, h := range r.holders {
			if err := h.Holdings(snap, a.Entry(), &f.Holdings); err != nil {
				return err
			}
		}
		f.Checkpoints, err = checkpoints(snap, a.ID, listBytes-sizeOf(&f.Holdings))
		return err
	})
	if err != nil {
		return Found{}, fmt.Errorf("get agent: %w", err)
	}
	r.Presence.look(who.Session, &f.Agent, claimants[f.Name], r.clock.Now())
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
		session, err := r.dir.SessionID(snap, who.Session)
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
			r.Presence.look(who.Session, a, claimants[a.Name], now)
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
func (r *Registry) inState(q store.Querier, name string, session int64, f Filter, gated map[string]directory.Gate,
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
		r.Presence.look(name, &a, claimants[a.Name], now)
		if a.Status == Active && reported == int(Unreported) {
			derived = append(derived, a.Name)
		}
		if (f.Health == 0 || f.Health == a.Health) && (f.Status == 0 || f.Status == a.Status) && directory.Matches(f.Pattern, a.Name) {
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
	gated map[string]directory.Gate, claimants map[string]bool, err error) {
	if gated, err = r.mail.Gated(q, session); err != nil {
		return nil, nil, err
	}
	claimants, err = r.mail.Claimants(q, session, name)
	return gated, claimants, err
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
// has ended. Errors: as directory.Directory.Acting; fault.Precondition for an operator without an agent.
func (r *Registry) calling(q store.Querier, who identity.Caller) (Agent, error) {
	a, err := r.admitted(q, who)
	if tx, changing := q.(*store.Tx); err == nil && changing && a.Ended() {
		return r.revive(tx, who.Session, a)
	}
	return a, err
}

// admitted is calling for an agent that may stay as it has ended.
func (r *Registry) admitted(q store.Querier, who identity.Caller) (Agent, error) {
	session, err := r.dir.SessionID(q, who.Session)
	if err != nil {
		return Agent{}, err
	}
	if who.Agent == "" {
		return Agent{}, fault.AgentRequired()
	}
	a, ok, err := find(q, session, who.Agent)
	if err != nil {
		return Agent{}, err
	}
	if !ok {
		return Agent{}, directory.ErrNotRegistered(who)
	}
	if err := r.dir.Admit(q, session, who, a.Incarnation); err != nil {
		return Agent{}, err
	}
	return a, nil
}

func missing(dir *directory.Directory, q store.Querier, session int64, name string) error {
	names, err := dir.Nearest(q, session, name)
	if err != nil {
		return err
	}
	hint := cmp.Or(nearest.Hint(name, names), "the session has no agents")
	return fault.Missing("agent", name, "no agent %q is registered; %s", name, hint)
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
	a.Status, h.State, a.Attention = Status(status), HarnessState(state), directory.Attention(attention)
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
