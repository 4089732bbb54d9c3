package tasks

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/work"
)

// A plan is the tasks of one call of CreateTasks, with what they refer to.
type plan struct {
	*taskTx
	all     []*pb.NewTask
	byID    map[string]int // of the tasks with a chosen id
	needs   [][]need
	parents []need
	earlier map[int64]*task // of the session, by key
}

// A need is a reference to a task: one of the call, or an earlier one.
type need struct {
	index int // in the call, if task is nil
	task  *task
}

func (n need) none() bool { return n.task == nil && n.index < 0 }

func newPlan(u *taskTx, all []*pb.NewTask) *plan {
	return &plan{taskTx: u, all: all, byID: map[string]int{}, earlier: map[int64]*task{},
		needs: make([][]need, len(all)), parents: make([]need, len(all))}
}

// create creates tasks, all or none: it checks everything first. Errors: fault.NotFound for a dependency, parent or
// assignee that does not exist, fault.Invalid (TASK_CYCLE), fault.Exists (TASK_EXISTS), fault.Exhausted
// (TOO_MANY_TASKS, TOO_MANY_QUEUES).
func (p *plan) create(out *pb.CreateTasksResponse) error {
	if err := p.name(); err != nil {
		return err
	}
	if err := p.connect(); err != nil {
		return err
	}
	if err := p.acyclic(); err != nil {
		return err
	}
	if err := p.queues.capacity(p.Tx, len(p.all)); err != nil {
		return err
	}
	var err error
	if out.Warnings, err = p.warnings(); err != nil {
		return err
	}
	made := make([]*task, len(p.all))
	for i, n := range p.all {
		if made[i], err = p.insert(n, p.missing(i), len(p.needs[i])); err != nil {
			return err
		}
	}
	p.store(made)
	for _, t := range made {
		if t.State == ready {
			if err := p.offer(t); err != nil {
				return err
			}
		}
		out.Revision = max(out.Revision, t.Revision)
		out.Tasks = append(out.Tasks, t.brief())
	}
	return nil
}

// name notes the chosen ids. Each must be new.
func (p *plan) name() error {
	for i, n := range p.all {
		if n.Id == "" {
			continue
		}
		if _, twice := p.byID[n.Id]; twice {
			return fault.Field(field(i, "id"), "%q is the id of an earlier task of this call; choose another", n.Id)
		}
		p.byID[n.Id] = i
		old, err := lookup(p, p.Session.ID, n.Id)
		if err != nil {
			return err
		}
		if old != nil && old.Id == n.Id {
			e := fault.New(fault.Exists, "TASK_EXISTS", "%s: the id %q is in use: that task is %s; choose another id",
				field(i, "id"), n.Id, word(old.State))
			e.Resource, e.Name = noun, n.Id
			return e
		}
	}
	return nil
}

// connect resolves the references of the tasks.
func (p *plan) connect() (err error) {
	for i, n := range p.all {
		for k, id := range unique(n.DependsOn) {
			found, err := p.resolve(field(i, "depends_on["+strconv.Itoa(k)+"]"), id)
			if err != nil {
				return err
			}
			if !slices.Contains(p.needs[i], found) { // by its id and by its revision
				p.needs[i] = append(p.needs[i], found)
			}
		}
		p.parents[i] = need{index: -1}
		if n.Parent != "" {
			if p.parents[i], err = p.resolve(field(i, "parent"), n.Parent); err != nil {
				return err
			}
		}
		if n.Assignee != "" {
			if err := p.Known(p, p.Session.ID, n.Assignee); err != nil {
				return err
			}
		}
	}
	return nil
}

func field(i int, name string) string { return "tasks[" + strconv.Itoa(i) + "]." + name }

// resolve finds the task of a reference.
func (p *plan) resolve(field, id string) (need, error) {
	if i, ok := p.byID[id]; ok {
		return need{index: i}, nil
	}
	old, err := lookup(p, p.Session.ID, id)
	switch {
	case err != nil:
		return need{}, err
	case old == nil:
		return need{}, fault.Missing(noun, id, "%s: there is no task %q in this session or in this call", field, id)
	}
	if known := p.earlier[old.CreatedRevision]; known != nil {
		old = known
	}
	p.earlier[old.CreatedRevision] = old
	return need{index: -1, task: old}, nil
}

// acyclic refuses cycles of dependencies and of parents. Only tasks of the call can be part of one.
func (p *plan) acyclic() error {
	if cycle := p.cycle(func(i int) []need { return p.needs[i] }); cycle != "" {
		return errCycle("dependencies", cycle)
	}
	if cycle := p.cycle(func(i int) []need { return p.parents[i : i+1] }); cycle != "" {
		return errCycle("parents", cycle)
	}
	return nil
}

func errCycle(of, cycle string) error {
	e := fault.New(fault.Invalid, "TASK_CYCLE", "the %s form a cycle: %s; remove one of them", of, cycle)
	e.Violations = []fault.Violation{{Field: "tasks", Description: "the " + of + " form a cycle: " + cycle}}
	return e.With("cycle", cycle)
}

