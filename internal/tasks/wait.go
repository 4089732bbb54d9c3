package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const timedOut = pb.WaitOutcome_WAIT_OUTCOME_TIMEOUT

// A waitCall is one call of WaitTasks.
type waitCall struct {
	*Service
	in      *pb.WaitTasksRequest
	session int64
	began   int64   // revision
	seen    []*task // as the last look found them
	keys    []key
	out     *pb.WaitTasksResponse
}

// wait waits until tasks are DONE and agents have reported completed. It returns early when one of
// the tasks needs attention. Errors: fault.NotFound; fault.Precondition (WOULD_WAIT_FOREVER) if the
// caller holds one of the tasks or a task on which one depends.
func (w *waitCall) wait(ctx context.Context) error {
	if err := w.Store.CheckResume(w.in.GetAfterRevision()); err != nil {
		return err
	}
	if err := w.Read(ctx, func(snap *store.Snapshot, s directory.Session) error { return w.begin(ctx, snap, s) }); err != nil {
		return err
	}
	wait := w.in.GetWait().AsDuration()
	err := w.hub.Await(ctx, wait, w.keys, func() (bool, error) {
		err := w.Store.Read(ctx, w.look)
		return w.out.Outcome != timedOut, err
	})
	if err != nil {
		return err
	}
	select {
	case <-w.stopping:
		if w.out.Outcome == timedOut && wait > 0 {
			return errStopping()
		}
	default:
	}
	return nil
}

// begin finds the tasks and agents.
func (w *waitCall) begin(ctx context.Context, snap *store.Snapshot, s directory.Session) error {
	me, err := w.Directory.Acting(snap, s.ID, identity.FromContext(ctx))
	if err != nil {
		return err
	}
	w.session, w.began, w.seen, w.keys = s.ID, snap.Revision(), nil, nil
	for _, id := range w.in.GetTaskIds() {
		t, err := find(snap, s.ID, id)
		if err != nil {
			return err
		}
		w.seen = append(w.seen, t)
		w.keys = append(w.keys, key{session: s.ID, task: t.CreatedRevision})
	}
	for _, name := range w.in.GetAgents() {
		if err := w.Known(snap, s.ID, name); err != nil {
			return err
		}
		w.keys = append(w.keys, key{session: s.ID, agent: name})
	}
	return hopeless(snap, s.ID, me.Name, w.seen)
}

// look finds out whether the wait has ended. A task that retention has removed since the last look keeps the state
// of then. If it was unfinished, its last event has its state; it needs attention if retention has removed that too.
func (w *waitCall) look(snap *store.Snapshot) error {
	w.out = &pb.WaitTasksResponse{Outcome: timedOut, Revision: snap.Revision()}
	count := 0
	for i := range w.seen {
		t, err := byKey(snap, w.seen[i].CreatedRevision)
		if err != nil {
			return err
		}
		removed := t == nil
		if !removed {
			w.seen[i] = t
		}
		t = w.seen[i]
		if removed && !finished(t.State) {
			if err := w.outcome(snap, t); err != nil {
				return err
			}
		}
		w.out.Tasks = append(w.out.Tasks, t.brief())
		if t.State == done {
			count++
		}
		if t.alarming(w.in.GetAfterRevision(), w.began) || removed && !finished(t.State) {
			w.out.Attention = append(w.out.Attention, t.Id)
		}
	}
	for _, name := range w.in.GetAgents() {
		completed, _, err := w.Directory.Completed(snap, w.session, name)
		if err != nil {
			return err
		}
		if completed {
			w.out.CompletedAgents = append(w.out.CompletedAgents, name)
			count++
		}
	}
	switch {
	case count == len(w.keys), w.in.GetMode() == pb.WaitMode_WAIT_MODE_ANY && count > 0:
		w.out.Outcome, w.out.Attention = pb.WaitOutcome_WAIT_OUTCOME_DONE, nil
	case len(w.out.Attention) > 0:
		w.out.Outcome = pb.WaitOutcome_WAIT_OUTCOME_ATTENTION
	}
	return nil
}

// outcome sets the state of a removed task to that of the event of its end, if there is one.
func (w *waitCall) outcome(q store.Querier, t *task) error {
	happened, err := w.Events.OfTask(q, t.session, t.Id, mostListed)
	if err != nil {
		return err
	}
	ends := map[string]pb.TaskState{"task.completed": done, "task.failed": failed, "task.cancelled": cancelled}
	for _, e := range happened {
		if state, ok := ends[e.Type]; ok && e.Revision > t.Revision {
			t.State, t.Revision, t.entered = state, e.Revision, e.Revision
			return nil
		}
	}
	return nil
}

// alarming reports whether a wait for a task ends early: the task has stopped after a revision, or
// was unblocked after the wait began.
func (t *task) alarming(after, began int64) bool {
	switch t.State {
	case failed, cancelled, blocked:
		return t.entered > after
	case claimed:
		if after == 0 {
			after = began
		}
		return t.unblocked && t.entered > after
	default:
		return false
	}
}

// mostWalked limits the dependencies that one search for a hopeless wait reads.
const mostWalked = 20_000

// hopeless refuses a wait for tasks of which one depends on a task that the caller holds.
func hopeless(q store.Querier, session int64, agent string, awaited []*task) error {
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
	for _, t := range awaited {
		k := t.CreatedRevision
		names[k] = t.Id
		if held(t.State) && t.Holder == agent {
			return errHopeless(agent, []string{t.Id})
		}
		if _, seen := cause[k]; !seen && t.State == waiting {
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
			if held(n.state) && n.holder == agent {
				found = n.key
			}
			if n.state == waiting {
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
	state      pb.TaskState
}

func scanNeed(r *store.Rows) (n unmet, err error) {
	var state int32
	err = r.Scan(&n.key, &n.id, &state, &n.holder)
	n.state = pb.TaskState(state)
	return n, err
}

func errHopeless(agent string, path []string) error {
	says := "you hold task " + path[0]
	if len(path) > 1 {
		says = fmt.Sprintf("task %s depends on task %s, which you hold: %s", path[0], path[len(path)-1],
			strings.Join(path, " → "))
	}
	return fault.New(fault.Precondition, "WOULD_WAIT_FOREVER",
		"%s would wait for its own work: %s. Complete or release that task first", agent, says)
}
