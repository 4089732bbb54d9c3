package app

import (
	"strings"

	"brokerd/internal/agents"
	"brokerd/internal/backlog"
	"brokerd/internal/locks"
	"brokerd/internal/mail"
	"brokerd/internal/notices"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// connectLocks registers what happens to locks and tokens when something else changes, and what depends on them.
func connectLocks(p *parts) {
	p.directory.UseFences(p.locks)
	p.agents.UseHolders(locked{p.locks})
	p.locks.UseNotices(lockNotices{p.backlog, p.notices})
	p.agents.OnEnd(func(tx *store.Tx, a agents.Agent) ([]agents.Loss, error) {
		end := locks.Failed
		if a.Stopped() {
			end = locks.Stopped
		}
		lost, err := p.locks.AgentEnded(tx, a.Session, a.Name, end)
		losses := make([]agents.Loss, len(lost))
		for i, l := range lost {
			losses[i] = agents.Loss{Kind: lossKind(l), Name: l.Name, Revision: l.Revision}
		}
		return losses, err
	})
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, _ string) error {
		if _, err := p.locks.AgentEnded(tx, a.Session, a.Name, locks.Deregistered); err != nil {
			return err
		}
		locks.AgentGone(tx, a.Session, a.Name)
		return nil
	})
	p.sessions.OnConfigured(func(tx *store.Tx, before, now sessions.Session) error {
		if before.Settings.GetFoldCase() == now.Settings.GetFoldCase() {
			return nil
		}
		return p.locks.CaseChanged(tx, now.ID)
	})
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error {
		return p.locks.SessionClosed(tx, s.ID, s.Name)
	})
}

func lossKind(l locks.Loss) agents.LossKind {
	switch {
	case l.Ticket:
		return agents.LostTicket
	case l.Kind == locks.Token:
		return agents.LostToken
	}
	return agents.LostLock
}

// locked gives the registry of agents the locks and tokens of an agent.
type locked struct{ locks *locks.Table }

// Holdings implements agents.Holder.
func (l locked) Holdings(q store.Querier, a agents.Agent, to *agents.Holdings) error {
	held, waiting, err := l.locks.Holdings(q, a.Session, a.Name, agents.MostHeld)
	for _, h := range held {
		if h.Kind == locks.Token {
			kind, scope, _ := strings.Cut(h.Names[0], "/")
			to.Tokens = append(to.Tokens,
				agents.HeldToken{Type: kind, Scope: scope, Holder: h.Owner.Holder, Fence: h.Fence, HeldUntil: h.HeldUntil})
			continue
		}
		to.Locks = append(to.Locks,
			agents.HeldLock{Paths: h.Names, Holder: h.Owner.Holder, Fence: h.Fence, Shared: h.Mode == locks.Shared, HeldUntil: h.HeldUntil})
	}
	for _, p := range waiting {
		to.Tickets = append(to.Tickets, agents.WaitingTicket{
			Ticket: p.Ticket, Resources: p.Names, Token: p.Kind == locks.Token, Position: p.Position, CreatedAt: p.CreatedAt,
		})
	}
	return err
}

// lockNotices sends the notices of the table of locks.
type lockNotices struct {
	backlog *backlog.Chores
	notices *notices.Sender
}

// Notify implements locks.Notices.
func (n lockNotices) Notify(tx *store.Tx, session int64, notice locks.Notice) error {
	return n.notices.Notify(tx, session, mail.Notice{
		Agent: notice.Agent, Role: notice.Role, Type: notice.Type, Subject: notice.Subject, Payload: notice.Payload,
		About: notice.About,
	})
}

// Withdraw implements locks.Notices.
func (n lockNotices) Withdraw(tx *store.Tx, session, about int64, kind string) error {
	return n.backlog.Withdraw(tx, session, backlog.Moot{About: about, Type: kind})
}
