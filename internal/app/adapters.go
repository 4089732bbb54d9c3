package app

import (
	"context"
	"slices"

	"brokerd/internal/admin"
	"brokerd/internal/admission"
	"brokerd/internal/agents"
	"brokerd/internal/artifacts"
	"brokerd/internal/blockers"
	"brokerd/internal/broker"
	"brokerd/internal/deadletters"
	"brokerd/internal/decisions"
	"brokerd/internal/diagnose"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/gauges"
	"brokerd/internal/handoffs"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/inbox"
	"brokerd/internal/locks"
	"brokerd/internal/mail"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// connect registers what must happen in one feature, in the same transaction, when something changes
// in another.
func connect(p *parts) {
	p.agents.UseMail(mailOfAgents{p.admission, p.broker, p.inbox, p.deadletters})
	p.agents.UseNotices(mailOfAgents{p.admission, p.broker, p.inbox, p.deadletters})
	p.broker.Counters.UseCrew(crew{p.directory, p.agents})
	p.agents.UseHolders(claims{p.inbox})
	p.agents.OnRegister(func(tx *store.Tx, a agents.Agent, _ bool) error {
		s, err := p.directory.ByID(tx, a.Session)
		if err != nil {
			return err
		}
		if err := p.deadletters.AgentRegistered(tx, s, a.Entry()); err != nil {
			return err
		}
		if err := p.broker.AgentRegistered(tx, s, a.Entry()); err != nil {
			return err
		}
		return p.admission.AgentRegistered(tx, a.Session, a.Name)
	})
	p.agents.OnEnd(func(tx *store.Tx, a agents.Agent) ([]agents.Loss, error) {
		s, err := p.directory.ByID(tx, a.Session)
		if err != nil {
			return nil, err
		}
		p.conversations.AgentEnded(tx, a.Session, a.Name, a.Stopped())
		claims, err := p.broker.Failures.AgentEnded(tx, s, a.Entry(), a.Stopped())
		losses := make([]agents.Loss, len(claims))
		for i, c := range claims {
			losses[i] = agents.Loss{Kind: agents.LostClaim, Name: c.Text, Revision: c.Revision}
		}
		return losses, err
	})
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error {
		return p.agents.SessionClosed(tx, s.Name)
	})
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error {
		p.admission.SessionClosed(tx, s.Session)
		p.conversations.SessionClosed(tx, s.Session)
		return p.backlog.SessionClosed(tx, s.Session)
	})
	p.sessions.OnConfigured(func(tx *store.Tx, before, now sessions.Session) error {
		if err := p.admission.SessionConfigured(tx, before.Session, now.Session); err != nil {
			return err
		}
		return p.backlog.SessionConfigured(tx, before.Session, now.Session)
	})
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, _ string) error {
		events.EndCursors(tx, a.Session, a.Name)
		return nil
	})
	p.agents.OnRemoved(events.EndCursors) // of an agent that deregistered before the broker did so
	p.events.OnAnnounced(p.notices.Announce)
}

// connectMailboxes ends the mailbox of an agent that deregisters. It comes after the connections of
// all features that withdraw letters to such an agent: the letters that are left become dead letters.
func connectMailboxes(p *parts) {
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, reason string) error {
		s, err := p.directory.ByID(tx, a.Session)
		if err != nil {
			return err
		}
		p.conversations.AgentGone(tx, a.Session, a.Name)
		if err := p.admission.AgentGone(tx, a.Session, a.Name); err != nil {
			return err
		}
		return p.deadletters.AgentGone(tx, s, a.Entry(), reason)
	})
}

// mailOfAgents gives the registry of agents the waiting mail of an agent.
type mailOfAgents struct {
	admission *admission.Control
	broker    *broker.Broker
	inbox     *inbox.Reader
	*deadletters.Queue
}

// Counts implements agents.Mail.
func (m mailOfAgents) Counts(q store.Querier, a agents.Agent) (unread, claimable int64, err error) {
	return m.broker.Mailboxes.Counts(q, a.Session, a.Entry())
}

// Directives implements agents.Mail.
func (m mailOfAgents) Directives(q store.Querier, a agents.Agent) ([]string, error) {
	return m.admission.Directives(q, a.Session, a.Name)
}

// Unread implements agents.Notices.
func (m mailOfAgents) Unread(q store.Querier, a agents.Agent) (bool, error) {
	mailbox, err := m.broker.Mailboxes.Find(q, a.Session, mail.AgentRef(a.Name))
	if err != nil {
		return false, err
	}
	n, err := mail.CountNotices(q, mailbox, "", 1)
	return n > 0, err
}

