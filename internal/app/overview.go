package app

import (
	"cmp"

	"brokerd/internal/admin"
	"brokerd/internal/agents"
	"brokerd/internal/diagnose"
	"brokerd/internal/finding"
	"brokerd/internal/gauges"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/overview"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// overviewSources describe a session.
type overviewSources struct {
	commons
	diagnose   *diagnose.Examiner
	agents     *agents.Registry
	explainers []admin.Explainer
}

// Mail implements overview.Sources.
func (o overviewSources) Mail(q store.Querier, session int64, most int) ([]overview.Mailbox, work.Mailbox, error) {
	boxes, sum, err := o.diagnose.Status(q, session, nil, most)
	if err != nil {
		return nil, sum, err
	}
	ids := []int64{}
	for i := range boxes {
		if boxes[i].Waiting > 0 {
			ids = append(ids, boxes[i].ID)
		}
	}
	oldest, err := gauges.OldestReady(q, ids)
	list := make([]overview.Mailbox, len(boxes))
	for i, box := range boxes {
		list[i] = overview.Mailbox{Mailbox: box, Oldest: oldest[box.ID]}
	}
	return list, sum, err
}

// Agents implements overview.Sources.
func (o overviewSources) Agents(
	q store.Querier, session int64, name string, most int,
) ([]overview.Agent, overview.Crew, error) {
	crew := overview.Crew{Pulse: o.agents.Presence.Pulse(name)}
	claims, err := o.diagnose.Claims(q, session)
	if err != nil {
		return nil, crew, err
	}
	team, err := o.agents.Team(q, session, name, claims, most)
	if err != nil {
		return nil, crew, err
	}
	held, err := locks.Owners(q, session)
	if err != nil {
		return nil, crew, err
	}
	names := make([]string, len(team))
	for i := range team {
		names[i] = team[i].Name
	}
	waiting, err := o.diagnose.Waiting(q, session, append(names, identity.System))
	crew.OperatorMail = waiting[identity.System]
	list := make([]overview.Agent, len(team))
	for i := range team {
		a := &team[i]
		list[i] = overview.Agent{
			Name: a.Name, Role: a.Role, Status: int(a.Status), Health: int(a.Health), State: a.State(), Halted: a.Halted,
			Activity: cmp.Or(a.Activity, a.Presence().Doing()), Claims: claims[a.Name], Locks: held[a.Name], Waiting: waiting[a.Name],
		}
		switch {
		case !a.AsleepSince.IsZero():
			list[i].Silent = a.AsleepSince
		case !a.FailedAt.IsZero() || a.Health == agents.Late:
			list[i].Silent = a.LastSeen
		}
	}
	return list, crew, err
}

// Explain implements overview.Sources.
func (o overviewSources) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	return admin.Explain(q, o.explainers, about)
}
