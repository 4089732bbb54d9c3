package app

import (
	"context"
	"slices"

	"brokerd/internal/admin"
	"brokerd/internal/admission"
	"brokerd/internal/artifacts"
	"brokerd/internal/backlog"
	"brokerd/internal/blockers"
	"brokerd/internal/decisions"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/handoffs"
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

// commons counts the locks, keys and work that agents share.
type commons struct {
	state *state.Keys
	work  work.Features
}

// Coordination implements admin.Commons and overview.Sources.
func (c commons) Coordination(q store.Querier, session int64) (n work.Coordination, err error) {
	held, err := locks.Count(q, session)
	if err != nil {
		return n, err
	}
	n.Locks, n.Tokens, n.Tickets = held.Locks, held.Tokens, held.Tickets
	if n.Keys, err = c.state.Count(q, session); err != nil {
		return n, err
	}
	n.Work, err = c.work.Counts(q, session)
	return n, err
}

// tables are those of the features, with the files that belong to them.
type tables struct {
	contents artifacts.Contents // of artifacts; nil = their folder is missing
	hashes   bool               // compare their hashes

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
		votes.Checks(admin.MostProblems), artifacts.Checks(t.contents, admin.MostProblems, t.hashes))
}

// Count implements admin.Tables.
func (tables) Count(q store.Querier) (messages, deliveries int64, err error) {
	return gauges.Totals(q)
}