// Read implements agents.Notices.
func (m mailOfAgents) Read(tx *store.Tx, a agents.Agent) ([]agents.Notice, error) {
	unread, err := m.inbox.ReadNotices(tx, a.Session, a.Entry())
	read := make([]agents.Notice, len(unread))
	for i, n := range unread {
		read[i] = agents.Notice(n)
	}
	return read, err
}

// Claimants implements agents.Mail.
func (m mailOfAgents) Claimants(q store.Querier, session int64, name string) (map[string]bool, error) {
	return gauges.Claimants(q, session, name)
}

// Gated implements agents.Mail.
func (m mailOfAgents) Gated(q store.Querier, session int64) (map[string]agents.Gate, error) {
	gated, err := m.admission.Gates.Gated(q, session)
	gates := make(map[string]agents.Gate, len(gated))
	for name, g := range gated {
		gates[name] = agents.Gate(g)
	}
	return gates, err
}

// crew gives the health of agents, and counts their messages.
type crew struct {
	directory *directory.Directory
	agents    *agents.Registry
}

// Members implements diagnose.Crew.
func (c crew) Members(q store.Querier, session int64) ([]diagnose.Member, error) {
	s, err := c.directory.ByID(q, session)
	if err != nil {
		return nil, err
	}
	found, err := c.agents.Crew(q, session, s.Name)
	members := make([]diagnose.Member, len(found))
	for i, m := range found {
		members[i] = diagnose.Member{LastSeen: m.LastSeen, Agent: directory.Agent{
			Name: m.Name, Role: m.Role, FailedAt: m.FailedAt, StoppedAt: m.StoppedAt,
		}}
		switch {
		case m.Health == agents.Failed:
			members[i].Health = diagnose.Failed
		case !m.StoppedAt.IsZero():
			members[i].Health = diagnose.Stopped
		case m.Health == agents.Late:
			members[i].Health = diagnose.Late
		default:
		}
	}
	return members, err
}

// Registering implements diagnose.Crew.
func (c crew) Registering(q store.Querier, session int64, agent string) (finding.Command, error) {
	return c.agents.Registering(q, session, agent)
}

// Starting implements diagnose.Crew.
func (c crew) Starting(q store.Querier, session int64, agent string) (finding.Command, error) {
	return c.agents.Starting(q, session, agent)
}

// Worked implements broker.Crew.
func (c crew) Worked(session, agent string, sent, received, processed int) {
	c.agents.Worked(session, agent, agents.Messages{
		Sent: int64(sent), Received: int64(received), Processed: int64(processed),
	})
}

// claims gives the registry of agents the claims and questions of an agent.
type claims struct{ inbox *inbox.Reader }

// Holdings implements agents.Holder.
func (c claims) Holdings(q store.Querier, a agents.Agent, to *agents.Holdings) error {
	held, err := c.inbox.Holdings(q, a.Session, a.Entry())
	for _, claim := range held.Claims {
		to.Claims = append(to.Claims, agents.OpenClaim(claim))
	}
	to.Asked, to.ToAnswer = agentQuestions(held.Asked), agentQuestions(held.Owed)
	return err
}

func agentQuestions(list []mail.Question) []agents.OpenQuestion {
	out := make([]agents.OpenQuestion, len(list))
	for i := range list {
		q := &list[i]
		out[i] = agents.OpenQuestion{
			ID: q.ID.String(), Revision: q.Revision, Sender: q.Sender, Subject: q.Subject(),
			Deadline: q.Deadline, Overdue: q.Overdue,
		}
	}
	return out
}

// census gives the operator the agents.
type census struct{ agents *agents.Registry }

// Head implements admin.Agents.
func (c census) Head(session string) admin.Head {
	pulse := c.agents.Pulse(session)
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
	work  workFeatures
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
	shared.Work, err = c.work.counts(q, session)
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

// post gives the operator waiting deliveries.
type post struct{ *deadletters.Queue }

// Move implements admin.Post.
func (p post) Move(ctx context.Context, who identity.Caller, req idempotency.Request, what admin.Move) (admin.Moved, error) {
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

// connectState registers what must happen to the state, in the same transaction, when something changes elsewhere.
func connectState(p *parts) {
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, _ string) error {
		return p.state.AgentGone(tx, a.Session, a.Name)
	})
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error { return p.state.SessionClosed(tx, s.ID) })
}
