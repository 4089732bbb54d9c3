package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// An Outcome says why a wait has ended. The numbers are those of the API.
type Outcome int

// The outcomes.
const (
	AllDone Outcome = iota + 1
	Attention
	TimedOut
)

// Awaited is what a caller waits for.
type Awaited struct {
	Tasks  []string // ids
	Agents []string
	Any    bool // one of them is enough
	Wait   time.Duration
	After  int64 // return early only for changes after this revision; 0 = any
}

// A Result has the states at the end of a wait.
type Result struct {
	Outcome   Outcome
	Tasks     []Brief
	Completed []string // agents
	Attention []string // ids of tasks
	Revision  int64
}

// Wait waits until tasks are DONE and agents have reported completed. It returns early when one of
// the tasks needs attention. Errors: fault.NotFound; fault.Precondition (WOULD_WAIT_FOREVER) if the
// caller holds one of the tasks or a task on which one depends.
func (t *Tasks) Wait(ctx context.Context, c identity.Caller, a Awaited) (Result, error) {
	var session int64
	var began int64 // revision
	if err := t.Store.CheckResume(a.After); err != nil {
		return Result{}, err
	}
	keys := make([]key, 0, len(a.Tasks)+len(a.Agents))
	seen := make([]*Task, len(a.Tasks)) // as the last look found them
	err := t.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := t.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		me, err := t.Directory.Acting(snap, s.ID, c)
		if err != nil {
			return err
		}
		session, began = s.ID, snap.Revision()
		for i, id := range a.Tasks {
			task, err := find(snap, s.ID, id)
			if err != nil {
				return err
			}
			seen[i] = task
			keys = append(keys, key{session: s.ID, task: task.Created})
		}
		for _, name := range a.Agents {
			if _, registered, err := t.Directory.Find(snap, s.ID, name); err != nil {
				return err
			} else if !registered {
				return work.UnknownAgent(snap, t.Directory, s.ID, name)
			}
			keys = append(keys, key{session: s.ID, agent: name})
		}
		return hopeless(snap, s.ID, me.Name, seen)
	})
	if err != nil {
		return Result{}, fmt.Errorf("wait for tasks: %w", err)
	}
	var r Result
	err = t.hub.Await(ctx, a.Wait, keys, func() (bool, error) {
		err := t.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			r, err = t.look(snap, session, &a, seen, began)
			return err
		})
		return r.Outcome != TimedOut, err
	})
	if err != nil {
		return Result{}, fmt.Errorf("wait for tasks: %w", err)
	}
	select {
	case <-t.stopping:
		if r.Outcome == TimedOut && a.Wait > 0 {
			return Result{}, errStopping()
		}
	default:
	}
	return r, nil
}

// look finds out whether a wait has ended. seen has the tasks as the last look found them. A task that
// retention has removed since keeps that state. If it was unfinished then, its last event has its
// state; it needs attention if retention has removed that too.
func (t *Tasks) look(snap *store.Snapshot, session int64, a *Awaited, seen []*Task, began int64) (Result, error) {
	r := Result{Outcome: TimedOut, Revision: snap.Revision()}
	done := 0
	for i := range seen {
		task, err := scan(snap.QueryRow(selectTask, seen[i].Created))
		removed := errors.Is(err, store.ErrNoRows)
		if err != nil && !removed {
			return r, err
		}
		if !removed {
			seen[i] = task
		}
		task = seen[i]
		if removed && !task.State.finished() {
			if err := t.outcome(snap, task); err != nil {
				return r, err
			}
		}
		r.Tasks = append(r.Tasks, task.brief())
		if task.State == Done {
			done++
		}
		if task.alarming(a.After, began) || removed && !task.State.finished() {
			r.Attention = append(r.Attention, task.ID)
		}
	}
	for _, name := range a.Agents {
		completed, _, err := t.Directory.Completed(snap, session, name)
		if err != nil {
			return r, err
		}
		if completed {
			r.Completed = append(r.Completed, name)
			done++
		}
	}
	switch {
	case done == len(seen)+len(a.Agents), a.Any && done > 0:
		r.Outcome, r.Attention = AllDone, nil
	case len(r.Attention) > 0:
		r.Outcome = Attention
	}
	return r, nil
}

// outcome sets the state of a removed task to that of the event of its end, if there is one.
func (t *Tasks) outcome(q store.Querier, task *Task) error {
	happened, err := t.Events.OfTask(q, task.Session, task.ID, mostListed)
	if err != nil {
		return err
	}
	ends := map[string]State{"task.completed": Done, "task.failed": Failed, "task.cancelled": Cancelled}
	for _, e := range happened {
		if state, ok := ends[e.Type]; ok && e.Revision > task.Revision {
			task.State, task.Revision, task.Entered = state, e.Revision, e.Revision
			return nil
		}
	}
	return nil
}

// alarming reports whether a wait for a task ends early: the task has stopped after a revision, or
// was unblocked after the wait began.
func (t *Task) alarming(after, began int64) bool {
	switch t.State {
	case Failed, Cancelled, Blocked:
		return t.Entered > after
	case Claimed:
		if after == 0 {
			after = began
		}
		return t.Unblocked && t.Entered > after
	default:
		return false
	}
}

// mostWalked limits the dependencies that one search for a hopeless wait reads.
const mostWalked = 20_000

// hopeless refuses a wait for tasks of which one depends on a task that the caller holds.
func hopeless(q store.Querier, session int64, agent string, awaited []*Task) error {
	if agent == identity.System {
		return nil
	}
	rows := q.Query(selectHeld, session, agent, 1)
	holds := rows.Next()
	if err := rows.Close(); err != nil || !holds {
		return err
	}
	cause := map[int64]int64{} // of a task: the one that depends on it
	names := map[int64]string{}
	var queue []int64
	for _, task := range awaited {
		k := task.Created
		names[k] = task.ID
		if task.State.held() && task.Holder == agent {
			return errHopeless(agent, []string{task.ID})
		}
		if _, seen := cause[k]; !seen && task.State == Waiting {
			cause[k] = 0
			queue = append(queue, k)
		}
	}
	for i, read := 0, 0; i < len(queue) && read < mostWalked; i++ {
		k := queue[i]
		var found int64
		needs, err := store.Collect(q.Query(selectNeeds, k), scanNeed)
		if err != nil {
			return err
		}
		read += len(needs)
		for _, n := range needs {
			if _, seen := cause[n.key]; seen {
				continue
			}
			cause[n.key], names[n.key] = k, n.id
			if n.state.held() && n.holder == agent {
				found = n.key
			}
			if n.state == Waiting {
				queue = append(queue, n.key)
			}
		}
		if found != 0 {
			var path []string
			for at := found; at != 0; at = cause[at] {
				path = append(path, names[at])
			}
			slices.Reverse(path)
			return errHopeless(agent, path)
		}
	}
	return nil
}

// An unmet is a dependency that is not DONE.
type unmet struct {
	key        int64
	id, holder string
	state      State
}

func scanNeed(r *store.Rows) (n unmet, err error) {
	var state int
	err = r.Scan(&n.key, &n.id, &state, &n.holder)
	n.state = State(state)
	return n, err
}

func errHopeless(agent string, path []string) error {
	says := "you hold task " + path[0]
	if len(path) > 1 {
		says = fmt.Sprintf("task %s depends on task %s, which you hold: %s", path[0], path[len(path)-1], strings.Join(path, " → "))
	}
	return fault.New(fault.Precondition, "WOULD_WAIT_FOREVER", "%s would wait for its own work: %s. Complete or release that task first", agent, says)
}
