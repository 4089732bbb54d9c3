package app

import (
	"context"
	"slices"

	"brokerd/internal/admin"
	"brokerd/internal/admission"
	"brokerd/internal/agents"
	"brokerd/internal/artifacts"
	"brokerd/internal/backlog"
	"brokerd/internal/blockers"
	"brokerd/internal/deadletters"
	"brokerd/internal/decisions"
	"brokerd/internal/diagnose"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/handoffs"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/mail"
	"brokerd/internal/notices"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// post sends the letters and notices of other features, and withdraws them.
type post struct {
	*admission.Control
	*backlog.Chores
	*notices.Sender
}

// agentMail gives the registry of agents the waiting mail of an agent.
type agentMail struct {
	*mail.Mailboxes
	*admission.Control
	*admission.Gates
}

// Claimants implements agents.Mail.
func (agentMail) Claimants(q store.Querier, session int64, name string) (map[string]bool, error) {
	return gauges.Claimants(q, session, name)
}

// census gives the operator the agents.
type census struct{ agents *agents.Registry }

// Head implements admin.Agents.
func (c census) Head(session string) admin.Head {
	pulse := c.agents.Presence.Pulse(session)
	return admin.Head{Agents: pulse.Agents, Late: pulse.Late, Failed: pulse.Failed, Stopped: pulse.Stopped}
}

// Own implements admin.Agents.
func (c census) Own(q store.Querier, who identity.Caller) (admin.Own, error) {
	a, held, err := c.agents.Own(q, who)
	return admin.Own{
		Agent: a.Name, Role: a.Role, Locks: len(held.Locks), Tokens: len(held.Tokens), Tickets: len(held.Tickets),
		Asked: len(held.Asked), ToAnswer: len(held.ToAnswer),
	}, err
}

// commons gives the operator the locks, keys and work that agents share.
type commons struct {
	state *state.Keys
	work  work.Features
}

// Coordination implements admin.Commons.
func (c commons) Coordination(q store.Querier, session int64) (admin.Coordination, error) {
	held, err := locks.Count(q, session)
	if err != nil {
		return admin.Coordination{}, err
	}
	keys, err := c.state.Count(q, session)
	if err != nil {
		return admin.Coordination{}, err
	}
	shared := admin.Coordination{Locks: held.Locks, Tokens: held.Tokens, Tickets: held.Tickets, Keys: keys}
	shared.Work, err = c.work.Counts(q, session)
	return shared, err
}

// fullest is how many mailboxes a status names.
const fullest = 20

// mailboxes gives the operator the contents of mailboxes.
type mailboxes struct{ diagnose *diagnose.Examiner }

// Mail implements admin.Mailboxes.
func (m mailboxes) Mail(q store.Querier, session int64, own *admin.Own) (admin.Mail, error) {
	var agent *directory.Agent
	if own != nil {
		agent = &directory.Agent{Name: own.Agent, Role: own.Role}
	}
	boxes, sum, err := m.diagnose.Status(q, session, agent, fullest)
	if err != nil {
		return admin.Mail{}, err
	}
	found := admin.Mail{Waiting: sum.Waiting, Claimed: sum.Claimed, Dead: sum.Dead}
	for _, box := range boxes {
		found.Fullest = append(found.Fullest,
			admin.Mailbox{Name: box.Mailbox, Waiting: box.Waiting, Claimed: box.Claimed, Dead: box.Dead})
	}
	if own != nil {
		return found, nil
	}
	waiting, err := m.diagnose.Waiting(q, session, []string{identity.System})
	found.Operators = waiting[identity.System]
	return found, err
}

// movers gives the operator waiting deliveries.
type movers struct{ *deadletters.Queue }

// Move implements admin.Post.
func (p movers) Move(ctx context.Context, who identity.Caller, req idempotency.Request, what admin.Move) (admin.Moved, error) {
	done, err := p.Queue.Move(ctx, who, req, deadletters.Move(what))
	return admin.Moved(done), err
}

// tables are those of the features, with the files that belong to them.
type tables struct {
	dir    string // the data folder
	hashes bool   // compare the hashes of artifacts

	sleeping func(ctx context.Context) ([]string, error) // nil unless the broker runs
}

// SleepingMailboxes implements admin.Tables.
func (t tables) SleepingMailboxes(ctx context.Context) ([]string, error) {
	if t.sleeping == nil {
		return nil, nil
	}
	return t.sleeping(ctx)
}

// Checks implements admin.Tables.
func (t tables) Checks() []func(store.Querier) ([]string, error) {
	return slices.Concat([]func(store.Querier) ([]string, error){work.CheckParts},
		events.Checks(admin.MostProblems), gauges.Checks(admin.MostProblems), state.Checks(admin.MostProblems),
		locks.Checks(admin.MostProblems),
		decisions.Checks(admin.MostProblems), blockers.Checks(admin.MostProblems), tasks.Checks(admin.MostProblems),
		handoffs.Checks(admin.MostProblems),
		votes.Checks(admin.MostProblems), artifacts.Checks(t.dir, admin.MostProblems, t.hashes))
}

// Count implements admin.Tables.
func (tables) Count(q store.Querier) (messages, deliveries int64, err error) {
	return gauges.Totals(q)
}
