package app

import (
	"strconv"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// connectTasks registers what happens to tasks when something else changes, and what depends on them.
func connectTasks(p *parts) {
	p.directory.UseFences(p.tasks)
	p.agents.UseDeparture(p.tasks.AwaitDeparture)
	p.tasks.UseGates(p.admission.Gates)
	p.agents.OnRegister(func(tx *store.Tx, a agents.Agent, _ bool) error {
		return p.tasks.AgentRegistered(tx, a.Session, a.Entry())
	})
	p.agents.OnEnd(func(tx *store.Tx, a agents.Agent) ([]agents.Loss, error) {
		lost, err := p.tasks.AgentEnded(tx, a.Session, a.Name, a.Stopped())
		losses := make([]agents.Loss, len(lost))
		for i, l := range lost {
			losses[i] = agents.Loss{Kind: agents.LostTask, Name: l.ID, Revision: l.Fence}
		}
		return losses, err
	})
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, _ string) error {
		return p.tasks.AgentGone(tx, a.Session, a.Name)
	})
	p.agents.OnCompleted(func(tx *store.Tx, a agents.Agent) error {
		p.tasks.AgentCompleted(tx, a.Session, a.Name)
		return nil
	})
	p.admission.OnResumed(p.tasks.AgentResumed)
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error { return p.tasks.SessionClosed(tx, s.ID) })
}

// carriers find what carries the id of a task.
type carriers struct {
	events *events.Log
	state  *state.Keys
}

// Related implements tasks.Related.
func (c carriers) Related(q store.Querier, session int64, task string, limit int) ([]*pb.TaskReference, error) {
	var found []*pb.TaskReference
	mail, err := gauges.OfTask(q, session, task, limit)
	if err != nil {
		return nil, err
	}
	for _, m := range mail {
		title := m.Subject
		if title == "" {
			title = m.Type
		}
		found = append(found, &pb.TaskReference{Kind: "message", Id: m.ID, Title: title, Revision: m.Revision})
	}
	happened, err := c.events.OfTask(q, session, task, limit)
	if err != nil {
		return nil, err
	}
	for _, e := range happened {
		found = append(found, &pb.TaskReference{Kind: "event", Id: strconv.FormatInt(e.Revision, 10), Title: e.Type, Revision: e.Revision})
	}
	keys, err := c.state.OfTask(q, session, task, limit)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		found = append(found, &pb.TaskReference{Kind: "state", Id: k.String(), Title: k.String(), Revision: k.Revision})
	}
	return found, nil
}

// An ofTask finds the work of one kind that names a task, the newest first.
type ofTask interface {
	OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error)
}

// workOfTasks gives the tasks the work of other kinds.
type workOfTasks struct{ feature ofTask }

// Related implements tasks.Related.
func (w workOfTasks) Related(q store.Querier, session int64, task string, limit int) ([]*pb.TaskReference, error) {
	items, err := w.feature.OfTask(q, session, task, limit)
	found := make([]*pb.TaskReference, len(items))
	for i, item := range items {
		found[i] = &pb.TaskReference{Kind: item.Kind, Id: item.ID, Title: item.Title, Revision: item.Revision}
	}
	return found, err
}
