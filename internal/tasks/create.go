package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/work"
)

// A Draft is a task to create. Its numbers are in their ranges.
type Draft struct {
	ID           string // empty = the broker assigns one
	Title        string
	Description  string
	Labels       map[string]string
	Priority     int
	Role         string
	Assignee     string
	Capabilities []string // sorted
	DependsOn    []string // each once
	Parent       string
	MaxAttempts  int
	StaleAfter   *time.Duration // nil = as the session has it
	Artifacts    []string
}

// Created is the answer to Create.
type Created struct {
	Tasks    []Brief
	Revision int64
	Warnings []string
}

// Create creates tasks, all or none. Errors: fault.NotFound for a dependency, parent or assignee
// that does not exist, fault.Invalid (TASK_CYCLE), fault.Exists (TASK_EXISTS), fault.Exhausted
// (TOO_MANY_TASKS, TOO_MANY_QUEUES).
func (t *Tasks) Create(ctx context.Context, in work.Request, all []Draft) (Created, error) {
	var out Created
	if slices.ContainsFunc(all, func(n Draft) bool { return n.Assignee != "" }) {
		if err := t.Admit(ctx); err != nil {
			return out, err
		}
	}
	_, err := t.Once(ctx, t.Store.Write, in, &out, func(tx *work.Tx) (err error) {
		out, err = t.within(tx).create(all)
		return err
	})
	if err != nil {
		return Created{}, fmt.Errorf("create tasks: %w", err)
	}
	return out, nil
}

// A plan is the tasks of one call, with what they refer to.
type plan struct {
	all     []Draft
	byID    map[string]int // of the tasks with a chosen id
	needs   [][]need
	parents []need
	earlier map[int64]*Task // of the session, by key
}

// A need is a reference to a task: one of the call, or an earlier one.
type need struct {
	index int // in the call, if earlier is nil
	task  *Task
}

func (n need) none() bool { return n.task == nil && n.index < 0 }

// create checks everything first, and then creates the tasks.
func (u *taskTx) create(all []Draft) (Created, error) {
	var out Created
	p, err := u.plan(all)
	if err != nil {
		return out, err
	}
	if err := p.acyclic(); err != nil {
		return out, err
	}
	if err := u.capacity(len(all)); err != nil {
		return out, err
	}
	if out.Warnings, err = u.warn(p); err != nil {
		return out, err
	}
	made := make([]*Task, len(all))
	for i := range all {
		if made[i], err = u.insert(&all[i], p.missing(i), len(p.needs[i])); err != nil {
			return out, err
		}
	}
	for i := range all {
		u.connect(p, made, i)
	}
	for _, task := range made {
		if task.State == Ready {
			if err := u.offer(task); err != nil {
				return out, err
			}
		}
		out.Revision = max(out.Revision, task.Revision)
		out.Tasks = append(out.Tasks, task.brief())
	}
	return out, nil
}

