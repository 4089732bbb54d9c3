package tasks

import (
	"slices"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A queue has the READY tasks that the same agents may claim.
type queue struct {
	id           int64
	assignee     string
	role         string
	capabilities []string // sorted
}

// serves reports whether an agent may claim the tasks of a queue.
func (k *queue) serves(a work.Agent) bool {
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
func serves(task *Task, a work.Agent) bool {
	k := queue{assignee: task.Assignee, role: task.Role, capabilities: task.Capabilities}
	return k.serves(a)
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

// readQueues reads the queues of a session.
func readQueues(q store.Querier, session int64) ([]queue, error) {
	var all []queue
	rows := q.Query(selectQueues, session)
	defer rows.Close()
	for rows.Next() {
		var k queue
		var capabilities string
		if err := rows.Scan(&k.id, &k.assignee, &k.role, &capabilities); err != nil {
			return nil, err
		}
		if err := fromJSON(capabilities, &k.capabilities); err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, rows.Err()
}

// sessionQueues returns the queues of the session; the writer keeps them in memory.
func (u *taskTx) sessionQueues() ([]queue, error) {
	if known, ok := u.queues[u.session.ID]; ok {
		return known, nil
	}
	all, err := readQueues(u.tx, u.session.ID)
	if err == nil {
		u.queues[u.session.ID] = all
		u.tx.OnUndo(func() { delete(u.queues, u.session.ID) })
	}
	return all, err
}

// queueFor returns the queue of a task. It exists afterwards.
func (u *taskTx) queueFor(task *Task) (int64, error) {
	all, err := u.sessionQueues()
	if err != nil {
		return 0, err
	}
	for i := range all {
		k := &all[i]
		if k.assignee == task.Assignee && k.role == task.Role && slices.Equal(k.capabilities, task.Capabilities) {
			return k.id, nil
		}
	}
	k := queue{id: u.tx.NextRevision(), assignee: task.Assignee, role: task.Role, capabilities: task.Capabilities}
	capabilities, _ := toJSON(len(k.capabilities), k.capabilities).(string)
	if _, err := u.tx.Exec(insertQueue, k.id, u.session.ID, k.assignee, k.role, capabilities); err != nil {
		return 0, err
	}
	u.queues[u.session.ID] = append(slices.Clip(all), k)
	u.tx.OnUndo(func() { delete(u.queues, u.session.ID) })
	return k.id, nil
}

// first returns the first READY tasks of the queues that serve an agent, at most limit, with all the
// given labels: those that its claims would get, in order.
func first(q store.Querier, queues []queue, a work.Agent, labels map[string]string, limit int) ([]*Task, error) {
	var found []*Task
	for i := range queues {
		if !queues[i].serves(a) {
			continue
		}
		some, err := head(q, queues[i].id, labels, limit)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b *Task) int {
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		return int(a.Created - b.Created)
	})
	return found[:min(len(found), limit)], nil
}

// head returns the first tasks of a queue with all the given labels. Without labels it reads no
// others.
func head(q store.Querier, queue int64, labels map[string]string, limit int) ([]*Task, error) {
	page := limit
	if len(labels) > 0 {
		page = max(limit, 100)
	}
	var found []*Task
	rank, created := -1, int64(0)
	for {
		some, err := scanAll(q.Query(selectReady, queue, rank, created, page))
		if err != nil {
			return nil, err
		}
		for _, task := range some {
			if labelled(task, labels) {
				if found = append(found, task); len(found) == limit {
					return found, nil
				}
			}
		}
		if len(some) < page {
			return found, nil
		}
		last := some[len(some)-1]
		rank, created = 10-last.Priority, last.Created
	}
}
