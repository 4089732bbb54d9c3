package app

import (
	"context"
	"slices"

	"brokerd/internal/admin"
	"brokerd/internal/admission"
	"brokerd/internal/agents"
	"brokerd/internal/backlog"
	"brokerd/internal/blockers"
	"brokerd/internal/decisions"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/mail"
	"brokerd/internal/notices"
	"brokerd/internal/retention"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// postOfWork sends the mail of the features of joint work.
type postOfWork struct {
	admission *admission.Control
	backlog   *backlog.Chores
	notices   *notices.Sender
}

// Admit implements work.Post.
func (p postOfWork) Admit(ctx context.Context, c identity.Caller) error {
	return p.admission.Admit(ctx, c, 1)
}

// Post implements work.Post.
func (p postOfWork) Post(tx *store.Tx, session int64, l work.Letter) (int64, error) {
	return p.notices.Post(tx, session, notices.Letter{
		From: directory.Agent{Name: l.From.Name, Role: l.From.Role}, To: l.To, Role: l.Role,
		Type: l.Type, Subject: l.Subject, Body: l.Body, Payload: l.Payload, Task: l.Task, Thread: l.Thread,
		InReplyTo: l.InReplyTo, Priority: l.Priority, Artifacts: l.Artifacts, About: l.About,
	})
}

// Notify implements work.Post.
func (p postOfWork) Notify(tx *store.Tx, session int64, n work.Notice) error {
	return p.notices.Notify(tx, session, mail.Notice(n))
}

// Withdraw implements work.Post.
func (p postOfWork) Withdraw(tx *store.Tx, session int64, m work.Moot) error {
	return p.backlog.Withdraw(tx, session, backlog.Moot(m))
}

// WithdrawSome implements work.Post.
func (p postOfWork) WithdrawSome(tx *store.Tx, session int64, m work.Moot, limit int) (bool, error) {
	return p.backlog.WithdrawSome(tx, session, backlog.Moot(m), limit)
}

// A workFeature knows pieces of work that concern agents.
type workFeature interface {
	// Items returns the unfinished work that concerns an agent, at most limit, oldest first.
	Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error)
	// Counts counts the unfinished work of a session by state, up to work.MostCounted each.
	Counts(q store.Querier, session int64) ([]work.Count, error)
}

// workFeatures are all features of joint work. It implements agents.Holder.
type workFeatures []workFeature

// Holdings implements agents.Holder.
func (w workFeatures) Holdings(q store.Querier, a agents.Agent, to *agents.Holdings) error {
	for _, f := range w {
		items, err := f.Items(q, a.Session, a.Entry(), agents.MostHeld)
		if err != nil {
			return err
		}
		to.Work = slices.Concat(to.Work, items)
	}
	return nil
}

func (w workFeatures) counts(q store.Querier, session int64) ([]work.Count, error) {
	var all []work.Count
	for _, f := range w {
		some, err := f.Counts(q, session)
		if err != nil {
			return nil, err
		}
		all = slices.Concat(all, some)
	}
	return all, nil
}

// byKey removes finished work of a kind by its keys: it does not change after it has finished, or the
// removal itself checks that it still is.
func byKey(remove func(tx *store.Tx, session int64, keys []int64) error) func(*store.Tx, int64, []work.Done) error {
	return func(tx *store.Tx, session int64, done []work.Done) error {
		keys := make([]int64, len(done))
		for i, d := range done {
			keys[i] = d.Key
		}
		return remove(tx, session, keys)
	}
}

// A workKind is a kind of joint work that work.Table keeps.
type workKind interface {
	workFeature
	ofTask
	closer
	retention.Work
	admin.Explainer
	// Plural names the kind, such as votes.
	Plural() string
	Start()
	Stop()
	Drain()
	// AgentGone and SessionClosed end work when an agent deregisters, and when a session closes.
	AgentGone(tx *store.Tx, session int64, agent string) error
	SessionClosed(tx *store.Tx, session int64) error
}

// connectWork registers what happens to a kind of work when an agent deregisters, and when a session closes.
func connectWork(p *parts, k workKind) {
	p.agents.OnDeregister(func(tx *store.Tx, a agents.Agent, _ string) error { return k.AgentGone(tx, a.Session, a.Name) })
	p.sessions.OnClosed(func(tx *store.Tx, s sessions.Session) error { return k.SessionClosed(tx, s.ID) })
}

// partsOfWork are what a session has of joint work.
func partsOfWork(p *parts) (list []retention.Part) {
	for _, k := range p.work {
		list = append(list, retention.WorkPart(k.Plural(), k))
	}
	tasks := retention.WorkPart("tasks", p.tasks)
	tasks.Forget = p.tasks.Forget
	return append(list, tasks)
}

// connectBlockers registers what happens to blockers when an agent completes or ends.
func connectBlockers(p *parts) {
	p.agents.OnCompleted(func(tx *store.Tx, a agents.Agent) error {
		return p.blockers.AgentCompleted(tx, a.Session, a.Name)
	})
	p.agents.OnEnd(func(tx *store.Tx, a agents.Agent) ([]agents.Loss, error) {
		return nil, p.blockers.AgentEnded(tx, a.Session, a.Name)
	})
	connectWork(p, p.blockers)
}

// handoffLocks moves locks and tokens with handoffs.
type handoffLocks struct{ locks *locks.Table }

// Find implements handoffs.Locks.
func (l handoffLocks) Find(
	q store.Querier, session int64, agent string, fence int64,
) (name string, token, found bool, err error) {
	held, found, err := locks.FindGrant(q, session, agent, fence)
	return held.Name, held.Kind == locks.Token, found, err
}

// Transfer implements handoffs.Locks.
func (l handoffLocks) Transfer(
	tx *store.Tx, session, fence int64, from string, to directory.Agent, why string,
) (int64, error) {
	return l.locks.Transfer(tx, session, fence, from, to, why)
}

// reports makes and resolves the blockers that published events are about.
type reports struct{ blockers *blockers.Service }

// Report implements events.Blockers.
func (r reports) Report(tx *store.Tx, c identity.Caller, o events.Obstacle) (string, error) {
	if o.Over {
		return r.blockers.ResolveReported(tx, c, o.ID, o.Task, o.Resolution)
	}
	return r.blockers.RaiseReported(tx, c, blockers.Report{
		Reason: o.Reason, Task: o.Task, Severity: o.Severity, Awaited: o.Awaited,
	})
}

// reviewTokens passes the tokens of reviews.
type reviewTokens struct{ locks *locks.Table }

// Pass implements decisions.Tokens.
func (t reviewTokens) Pass(tx *store.Tx, session int64, p decisions.TokenPass) (int64, bool, error) {
	return t.locks.Hand(tx, session, locks.Handover{
		Token: decisions.TokenType + "/" + p.Scope, Fence: p.Fence, From: p.From, Agent: p.Agent, Role: p.Role, Note: p.Note,
	})
}