// plan resolves the references of the tasks.
func (u *taskTx) plan(all []Draft) (*plan, error) {
	p := &plan{all: all, byID: map[string]int{}, earlier: map[int64]*Task{},
		needs: make([][]need, len(all)), parents: make([]need, len(all))}
	for i := range all {
		id := all[i].ID
		if id == "" {
			continue
		}
		if _, twice := p.byID[id]; twice {
			return nil, fault.Field(field(i, "id"), "%q is the id of an earlier task of this call; choose another", id)
		}
		p.byID[id] = i
		old, err := lookup(u.Tx, u.Session.ID, id)
		if err != nil {
			return nil, err
		}
		if old != nil && old.ID == id {
			e := fault.New(fault.Exists, "TASK_EXISTS", "%s: the id %q is in use: that task is %s; choose another id", field(i, "id"), id, old.State)
			e.Resource, e.Name = Kind, id
			return nil, e
		}
	}
	for i := range all {
		n := &all[i]
		for k, id := range n.DependsOn {
			found, err := u.resolve(p, field(i, "depends_on["+strconv.Itoa(k)+"]"), id)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(p.needs[i], found) { // by its id and by its revision
				p.needs[i] = append(p.needs[i], found)
			}
		}
		p.parents[i] = need{index: -1}
		if n.Parent != "" {
			var err error
			if p.parents[i], err = u.resolve(p, field(i, "parent"), n.Parent); err != nil {
				return nil, err
			}
		}
		if n.Assignee != "" {
			_, registered, err := u.Directory.Find(u.Tx, u.Session.ID, n.Assignee)
			if err == nil && !registered {
				err = work.UnknownAgent(u.Tx, u.Directory, u.Session.ID, n.Assignee)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func field(i int, name string) string { return "tasks[" + strconv.Itoa(i) + "]." + name }

// resolve finds the task of a reference.
func (u *taskTx) resolve(p *plan, field, id string) (need, error) {
	if i, ok := p.byID[id]; ok {
		return need{index: i}, nil
	}
	old, err := lookup(u.Tx, u.Session.ID, id)
	if err != nil {
		return need{}, err
	}
	if old != nil {
		if known := p.earlier[old.Created]; known != nil {
			old = known
		}
		p.earlier[old.Created] = old
	}
	if old == nil {
		return need{}, fault.Missing(Kind, id, "%s: there is no task %q in this session or in this call", field, id)
	}
	return need{index: -1, task: old}, nil
}

// acyclic refuses cycles of dependencies and of parents. Only tasks of the call can be part of one.
func (p *plan) acyclic() error {
	depends := func(i int) []need { return p.needs[i] }
	if cycle := p.cycle(depends); cycle != "" {
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
					names = append(names, p.all[k].ID)
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
func (p *plan) missing(i int) int {
	missing := 0
	for _, n := range p.needs[i] {
		if n.task == nil || n.task.State != Done {
			missing++
		}
	}
	return missing
}

// capacity refuses more unfinished tasks than a session can have.
func (u *taskTx) capacity(more int) error {
	n := u.unfinished.Get(u.Session.ID)
	if n+more <= mostUnfinished {
		return nil
	}
	e := fault.New(fault.Exhausted, "TOO_MANY_TASKS", "the session has %d unfinished tasks, and at most %d are allowed: "+
		"complete or cancel some first", n, mostUnfinished).With("limit", strconv.Itoa(mostUnfinished))
	e.RetryAfter = time.Second
	return e
}

// warn names roles that no registered agent has, and dependencies that will not become DONE by
// themselves.
func (u *taskTx) warn(p *plan) ([]string, error) {
	var warnings []string
	seen := map[string]bool{}
	for i := range p.all {
		if role := p.all[i].Role; role != "" && !seen[role] {
			seen[role] = true
			crew, err := u.Directory.Matching(u.Tx, u.Session.ID, directory.Selection{Role: role})
			if err != nil {
				return nil, err
			}
			if len(crew) == 0 {
				warnings = append(warnings, fmt.Sprintf("no registered agent has the role %q: its tasks wait until one registers", role))
			}
		}
	}
	for _, old := range p.earlier {
		if old.State == Failed || old.State == Cancelled {
			warnings = append(warnings, fmt.Sprintf("the dependency or parent %s is %s", old.ID, old.State))
		}
	}
	slices.Sort(warnings)
	return warnings[:min(len(warnings), mostListed)], nil
}

// insert creates a task without its references.
func (u *taskTx) insert(n *Draft, missing, needs int) (*Task, error) {
	task := &Task{
		Session: u.Session.ID, ID: n.ID, Title: n.Title, Labels: n.Labels, Priority: n.Priority, Role: n.Role,
		Assignee: n.Assignee, Capabilities: n.Capabilities, MaxAttempts: n.MaxAttempts, StaleAfter: u.Session.StaleAfter,
		Creator: u.Actor.Name, CreatorRole: u.Actor.Role, State: Ready, Missing: missing, CreatedAt: u.Now(),
		Description: n.Description, Artifacts: n.Artifacts,
		texts: n.Description != "" || len(n.Artifacts) > 0, needs: needs,
	}
	if n.StaleAfter != nil {
		task.StaleAfter = *n.StaleAfter
	}
	if missing > 0 {
		task.State = Waiting
	} else {
		task.ReadyAt = u.Now()
	}
	if task.ID == "" {
		var err error
		if task.ID, err = u.stamp(); err != nil {
			return nil, err
		}
	}
	revision, err := u.append(task, "task.created", 0, "created: "+task.Title, map[string]any{
		"title": task.Title, "state": task.State.String(), "priority": task.Priority, "role": task.Role,
		"assignee": task.Assignee, "depends_on": n.DependsOn[:min(len(n.DependsOn), mostListed)], "parent": n.Parent,
	})
	if err != nil {
		return nil, err
	}
	task.Created, task.Revision, task.Entered = revision, revision, revision
	err = u.withinQueues(func() (err error) {
		task.queue, err = u.queueFor(task)
		return err
	})
	if err != nil {
		return nil, err
	}
	u.addUnfinished(1)
	u.CountOutcome(u.Tx, Kind, "created")
	u.Exec(insertTask, task.Created, task.Session, task.ID, task.Title, toJSON(len(task.Labels), task.Labels),
		10-task.Priority, orNull(task.Role), orNull(task.Assignee), toJSON(len(task.Capabilities), task.Capabilities), nil,
		task.MaxAttempts, task.StaleAfter, task.Creator, orNull(task.CreatorRole), task.queue, task.texts, task.needs, int64(task.State),
		task.Revision, task.Entered, task.Missing, task.CreatedAt, task.ReadyAt)
	if task.texts {
		u.Exec(insertTexts, task.Created, orNull(n.Description), toJSON(len(n.Artifacts), n.Artifacts))
	}
	task.relabel(u.Tx.Tx)
	return task, nil
}

// stamp returns an id that is not in use. The number is that of the revision that creates the task,
// unless a creator has chosen that id.
func (u *taskTx) stamp() (string, error) {
	for next := u.NextRevision() + 1; ; next = u.NextRevision() + 1 {
		id := work.ID("t", next)
		old, err := lookup(u.Tx, u.Session.ID, id)
		if old == nil || err != nil {
			return id, err
		}
	}
}

// connect stores the references of a task.
func (u *taskTx) connect(p *plan, made []*Task, i int) {
	at := func(n need) int64 {
		if n.task != nil {
			return n.task.Created
		}
		return made[n.index].Created
	}
	for k, n := range p.needs[i] {
		u.Exec(insertDependency, made[i].Created, k, at(n))
	}
	if parent := p.parents[i]; !parent.none() {
		made[i].Parent = at(parent)
		u.Exec(updateParent, made[i].Parent, made[i].Created)
	}
}

// marshal writes the details of an event or the payload of a message.
func marshal(details map[string]any) (string, error) {
	text, err := json.Marshal(details)
	return string(text), err
}
