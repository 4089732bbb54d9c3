package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Full is a task with everything that belongs to it.
type Full struct {
	Task         *Task // nil for an id without a task
	History      []Attempt
	Dependencies []Brief
	Dependents   []Brief
	Parts        []Brief
	References   []Reference
	Revision     int64
}

// Get returns a task; with full also what belongs to it. Errors: fault.NotFound if there is no task
// and, with full, no object carries the id.
func (t *Tasks) Get(ctx context.Context, c identity.Caller, id string, full bool) (Full, error) {
	var f Full
	err := t.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := t.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		f = Full{Revision: snap.Revision()}
		if f.Task, err = lookup(snap, s.ID, id); err != nil {
			return err
		}
		name := id
		if f.Task != nil {
			name = f.Task.ID
			if err := f.Task.fill(snap); err != nil {
				return err
			}
		}
		if full {
			err = t.complete(snap, s.ID, name, &f)
		}
		if err == nil && f.Task == nil && len(f.References) == 0 {
			err = work.Missing(Kind, id)
		}
		return err
	})
	if err != nil {
		return Full{}, fmt.Errorf("get task: %w", err)
	}
	return f, nil
}

// complete reads what belongs to a task.
func (t *Tasks) complete(q store.Querier, session int64, name string, f *Full) error {
	if f.Task != nil {
		var err, failed error
		if f.History, failed = readAttempts(q, f.Task.Created); failed != nil {
			return failed
		}
		f.Dependencies, err = f.Task.relate(q)
		f.Dependents, failed = scanBriefs(q.Query(selectDependents, f.Task.Created, mostListed))
		err = errors.Join(err, failed)
		f.Parts, failed = scanBriefs(q.Query(selectParts, f.Task.Created, mostListed))
		if err = errors.Join(err, failed); err != nil {
			return err
		}
	}
	for _, r := range t.related {
		some, err := r.Related(q, session, name, mostListed)
		if err != nil {
			return err
		}
		f.References = append(f.References, some...)
	}
	return nil
}

// A Selection selects tasks; an empty field does not restrict.
type Selection struct {
	States   []State
	Holder   string
	Assignee string
	Role     string
	Labels   map[string]string
	Parent   string // id
	Creator  string
	Newest   bool  // first
	From     int64 // key; tasks behind it; 0 = all
	Limit    int
}

// A Page is a page of a list.
type Page struct {
	Tasks    []*Task
	Next     int64 // the key from which the next page reads; 0 = there is none
	Revision int64
}

// List returns tasks in the order of their creation. A page reads at most about mostRead tasks: with
// filters that match few of them it can have fewer tasks than the limit, or none, and yet a next page.
// Errors: fault.NotFound for a parent.
func (t *Tasks) List(ctx context.Context, c identity.Caller, sel Selection) (Page, error) {
	if err := t.Store.CheckResume(sel.From); err != nil {
		return Page{}, err
	}
	var p Page
	err := t.Store.ReadPage(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		s, err := t.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		var parent int64
		if sel.Parent != "" {
			task, err := find(snap, s.ID, sel.Parent)
			if err != nil {
				return err
			}
			parent = task.Created
		}
		states := sel.States
		if len(states) == 0 {
			states = []State{0}
		}
		later := func(a, b int64) int {
			if sel.Newest {
				a, b = b, a
			}
			return cmp.Compare(a, b)
		}
		for _, state := range states {
			some, end, err := sel.read(snap, s.ID, state, parent, mostRead/len(states))
			if err != nil {
				return err
			}
			p.Tasks = append(p.Tasks, some...)
			if end != 0 && (p.Next == 0 || later(end, p.Next) < 0) {
				p.Next = end
			}
		}
		if p.Next != 0 { // beyond it, tasks of other states have not been read
			p.Tasks = slices.DeleteFunc(p.Tasks, func(t *Task) bool { return later(t.Created, p.Next) > 0 })
		}
		slices.SortFunc(p.Tasks, func(a, b *Task) int { return later(a.Created, b.Created) })
		if len(p.Tasks) > sel.Limit {
			p.cut(sel.Limit)
		}
		return p.relate(snap)
	})
	if err != nil {
		return Page{}, fmt.Errorf("list tasks: %w", err)
	}
	return p, nil
}

