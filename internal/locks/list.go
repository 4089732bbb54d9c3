package locks

import (
	"context"
	"math"
	"slices"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Filter chooses locks and tickets. What is empty does not restrict, and all that is set must match.
type Filter struct {
	Agent   string
	Path    string // those that conflict with an exclusive lock on it
	Waiting bool   // only tickets
}

// A Held is a grant as it is shown.
type Held struct {
	Fence       int64
	Owner       Owner
	Kind        Kind
	Names       []string
	Mode        Mode
	Reason      string
	GrantedAt   time.Time
	HeldUntil   time.Time
	MaxHold     time.Duration
	Waiting     int // requests that wait for it directly
	Uncollected bool
}

// A Place is a ticket as it is shown.
type Place struct {
	Ticket    int64
	Owner     Owner
	Kind      Kind
	Names     []string
	Mode      Mode
	Reason    string
	CreatedAt time.Time
	Position  int
	Obstacles []Obstacle
	Kept      bool
}

// A Mark is where a page ends: after the last lock, or among the tickets.
type Mark struct {
	Tickets bool
	After   int64
}

// A Page is a part of the list: locks in the order of their fences, then tickets in theirs.
type Page struct {
	Locks    []Held
	Tickets  []Place
	Next     Mark
	More     bool
	Revision int64
}

// listBytes is up to how many bytes of paths a page has, about.
const listBytes = 2 << 20

// List returns locks and tickets of the caller's session after a mark: fewer than limit if many wait.
// Errors: fault.Exhausted (LOCK_TOO_BROAD) for a path beside which very much is held.
func (t *Table) List(ctx context.Context, c identity.Caller, f Filter, after Mark, limit int) (Page, error) {
	if err := t.store.CheckResume(after.After); err != nil {
		return Page{}, err
	}
	var page Page
	err := t.store.Read(ctx, func(snap *store.Snapshot) error {
		page = Page{Revision: snap.Revision()}
		session, err := t.dir.Session(snap, c.Session)
		if err != nil {
			return err
		}
		v, err := t.view(snap, session.ID)
		if err != nil {
			return err
		}
		v.budget = newBudget()
		chosen := choice{agent: f.Agent}
		if f.Path != "" {
			p, err := Parse(f.Path, session.Settings.GetFoldCase())
			if err != nil {
				return err // the service has parsed it before
			}
			chosen.claim = &claim{kind: Lock, mode: Exclusive, paths: []Path{p}}
		}
		bytes := 0
		if !after.Tickets && !f.Waiting {
			err := v.grants(chosen, after.After, func(g *grant) bool {
				if len(page.Locks) == limit || bytes > listBytes || v.spent > listPage && len(page.Locks) > 0 {
					page.More = true
					return false
				}
				h := v.held(g)
				page.Locks, page.Next = append(page.Locks, h), Mark{After: g.fence}
				bytes += size(h.Names)
				return true
			})
			if err != nil || page.More {
				return err
			}
			after.After = 0
		}
		v.budget = nil // each ticket's obstacles have their own
		for _, k := range v.queue.tickets {
			if k.number <= after.After || k.claim.kind != Lock || !chosen.takes(k.owner, &k.claim) {
				continue
			}
			if n := len(page.Locks) + len(page.Tickets); n == limit || bytes > listBytes || v.spent > listPage && n > 0 {
				page.More = true
				return nil
			}
			p, err := v.standing(k)
			if err != nil {
				return err
			}
			page.Tickets, page.Next = append(page.Tickets, p), Mark{Tickets: true, After: k.number}
			bytes += size(p.Names)
		}
		return nil
	})
	return page, err
}

func size(names []string) (n int) {
	for _, name := range names {
		n += len(name) + 4
	}
	return n
}

// A choice is a filter with its path parsed.
type choice struct {
	agent string
	claim *claim
}

func (f choice) takes(o Owner, c *claim) bool {
	return (f.agent == "" || f.agent == o.Agent) && (f.claim == nil || f.claim.conflicts(c))
}

// grantPage is how many grants are read at a time.
const grantPage = 256

// grants visits the locks that are chosen, in the order of their fences, until visit returns false.
func (v *view) grants(f choice, after int64, visit func(*grant) bool) error {
	if f.claim != nil {
		found, err := v.holders(f.claim, Owner{}, math.MaxInt)
		for _, h := range found {
			if h.fence <= after || f.agent != "" && f.agent != h.owner.Agent {
				continue
			}
			g, err := findGrant(v.q, selectGrant, h.fence)
			if err != nil || g == nil || !visit(g) {
				return err
			}
		}
		return err
	}
	query := func() *store.Rows { return v.q.Query(selectLocks, v.session, after, grantPage) }
	if f.agent != "" {
		query = func() *store.Rows { return v.q.Query(selectAgentLocks, v.session, f.agent, after, grantPage) }
	}
	for {
		found, err := readGrants(query())
		if err != nil || len(found) == 0 {
			return err
		}
		for _, g := range found {
			if after = g.fence; !visit(g) {
				return nil
			}
		}
	}
}

// held shows a grant.
func (v *view) held(g *grant) Held {
	h := Held{
		Fence: g.fence, Owner: g.owner, Kind: g.claim.kind, Names: g.claim.names(), Mode: g.claim.mode, Reason: g.reason,
		GrantedAt: g.grantedAt, HeldUntil: g.until(v.ends), MaxHold: g.maxHold, Uncollected: !g.collected,
	}
	for _, k := range v.queue.tickets {
		if k.owner != g.owner && v.conflict(&k.claim, &g.claim) {
			h.Waiting++
		}
	}
	return h
}

// standing shows a ticket.
func (v *view) standing(k *ticket) (Place, error) {
	p := Place{
		Ticket: k.number, Owner: k.owner, Kind: k.claim.kind, Names: slices.Clone(k.claim.names()), Mode: k.claim.mode, Reason: k.reason,
		CreatedAt: k.createdAt, Kept: k.kept,
	}
	var err error
	p.Obstacles, p.Position, err = v.obstacles(&k.claim, k.owner, k.place)
	return p, err
}
