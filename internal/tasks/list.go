package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// get returns a task; with the view FULL also what belongs to it. Errors: fault.NotFound if there is no task
// and, with FULL, no object carries the id.
func (s *Service) get(ctx context.Context, in *pb.GetTaskRequest) (out *pb.GetTaskResponse, err error) {
	full := in.GetView() == pb.TaskView_TASK_VIEW_FULL
	err = s.Read(ctx, func(snap *store.Snapshot, session directory.Session) error {
		out = &pb.GetTaskResponse{Revision: snap.Revision()}
		t, err := lookup(snap, session.ID, in.GetId())
		if err != nil {
			return err
		}
		name := in.GetId()
		if t != nil {
			name = t.Id
			if err := t.fill(snap); err != nil {
				return err
			}
			out.Task = t.answer()
		}
		if full {
			err = s.complete(snap, session.ID, name, t, out)
		}
		if err == nil && t == nil && len(out.References) == 0 {
			err = work.Missing(noun, name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get task: %w", err)
	}
	return out, nil
}

// complete reads what belongs to a task, nil for a name without one.
func (s *Service) complete(q store.Querier, session int64, name string, t *task, out *pb.GetTaskResponse) (err error) {
	if t != nil {
		if out.History, err = readAttempts(q, t.CreatedRevision); err != nil {
			return err
		}
		if out.Dependencies, err = t.relate(q); err != nil {
			return err
		}
		if out.Dependents, err = scanBriefs(q.Query(selectDependents, t.CreatedRevision, mostListed)); err != nil {
			return err
		}
		if out.Subtasks, err = scanBriefs(q.Query(selectParts, t.CreatedRevision, mostListed)); err != nil {
			return err
		}
	}
	for _, related := range s.related {
		some, err := related(q, session, name, mostListed)
		if err != nil {
			return err
		}
		for _, r := range some {
			out.References = append(out.References,
				&pb.TaskReference{Kind: r.Kind, Id: r.ID, Title: r.Title, Revision: r.Revision})
		}
	}
	return nil
}

// taskList is the name of the list that page tokens belong to.
const taskList = "ListTasks"

// A listing is one page of a list.
type listing struct {
	*Service
	in   *pb.ListTasksRequest
	who  identity.Caller
	from int64 // key; tasks behind it; 0 = all

	// Of the last read.
	parent int64 // key; 0 = any
	tasks  []*task
	next   int64 // the key from which the next page reads; 0 = there is none
}

// begin reads the page token.
func (l *listing) begin() error {
	if err := page.Parse(taskList, l.in.GetPageToken(), &l.from); err != nil {
		return err
	}
	return l.Store.CheckResume(l.from)
}

// page returns the page that read reads.
func (l *listing) page(
	ctx context.Context, read func(snap *store.Snapshot, session int64) error,
) (*pb.ListTasksResponse, error) {
	out := &pb.ListTasksResponse{}
	err := l.Store.ReadPage(ctx, func(snap *store.Snapshot) error {
		out.Revision = snap.Revision()
		l.parent, l.tasks, l.next = 0, nil, 0
		session, err := l.Directory.Session(snap, l.who.Session)
		if err != nil {
			return err
		}
		if err := read(snap, session.ID); err != nil {
			return err
		}
		return l.relate(snap)
	})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	for _, t := range l.tasks {
		out.Tasks = append(out.Tasks, t.answer())
	}
	if l.next != 0 && !l.in.GetClaimable() {
		out.NextPageToken = page.Token(taskList, l.next)
	}
	return out, nil
}

// size is how many tasks the page has at most.
func (l *listing) size() int { return cmp.Or(int(l.in.GetPageSize()), validate.DefaultPage) }

// claimable reads the tasks that the caller could claim now, in the order in which it would get
// them. It reads about mostRead rows: with several labels it may miss tasks behind these. Errors: fault.Precondition
// without a registered agent.
func (l *listing) claimable(snap *store.Snapshot, session int64) error {
	a, err := l.Directory.Acting(snap, session, l.who)
	if err != nil || a.System() {
		return err
	}
	queues, err := readQueues(snap, session, func(_ int64, err error) bool { return work.IsDamage(err) })
	if err != nil {
		return err
	}
	s := newSearch(maps.All(queues), a, l.in.GetLabels(), l.size())
	budget := mostRead
	if _, err := s.run(snap, &budget); err != nil {
		return err
	}
	for _, at := range s.found {
		t, err := scan(snap.QueryRow(selectTask, at.created))
		if err != nil {
			return err
		}
		l.tasks = append(l.tasks, t)
	}
	return nil
}

// all reads tasks in the order of their creation. A page reads at most about mostRead tasks: with
// filters that match few of them it can have fewer tasks than the limit, or none, and yet a next page.
// Errors: fault.NotFound for a parent.
func (l *listing) all(snap *store.Snapshot, session int64) error {
	if l.in.GetParent() != "" {
		parent, err := find(snap, session, l.in.GetParent())
		if err != nil {
			return err
		}
		l.parent = parent.CreatedRevision
	}
	states := slices.Compact(slices.Sorted(slices.Values(l.in.GetStates())))
	if len(states) == 0 {
		states = []pb.TaskState{0}
	}
	for _, state := range states {
		some, end, err := l.read(snap, session, state, mostRead/len(states))
		if err != nil {
			return err
		}
		l.tasks = append(l.tasks, some...)
		if end != 0 && (l.next == 0 || l.later(end, l.next) < 0) {
			l.next = end
		}
	}
	if l.next != 0 { // beyond it, tasks of other states have not been read
		l.tasks = slices.DeleteFunc(l.tasks, func(t *task) bool { return l.later(t.CreatedRevision, l.next) > 0 })
	}
	slices.SortFunc(l.tasks, func(a, b *task) int { return l.later(a.CreatedRevision, b.CreatedRevision) })
	if len(l.tasks) > l.size() {
		l.cut(l.size())
	}
	return nil
}

// later compares two keys in the order of the list.
func (l *listing) later(a, b int64) int {
	if !l.in.GetOldestFirst() {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

// cut ends the page behind its first n tasks.
func (l *listing) cut(n int) { l.tasks, l.next = l.tasks[:n], l.tasks[n-1].CreatedRevision }

// read returns the first tasks of a state, or of all for 0: one more than the limit if there are. It
// reads at most as many tasks as the budget says. If there are more, end is the key of the last task
// up to which it has read.
func (l *listing) read(q store.Querier, session int64, state pb.TaskState, budget int) (found []*task, end int64, err error) {
	newest := !l.in.GetOldestFirst()
	statement, last := listSession, endOfSession
	switch {
	case state == 0 && newest:
		statement, last = listSessionNewest, endOfSessionNewest
	case state != 0 && newest:
		statement, last = listStateNewest, endOfStateNewest
	case state != 0:
		statement, last = listState, endOfState
	}
	args := []any{session}
	if state != 0 {
		args = append(args, int32(state))
	}
	from, to := l.from, int64(math.MaxInt64)
	if newest {
		from, to = cmp.Or(from, math.MaxInt64), 0
	}
	err = q.QueryRow(last, append(slices.Clip(args), from, budget-1)...).Scan(&end)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return nil, 0, err
	}
	if end != 0 {
		to = end
	}
	limit, in := l.size()+1, l.in
	args = append(args, in.Holder, in.Holder, in.Assignee, in.Assignee, in.Role, in.Role, l.parent, l.parent, in.Creator, in.Creator)
	for {
		some, err := scanAll(q.Query(statement, append(slices.Clip(args), from, to, limit)...))
		if err != nil {
			return nil, 0, err
		}
		for _, t := range some {
			if labelled(&t.Task, in.Labels) {
				if found = append(found, t); len(found) == limit {
					return found, 0, nil
				}
			}
		}
		if len(some) < limit {
			return found, end, nil
		}
		from = some[len(some)-1].CreatedRevision
	}
}

// relate reads the ids of dependencies and parents of a page, and ends the page where it becomes too
// large.
func (l *listing) relate(q store.Querier) error {
	bytes := 0
	for i, t := range l.tasks {
		if _, err := t.relate(q); err != nil {
			return err
		}
		if bytes += t.size(); bytes > maxPage && i > 0 {
			l.cut(i)
			return nil
		}
	}
	return nil
}

// size is about how many bytes a task takes in a list.
func (t *task) size() int {
	n := 512 + len(t.Title) + len(t.Note) + len(t.Error) + len(t.BlockReason)
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
