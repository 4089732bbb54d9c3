package votes

import (
	"fmt"

	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// AgentGone removes a deregistered agent from the electorates of open votes. A vote closes if every
// remaining elector has voted. It is a hook of the deregistration.
func (v *Votes) AgentGone(tx *store.Tx, session int64, agent string) error {
	found, err := all(tx, selectOfElector, agent, session)
	if err != nil {
		return fmt.Errorf("leave electorates: %w", err)
	}
	for i := range found {
		t := &change{Votes: v, tx: tx, session: session, actor: work.Agent{Name: agent}, gone: agent}
		if err := t.leave(&found[i]); err != nil {
			return fmt.Errorf("leave the electorate of vote %s: %w", found[i].ID(), err)
		}
	}
	return nil
}

func (t *change) leave(v *Vote) error {
	b, err := t.ballot(v)
	if err != nil {
		return err
	}
	voted := !b.CastAt.IsZero()
	if !voted {
		v.Electors--
		if err := t.withdraw(v); err != nil {
			return err
		}
	}
	line := summary(t.actor.Name, "left the electorate of", v)
	if v.Revision, err = t.append(leftEvent, v, line, map[string]any{"voted": voted}); err != nil {
		return err
	}
	if _, err := t.tx.Exec(updateDeparted, v.Key, t.actor.Name); err != nil {
		return err
	}
	return t.settle(v)
}

// SessionClosed closes the open votes of a session. It is a hook of the session.
func (v *Votes) SessionClosed(tx *store.Tx, session int64) error {
	open, err := all(tx, selectOpen, session)
	if err != nil {
		return fmt.Errorf("close votes: %w", err)
	}
	for i := range open {
		t := &change{Votes: v, tx: tx, session: session}
		if err := t.close(&open[i], SessionClosed, ""); err != nil {
			return fmt.Errorf("close vote %s: %w", open[i].ID(), err)
		}
	}
	return nil
}

// Items returns the open votes in which an agent has yet to vote, and those that it has opened, at
// most limit, oldest first.
func (v *Votes) Items(q store.Querier, session int64, a work.Agent, limit int) ([]work.Item, error) {
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
