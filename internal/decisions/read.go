package decisions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Get returns a decision with its content and all verdicts, and the revision that the answer is true
// at. With wait, it returns when no verdict is due any more, when the wait has ended, or when the
// broker drains. Errors: fault.NotFound; that of ctx.
func (t *Table) Get(ctx context.Context, c identity.Caller, id string, wait time.Duration) (d Decision, revision int64, err error) {
	number, err := work.ParseID("decision", idLetter, id)
	if err != nil {
		return Decision{}, 0, err
	}
	err = t.hub.Await(ctx, wait, []int64{number}, func() (bool, error) {
		err := t.Store.Read(ctx, func(snap *store.Snapshot) error {
			s, err := t.Directory.Session(snap, c.Session)
			if err != nil {
				return err
			}
			d, err = find(snap, s.ID, id)
			revision = snap.Revision()
			return err
		})
		return !d.State.waits(), err
	})
	if err != nil {
		return Decision{}, 0, fmt.Errorf("get decision: %w", err)
	}
	return d, revision, nil
}

// A Selection says which decisions List returns; what is empty does not restrict.
type Selection struct {
	States   []State
	Kind     Kind
	OpenedBy string
	OwedBy   string
	Task     string
	Scope    string
	Before   int64 // id; 0 = from the newest on
	Limit    int
}

// states returns the set of states as a sum of powers of two.
func (s *Selection) states() (set int64) {
	for _, state := range s.States {
		set |= 1 << state
	}
	return set
}

// A Page is a part of a list.
type Page struct {
	Decisions []Decision // without content, with the newest verdict
	Next      int64      // the id to continue before; 0 = there are no more
	Revision  int64      // that the list is true at
}

// List returns decisions, the newest first, of work.MostRead that it reads. Errors: fault.NotFound for an agent that owes and is not
// registered.
func (t *Table) List(ctx context.Context, c identity.Caller, sel Selection) (p Page, err error) {
	if sel.Before == 0 {
		sel.Before = math.MaxInt64
	}
	err = t.Store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		s, err := t.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		owes := func(*Decision) bool { return true }
		if sel.OwedBy != "" {
			a, found, err := t.Directory.Find(snap, s.ID, sel.OwedBy)
			if err != nil {
				return err
			}
			if !found {
				return work.UnknownAgent(snap, t.Directory, s.ID, sel.OwedBy)
			}
			owes = func(d *Decision) bool { return d.owedBy(a, s) }
		}
		return p.fill(snap, s.ID, &sel, owes)
	})
	if err != nil {
		return Page{}, fmt.Errorf("list decisions: %w", err)
	}
	return p, nil
}

// fill reads the decisions of a page.
func (p *Page) fill(q store.Querier, session int64, sel *Selection, owes func(*Decision) bool) error {
	query, edgeQuery, args := listDecisions, edgeOfAll, []any{session}
	switch set := sel.states(); {
	case sel.Scope != "":
		query, edgeQuery, args = listScope, edgeOfScope, append(args, sel.Scope)
	case sel.Task != "":
		query, edgeQuery, args = listTask, edgeOfTask, append(args, sel.Task)
	case sel.OwedBy != "" || set != 0 && set < 1<<Decided:
		query = listUnfinished // mostUnfinished bounds them
	}
	var edge int64
	if query != listUnfinished {
		err := q.QueryRow(edgeQuery, append(slices.Clone(args), sel.Before, work.MostRead-1)...).Scan(&edge)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
	}
	set := sel.states()
	most := sel.Limit + 1
	if sel.OwedBy != "" {
		most = mostUnfinished
		if set &= 1<<Decided - 1; len(sel.States) == 0 {
			set = 1<<Decided - 1
		}
	}
	rows := q.Query(query, append(args, sel.Before, edge, set, set, int(sel.Kind), int(sel.Kind), sel.OpenedBy, sel.OpenedBy,
		sel.Task, sel.Task, sel.Scope, sel.Scope, most)...)
	list, err := readAll(rows)
	if err != nil {
		return err
	}
	p.Next = edge
	for i := range list {
		if !owes(&list[i]) {
			continue
		}
		if len(p.Decisions) == sel.Limit {
			p.Next = p.Decisions[len(p.Decisions)-1].ID
			break
		}
		p.Decisions = append(p.Decisions, list[i])
	}
	for i := range p.Decisions {
		if err := p.Decisions[i].readVerdicts(q, newestVerdict); err != nil {
			return err
		}
	}
	return nil
}