// cut ends the page behind its first n tasks.
func (p *Page) cut(n int) {
	p.Tasks, p.Next = p.Tasks[:n], p.Tasks[n-1].Created
}

// read returns the first tasks of a state, or of all for 0: one more than the limit if there are. It
// reads at most as many tasks as the budget says. If there are more, end is the key of the last task
// up to which it has read.
func (sel *Selection) read(q store.Querier, session int64, state State, parent int64, budget int) (found []*Task, end int64, err error) {
	statement, last := listSession, endOfSession
	switch {
	case state == 0 && sel.Newest:
		statement, last = listSessionNewest, endOfSessionNewest
	case state != 0 && sel.Newest:
		statement, last = listStateNewest, endOfStateNewest
	case state != 0:
		statement, last = listState, endOfState
	}
	args := []any{session}
	if state != 0 {
		args = append(args, int64(state))
	}
	from, to := sel.From, int64(1<<63-1)
	if sel.Newest {
		to = 0
		if from == 0 {
			from = 1<<63 - 1
		}
	}
	err = q.QueryRow(last, append(slices.Clip(args), from, budget-1)...).Scan(&end)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return nil, 0, err
	}
	if end != 0 {
		to = end
	}
	page := sel.Limit + 1
	args = append(args, sel.Holder, sel.Holder, sel.Assignee, sel.Assignee, sel.Role, sel.Role, parent, parent, sel.Creator, sel.Creator)
	for {
		some, err := scanAll(q.Query(statement, append(slices.Clip(args), from, to, page)...))
		if err != nil {
			return nil, 0, err
		}
		for _, task := range some {
			if labelled(task, sel.Labels) {
				if found = append(found, task); len(found) == page {
					return found, 0, nil
				}
			}
		}
		if len(some) < page {
			return found, end, nil
		}
		from = some[len(some)-1].Created
	}
}

// relate reads the ids of dependencies and parents of a page, and ends the page where it becomes too
// large.
func (p *Page) relate(q store.Querier) error {
	bytes := 0
	for i, task := range p.Tasks {
		if _, err := task.relate(q); err != nil {
			return err
		}
		if bytes += task.size(); bytes > maxPage && i > 0 {
			p.cut(i)
			return nil
		}
	}
	return nil
}

// size is about how many bytes a task takes in a list.
func (t *Task) size() int {
	n := 512 + len(t.Title) + len(t.Note) + len(t.Error) + len(t.Reason)
	for k, v := range t.Labels {
		n += len(k) + len(v) + 8
	}
	for _, list := range [][]string{t.DependsOn, t.Capabilities} {
		for _, s := range list {
			n += len(s) + 4
		}
	}
	return n
}

// Claimable returns the tasks that the caller could claim now, in the order in which it would get
// them. It reads about mostRead rows: with several labels it may miss tasks behind these. Errors: fault.Precondition without a registered agent.
func (t *Tasks) Claimable(ctx context.Context, c identity.Caller, labels map[string]string, limit int) (Page, error) {
	var p Page
	err := t.Store.ReadPage(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		session, err := t.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		a, err := t.Directory.Acting(snap, session.ID, c)
		if err != nil || a.System() {
			return err
		}
		queues, err := readQueues(snap, session.ID, func(_ int64, err error) bool { return work.IsDamage(err) })
		if err != nil {
			return err
		}
		s := newSearch(maps.All(queues), a, labels, limit)
		budget := mostRead
		if _, err := s.run(snap, &budget); err != nil {
			return err
		}
		for _, at := range s.found {
			task, err := scan(snap.QueryRow(selectTask, at.created))
			if err != nil {
				return err
			}
			p.Tasks = append(p.Tasks, task)
		}
		err = p.relate(snap)
		p.Next = 0
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("list claimable tasks: %w", err)
	}
	return p, nil
}
