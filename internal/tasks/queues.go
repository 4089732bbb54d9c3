package tasks

import (
	"errors"
	"iter"
	"slices"
	"strconv"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
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

// queues are the queues of all sessions, and the numbers of their unfinished tasks. The writer alone uses them.
type queues struct {
	*table
	bySession  store.Memory[int64, *sessionQueues] // once read
	unfinished store.Memory[int64, int]            // tasks, by session; start reads them
}

// queueOf returns the key of the queue of a task.
func queueOf(t *task) queueKey {
	capabilities, _ := toJSON(len(t.Capabilities), t.Capabilities).(string)
	return queueKey{t.Assignee, t.Role, capabilities}
}

// serves reports whether an agent may claim the tasks of a queue.
func (k *queue) serves(a directory.Agent) bool {
	return (k.assignee == "" || k.assignee == a.Name) && (k.role == "" || k.role == a.Role) &&
		contains(a.Capabilities, k.capabilities)
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
func serves(t *task, a directory.Agent) bool {
	k := queue{assignee: t.Assignee, role: t.Role, capabilities: t.Capabilities}
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
func labelled(t *pb.Task, labels map[string]string) bool {
	for k, v := range labels {
		if has, ok := t.Labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// readQueues reads the queues of a session, without those for which skip reports that their damage
// stops no other.
func readQueues(
	q store.Querier, session int64, skip func(key int64, err error) bool,
) (map[queueKey]queue, error) {
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

// start counts the unfinished tasks of all sessions.
func (k *queues) start(tx *store.Tx) error {
	rows := tx.Query(countUnfinished)
	defer rows.Close()
	for rows.Next() {
		var session int64
		var n int
		if err := rows.Scan(&session, &n); err != nil {
			return err
		}
		k.unfinished.Set(tx, session, n)
	}
	return rows.Close()
}

// count counts the unfinished tasks of the session.
func (k *queues) count(tx *work.Tx, n int) {
	k.unfinished.Set(tx.Tx, tx.Session.ID, k.unfinished.Get(tx.Session.ID)+n)
}

// capacity refuses more unfinished tasks than a session can have.
func (k *queues) capacity(tx *work.Tx, more int) error {
	n := k.unfinished.Get(tx.Session.ID)
	if n+more <= mostUnfinished {
		return nil
	}
	e := fault.New(fault.Exhausted, "TOO_MANY_TASKS",
		"the session has %d unfinished tasks, and at most %d are allowed: complete or cancel some first", n, mostUnfinished)
	e.RetryAfter = time.Second
	return e.With("limit", strconv.Itoa(mostUnfinished))
}

// known returns the queues of the session, which it reads if the writer does not have them in memory.
func (k *queues) known(tx *work.Tx) (*sessionQueues, error) {
	if known, ok := k.bySession.Find(tx.Session.ID); ok {
		return known, nil
	}
	skip := func(key int64, err error) bool { return k.skip("queue of tasks", key, err) }
	read, err := readQueues(tx, tx.Session.ID, skip)
	if err != nil {
		return nil, err
	}
	all := &sessionQueues{}
	for key, q := range read {
		all.Set(tx.Tx, key, q)
	}
	k.bySession.Set(tx.Tx, tx.Session.ID, all)
	return all, nil
}

// enter sets the queue of a task. The queue exists afterwards.
func (k *queues) enter(tx *work.Tx, t *task) error {
	all, err := k.known(tx)
	if err != nil {
		return err
	}
	key := queueOf(t)
	q, ok := all.Find(key)
	if !ok {
		q = queue{id: tx.NextRevision(), assignee: t.Assignee, role: t.Role, capabilities: t.Capabilities}
		tx.Exec(insertQueue, q.id, tx.Session.ID, key.assignee, key.role, key.capabilities)
		all.Set(tx.Tx, key, q)
	}
	t.queue = q.id
	return nil
}

// within makes a change that may add a queue, unless it adds one beyond the limit. Errors:
// fault.Exhausted (TOO_MANY_QUEUES).
func (k *queues) within(tx *work.Tx, change func() error) error {
	all, err := k.known(tx)
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

// leave removes a queue that a task has left, if it was the last unfinished one.
func (k *queues) leave(tx *work.Tx, id int64, key queueKey) error {
	err := tx.QueryRow(existsInQueue, id).Scan(new(int))
	if !errors.Is(err, store.ErrNoRows) {
		return err
	}
	all, err := k.known(tx)
	if err != nil {
		return err
	}
	tx.Exec(deleteQueue, id)
	if q, ok := all.Find(key); ok && q.id == id {
		all.Delete(tx.Tx, key)
	}
	return nil
}

// move puts a task into the queue of its present assignee. former is the key of its queue before. A caller that can
// refuse the change calls it within the limit.
func (k *queues) move(tx *work.Tx, t *task, former queueKey) error {
	left := t.queue
	if err := k.enter(tx, t); err != nil {
		return err
	}
	tx.Exec(updateAssignee, orNull(t.Assignee), t.queue, t.CreatedRevision)
	t.relabel(tx.Tx)
	if t.queue == left {
		return nil
	}
	return k.leave(tx, left, former)
}

// relabel stores the labels of a task that a claim can take now, in its queue and with its rank, and
// removes those of another.
func (t *task) relabel(tx *store.Tx) {
	if t.indexed {
		t.indexed = false
		tx.Exec(deleteLabels, t.CreatedRevision)
	}
	if !t.claimable() {
		return
	}
	for name, value := range t.Labels {
		t.indexed = true
		tx.Exec(insertLabel, t.queue, name, value, t.rank(), t.CreatedRevision)
	}
}

// rank is the order in which claims take the tasks of a queue: the lowest first.
func (t *task) rank() int32 { return 10 - t.Priority }
