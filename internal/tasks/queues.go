package tasks

import (
	"errors"
	"iter"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A queue has the unfinished tasks that the same agents may claim.
type queue struct {
	id           int64
	assignee     string
	role         string
	capabilities []string // sorted
}

// A queueKey tells the queues of a session apart.
type queueKey struct{ assignee, role, capabilities string }

// sessionQueues are the queues of one session in the memory of the writer. They are a Memory of their own because a
// session can have many, of which a function changes few.
type sessionQueues = store.Memory[queueKey, queue]

// queueOf returns the key of the queue of a task.
func queueOf(task *Task) queueKey {
	capabilities, _ := toJSON(len(task.Capabilities), task.Capabilities).(string)
	return queueKey{task.Assignee, task.Role, capabilities}
}

// serves reports whether an agent may claim the tasks of a queue.
func (k *queue) serves(a directory.Agent) bool {
	return (k.assignee == "" || k.assignee == a.Name) && (k.role == "" || k.role == a.Role) && contains(a.Capabilities, k.capabilities)
}

// contains reports whether a sorted list has all elements of another.
func contains(all, some []string) bool {
	for _, s := range some {
		if _, found := slices.BinarySearch(all, s); !found {
			return false
		}
	}
	return true
}

// serves reports whether an agent may claim a task.
func serves(task *Task, a directory.Agent) bool {
	k := queue{assignee: task.Assignee, role: task.Role, capabilities: task.Capabilities}
	return k.serves(a)
}

// serving returns the ids of the queues that serve an agent, the oldest first.
func serving(queues iter.Seq2[queueKey, queue], a directory.Agent) []int64 {
	var ids []int64
	for _, k := range queues {
		if k.serves(a) {
			ids = append(ids, k.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// labelled reports whether a task has all the given labels.
func labelled(task *Task, labels map[string]string) bool {
	for k, v := range labels {
		if has, ok := task.Labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// readQueues reads the queues of a session, without those for which skip reports that their damage
// stops no other.
func readQueues(q store.Querier, session int64, skip func(key int64, err error) bool) (map[queueKey]queue, error) {
	all := map[queueKey]queue{}
	rows := q.Query(selectQueues, session)
	defer rows.Close()
	for rows.Next() {
		var k queue
		var capabilities string
		if err := rows.Scan(&k.id, &k.assignee, &k.role, &capabilities); err != nil {
			return nil, err
		}
		if err := fromJSON(capabilities, &k.capabilities); err != nil {
			if skip(k.id, err) {
				continue
			}
			return nil, err
		}
		all[queueKey{k.assignee, k.role, capabilities}] = k
	}
	return all, rows.Err()
}

// knownQueues returns the queues of the session, which it reads if the writer does not have them in memory.
func (u *taskTx) knownQueues() (*sessionQueues, error) {
	if known, ok := u.queues.Find(u.Session.ID); ok {
		return known, nil
	}
	skip := func(key int64, err error) bool { return u.skip("queue of tasks", key, err) }
	read, err := readQueues(u.Tx, u.Session.ID, skip)
	if err != nil {
		return nil, err
	}
	all := &sessionQueues{}
	for key, k := range read {
		all.Set(u.Tx.Tx, key, k)
	}
	u.queues.Set(u.Tx.Tx, u.Session.ID, all)
	return all, nil
}

// queueFor returns the queue of a task. It exists afterwards.
func (u *taskTx) queueFor(task *Task) (int64, error) {
	all, err := u.knownQueues()
	if err != nil {
		return 0, err
	}
	key := queueOf(task)
	if k, ok := all.Find(key); ok {
		return k.id, nil
	}
	k := queue{id: u.NextRevision(), assignee: task.Assignee, role: task.Role, capabilities: task.Capabilities}
	u.Exec(insertQueue, k.id, u.Session.ID, key.assignee, key.role, key.capabilities)
	all.Set(u.Tx.Tx, key, k)
	return k.id, nil
}

// withinQueues makes a change that may add a queue, unless it adds one beyond the limit. Errors:
// fault.Exhausted (TOO_MANY_QUEUES).
func (u *taskTx) withinQueues(change func() error) error {
	all, err := u.knownQueues()
	if err != nil {
		return err
	}
	before := all.Len()
	if err := change(); err != nil || all.Len() <= max(before, mostQueues) {
		return err
	}
	e := fault.New(fault.Exhausted, "TOO_MANY_QUEUES",
		"the unfinished tasks of the session would have %d different combinations of assignee, role and "+
			"capabilities, and at most %d are allowed: complete or cancel some tasks first", all.Len(), mostQueues)
	e.RetryAfter = time.Second
	return e.With("limit", strconv.Itoa(mostQueues))
}

// leaveQueue removes a queue that a task has left, if it was the last unfinished one.
func (u *taskTx) leaveQueue(id int64, key queueKey) error {
	err := u.QueryRow(existsInQueue, id).Scan(new(int))
	if !errors.Is(err, store.ErrNoRows) {
		return err
	}
	all, err := u.knownQueues()
	if err != nil {
		return err
	}
	u.Exec(deleteQueue, id)
	if k, ok := all.Find(key); ok && k.id == id {
		all.Delete(u.Tx.Tx, key)
	}
	return nil
}

// moveQueue puts a task into the queue of its present assignee. former is the key of its queue before.
// A caller that can refuse the change calls it within withinQueues.
func (u *taskTx) moveQueue(task *Task, former queueKey) error {
	left := task.queue
	var err error
	if task.queue, err = u.queueFor(task); err != nil {
		return err
	}
	u.Exec(updateAssignee, orNull(task.Assignee), task.queue, task.Created)
	task.relabel(u.Tx.Tx)
	if task.queue == left {
		return nil
	}
	return u.leaveQueue(left, former)
}

// relabel stores the labels of a task that a claim can take now, in its queue and with its rank, and
// removes those of another.
func (t *Task) relabel(tx *store.Tx) {
	if t.indexed {
		t.indexed = false
		tx.Exec(deleteLabels, t.Created)
	}
	if t.State != Ready || !t.DueAt.IsZero() {
		return
	}
	for name, value := range t.Labels {
		t.indexed = true
		tx.Exec(insertLabel, t.queue, name, value, 10-t.Priority, t.Created)
	}
}
