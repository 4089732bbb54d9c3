package app

import (
	"brokerd/internal/directory"
	"brokerd/internal/gauges"
	"brokerd/internal/store"
)

// connect registers what must happen in one feature, in the same transaction, when something changes in
// another. The hooks of a change run in the order in which they are registered: those of messages, locks
// and state, then the kinds of joint work in the order of parts.work, then tasks. The mailbox of an agent
// that deregisters ends last: the letters that no feature has withdrawn become dead letters.
func connect(p *parts) {
	p.directory.UseFences(p.locks, p.tasks)
	p.admission.OnResumed(p.tasks.AgentResumed)
	p.tasks.UseRelated(gauges.OfTask, p.tasks.EventsOf, p.state.OfTask)
	for _, k := range p.work {
		p.tasks.UseRelated(k.OfTask)
	}
	p.tasks.UseRelated(p.artifacts.OfTask)
	p.tasks.OnDone(p.blockers.TaskDone)

	p.artifacts.UseMentions(
		gauges.ArtifactMentions, p.state.ArtifactMentions, p.tasks.ArtifactMentions, p.decisions.ArtifactMentions,
		p.handoffs.ArtifactMentions)
	p.blockers.UseTasks(p.tasks)
	p.tasks.UseBlockers(p.blockers)
	p.tasks.UseGates(p.admission.Gates)
	p.admission.UseDisk(p.diskguard)
	p.admission.Gates.UseDrains(p.drain)
	p.state.UseDisk(p.diskguard)
	p.locks.UseCrew(p.diagnose)

	p.agents.UseMail(agentMail{p.broker.Mailboxes, p.admission, p.admission.Gates})
	p.agents.UseNotices(p.inbox)
	p.agents.UseHolders(p.inbox, p.locks, p.jobs)
	p.broker.Counters.UseCrew(p.agents.Presence)
	p.locks.UseNotices(post{p.admission, p.backlog, p.notices})
	p.agents.Hooks.AwaitDeparture(p.deadletters.AwaitDeparture, p.tasks.AwaitDeparture)
	p.agents.Hooks.OnRegister(
		p.deadletters.AgentRegistered, p.broker.AgentRegistered, p.admission.AgentRegistered, p.tasks.AgentRegistered)
	p.agents.Hooks.OnCompleted(p.blockers.AgentCompleted, p.tasks.AgentCompleted)
	p.agents.Hooks.OnEnd(
		p.conversations.AgentEnded, p.broker.Failures.AgentEnded, p.locks.AgentEnded, p.blockers.AgentEnded, p.tasks.AgentEnded)
	p.agents.Hooks.OnDeregister(p.locks.AgentGone, p.state.AgentGone)

	p.sessions.OnClosed(
		p.agents.Presence.SessionClosed, p.admission.SessionClosed, p.conversations.SessionClosed, p.backlog.SessionClosed,
		p.locks.SessionClosed, p.state.SessionClosed)
	p.sessions.OnConfigured(p.admission.SessionConfigured, p.backlog.SessionConfigured, p.locks.SessionConfigured)

	for _, k := range p.work {
		p.agents.Hooks.OnDeregister(k.AgentGone)
		p.sessions.OnClosed(k.SessionClosed)
	}
	p.agents.Hooks.OnDeregister(p.tasks.AgentGone)
	p.sessions.OnClosed(p.tasks.SessionClosed)
	p.agents.Hooks.OnDeregister(p.conversations.AgentGone, p.admission.AgentGone, p.deadletters.AgentGone)

	// The keeper runs again when a setting changes on which it depends.
	wake := func(tx *store.Tx, _ directory.Session) error {
		tx.OnCommit(p.retention.Wake)
		return nil
	}
	p.sessions.OnCreated(wake)
	p.sessions.OnConfigured(func(tx *store.Tx, _, now directory.Session) error { return wake(tx, now) })
	p.channels.OnRekept(func(tx *store.Tx) { tx.OnCommit(p.retention.Wake) })
}