// cycle writes a cycle out, such as a → b → a. It is empty if there is none.
func (p *plan) cycle(next func(int) []need) string {
	const open, closed = 1, 2
	marks := make([]int, len(p.all))
	var path []int
	var visit func(i int) string
	visit = func(i int) string {
		marks[i] = open
		path = append(path, i)
		for _, n := range next(i) {
			if n.task != nil || n.index < 0 {
				continue
			}
			switch marks[n.index] {
			case open:
				var names []string
				for _, k := range append(path[slices.Index(path, n.index):], n.index) {
					names = append(names, p.all[k].Id)
				}
				return strings.Join(names, " → ")
			case closed:
			default:
				if found := visit(n.index); found != "" {
					return found
				}
			}
		}
		marks[i] = closed
		path = path[:len(path)-1]
		return ""
	}
	for i := range p.all {
		if marks[i] == 0 {
			if found := visit(i); found != "" {
				return found
			}
		}
	}
	return ""
}

// missing counts the dependencies of a task that are not DONE.
func (p *plan) missing(i int) (missing int) {
	for _, n := range p.needs[i] {
		if n.task == nil || n.task.State != done {
			missing++
		}
	}
	return missing
}

// warnings name roles that no registered agent has, and dependencies that will not become DONE by
// themselves.
func (p *plan) warnings() ([]string, error) {
	var list []string
	seen := map[string]bool{}
	for _, n := range p.all {
		if n.Role == "" || seen[n.Role] {
			continue
		}
		seen[n.Role] = true
		crew, err := p.Directory.Matching(p, p.Session.ID, directory.Selection{Role: n.Role})
		if err != nil {
			return nil, err
		}
		if len(crew) == 0 {
			list = append(list, fmt.Sprintf("no registered agent has the role %q: its tasks wait until one registers", n.Role))
		}
	}
	for _, old := range p.earlier {
		if old.State == failed || old.State == cancelled {
			list = append(list, fmt.Sprintf("the dependency or parent %s is %s", old.Id, word(old.State)))
		}
	}
	slices.Sort(list)
	return list[:min(len(list), mostListed)], nil
}

// insert creates a task without its references.
func (p *plan) insert(n *pb.NewTask, missing, needs int) (*task, error) {
	t := &task{session: p.Session.ID, missing: missing, needs: needs, texts: n.Description != "" || len(n.Artifacts) > 0}
	t.Id, t.Title, t.Labels, t.Role, t.Assignee = n.Id, n.Title, n.Labels, n.Role, n.Assignee
	t.Description, t.Artifacts, t.Capabilities = n.Description, n.Artifacts, capabilities(n)
	t.Priority, t.MaxAttempts = cmp.Or(n.Priority, defaultPriority), cmp.Or(n.MaxAttempts, defaultAttempts)
	t.State, t.Creator, t.createdAt = ready, p.Actor.Name, p.Now()
	t.staleAfter = p.Session.Settings.GetStaleAfter().AsDuration()
	if n.StaleAfter != nil {
		t.staleAfter = n.StaleAfter.AsDuration()
	}
	if missing > 0 {
		t.State = waiting
	} else {
		t.readyAt = t.createdAt
	}
	if t.Id == "" {
		var err error
		if t.Id, err = p.newID(); err != nil {
			return nil, err
		}
	}
	depends := unique(n.DependsOn)
	revision, err := p.append(t, "task.created", 0, "created: "+t.Title, map[string]any{
		"title": t.Title, "state": word(t.State), "priority": t.Priority, "role": t.Role, "assignee": t.Assignee,
		"depends_on": depends[:min(len(depends), mostListed)], "parent": n.Parent,
	})
	if err != nil {
		return nil, err
	}
	t.CreatedRevision, t.Revision, t.entered = revision, revision, revision
	if err := p.queues.within(p.Tx, func() error { return p.queues.enter(p.Tx, t) }); err != nil {
		return nil, err
	}
	p.queues.count(p.Tx, 1)
	p.count("created")
	p.Exec(insertTask, revision, t.session, t.Id, t.Title, toJSON(len(t.Labels), t.Labels), t.rank(), orNull(t.Role),
		orNull(t.Assignee), toJSON(len(t.Capabilities), t.Capabilities), nil, t.MaxAttempts, t.staleAfter, t.Creator,
		orNull(p.Actor.Role), t.queue, t.texts, needs, int32(t.State), revision, revision, missing, p.Now(),
		t.readyAt)
	if t.texts {
		p.Exec(insertTexts, revision, orNull(n.Description), toJSON(len(n.Artifacts), n.Artifacts))
	}
	t.relabel(p.Tx.Tx)
	return t, nil
}

// newID returns an id that is not in use. The number is that of the revision that creates the task,
// unless a creator has chosen that id.
func (p *plan) newID() (string, error) {
	for next := p.NextRevision() + 1; ; next = p.NextRevision() + 1 {
		id := work.ID("t", next)
		old, err := lookup(p, p.Session.ID, id)
		if old == nil || err != nil {
			return id, err
		}
	}
}

// store stores the references of the tasks.
func (p *plan) store(made []*task) {
	key := func(n need) int64 {
		if n.task != nil {
			return n.task.CreatedRevision
		}
		return made[n.index].CreatedRevision
	}
	for i, t := range made {
		for k, n := range p.needs[i] {
			p.Exec(insertDependency, t.CreatedRevision, k, key(n))
		}
		if parent := p.parents[i]; !parent.none() {
			t.parent = key(parent)
			p.Exec(updateParent, t.parent, t.CreatedRevision)
		}
	}
}

// capabilities returns the capabilities of a new task, sorted, each once.
func capabilities(n *pb.NewTask) []string {
	return slices.Compact(slices.Sorted(slices.Values(n.GetCapabilities())))
}

// unique returns a list in its order, each text once.
func unique(list []string) (once []string) {
	for _, s := range list {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}
