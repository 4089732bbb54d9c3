package tasks

import (
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Items returns the unfinished tasks that an agent holds or that are assigned to it, oldest first.
func (t *Tasks) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	held, err := scanAll(q.Query(selectHeld, session, a.Name, limit))
	if err != nil {
		return nil, err
	}
	assigned, err := scanAll(q.Query(selectAssigned, session, a.Name, limit))
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for _, task := range held {
		item := task.item(work.Holds)
		item.Commands = []finding.Command{{"task", "complete", task.ID}, {"task", "release", task.ID}}
		if task.State == Blocked {
			item.Commands = []finding.Command{{"task", "unblock", task.ID}, {"task", "release", task.ID}}
		}
		items = append(items, item)
	}
	for _, task := range assigned {
		if task.State == Ready && len(items) < limit {
			item := task.item(work.Owes)
			item.Commands = []finding.Command{{"task", "claim", task.ID}, {"task", "release", task.ID, "--decline", "--reason", "REASON"}}
			items = append(items, item)
		}
	}
	return items, nil
}

func (t *Task) item(r work.Relation) work.Item {
	return work.Item{Kind: Kind, ID: t.ID, Revision: t.Revision, Title: t.Title, State: t.State.String(), Relation: r,
		Other: t.Creator, Due: t.DueAt}
}

// Counts counts the unfinished and the failed tasks of a session by state.
func (t *Tasks) Counts(q store.Querier, session int64) ([]work.Count, error) {
	var all []work.Count
	for _, state := range []State{Waiting, Ready, Claimed, Blocked, Failed} {
		c := work.Count{Kind: Kind, State: state.String()}
		if err := q.QueryRow(countState, session, int64(state), work.MostCounted).Scan(&c.N); err != nil {
			return nil, err
		}
		if c.N > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}
