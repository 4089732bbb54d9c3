package votes

import (
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Items returns the open votes in which an agent has yet to vote, and those that it has opened, at
// most limit, oldest first.
func (v *Votes) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	owed, err := all(q, selectOwed, a.Name, session, limit)
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for i := range owed {
		item := owed[i].item(work.Owes)
		item.Other = owed[i].Opener
		item.Commands = []finding.Command{{"vote", "cast", item.ID, "OPTION"}, {"vote", "get", item.ID}}
		items = append(items, item)
	}
	opened, err := all(q, selectOpened, session, a.Name, limit-len(items))
	for i := range opened {
		item := opened[i].item(work.Opened)
		item.Commands = []finding.Command{{"vote", "get", item.ID, "--wait", "10m"}, {"vote", "close", item.ID}}
		items = append(items, item)
	}
	return items, err
}

// OfTask returns the newest votes that name a task, at most limit.
func (v *Votes) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	found, err := all(q, selectOfTask, session, task, limit)
	items := make([]work.Item, len(found))
	for i := range found {
		items[i] = found[i].item(0)
		if !found[i].ClosedAt.IsZero() {
			items[i].State = "closed"
		}
	}
	return items, err
}

func (v *Vote) item(r work.Relation) work.Item {
	return work.Item{
		Kind: kind, ID: v.ID(), Revision: v.Revision, Title: v.Title, State: "open", Relation: r, Due: v.Deadline,
	}
}

// Counts counts the open votes of a session.
func (v *Votes) Counts(q store.Querier, session int64) ([]work.Count, error) {
	n := work.Count{Kind: kind, State: "open"}
	if err := q.QueryRow(countOpen, session).Scan(&n.N); err != nil || n.N == 0 {
		return nil, err
	}
	return []work.Count{n}, nil
}
