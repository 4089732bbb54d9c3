package decisions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// mostUnfinished is how many unfinished decisions a session has at most.
const mostUnfinished = 1000

// An Opening describes a decision to open.
type Opening struct {
	Kind        Kind
	Agent       string // the addressee, or
	Role        string
	Title       string
	Scope       string
	Content     Content
	Task        string
	Thread      string
	Verdicts    []string // of Custom
	Deadline    time.Time
	MaxRounds   int
	PassToken   bool
	MessageType string // of Custom
	OutcomeType string // of Custom
}

// Open opens a decision. It returns it without its content. Errors: fault.NotFound for an addressee
// that is not registered; fault.Denied for a shutdown by an agent that may not send directives;
// fault.Exists if an unfinished decision has the kind and scope; fault.Precondition if the caller
// does not hold the token to pass; fault.Exhausted at the limits of the session.
func (t *Table) Open(ctx context.Context, c identity.Caller, req idempotency.Request, o Opening) (Decision, error) {
	var out Settled
	err := t.Post.Admit(ctx, c)
	if err == nil {
		err = t.change(ctx, c, req, &out, func(u *decisionTx) (err error) {
			out.Decision, err = u.open(o)
			return err
		})
	}
	if err != nil {
		return Decision{}, fmt.Errorf("open decision: %w", err)
	}
	return out.Decision, nil
}

func (u *decisionTx) open(o Opening) (Decision, error) {
	if err := u.admit(&o); err != nil {
		return Decision{}, err
	}
	d := Decision{
		Session: u.session.ID, Kind: o.Kind, State: Open, OpenedBy: u.by(), Agent: o.Agent, Role: o.Role, Title: o.Title, Scope: o.Scope,
		Task: o.Task, Thread: o.Thread, Content: o.Content, Verdicts: o.Kind.verdicts(), Round: 1, MaxRounds: o.MaxRounds,
		Deadline: o.Deadline, PassToken: o.PassToken,
	}
	d.MessageType, d.OutcomeType = o.Kind.letter(), o.Kind.outcome()
	if d.Kind == Custom {
		d.Verdicts, d.MessageType, d.OutcomeType = o.Verdicts, cmp.Or(o.MessageType, "request"), cmp.Or(o.OutcomeType, "response")
	}
	if d.Title == "" {
		d.Title = cmp.Or(d.Scope, d.Kind.String()+" by "+d.OpenedBy)
	}
	err := u.append(&d, "decision.opened", nil, fmt.Sprintf("%s asks %s to decide: %s", d.OpenedBy, d.addressee(), d.Title))
	if err != nil {
		return Decision{}, err
	}
	d.Thread = cmp.Or(d.Thread, d.Name())
	if err := u.handOver(&d); err != nil {
		return Decision{}, err
	}
	if err := d.insert(u.tx); err != nil {
		return Decision{}, fmt.Errorf("store decision: %w", err)
	}
	u.calendar.Expect(u.tx, d.Deadline)
	return d, u.submit(&d)
}

// admit checks what only the transaction can.
func (u *decisionTx) admit(o *Opening) error {
	if o.Kind == Shutdown && !u.actor.Directs(u.session) {
		who := "operators"
		if len(u.session.Directors) > 0 {
			who += " and agents with the role " + strings.Join(u.session.Directors, " or ")
		}
		return fault.New(fault.Denied, "NOT_A_DIRECTOR", "%s has the role %q; only %s may open shutdowns (session setting directors)",
			u.by(), u.actor.Role, who)
	}
	if err := u.reach(o.Agent, o.Role); err != nil {
		return err
	}
	if err := checkAhead("deadline", o.Deadline, u.tx.Now()); err != nil {
		return err
	}
	var unfinished int64
	if o.Scope != "" {
		err := u.tx.QueryRow(selectScope, u.session.ID, int(o.Kind), o.Scope).Scan(&unfinished)
		if err == nil {
			name := work.ID(idLetter, unfinished)
			return fault.New(fault.Exists, "DECISION_UNFINISHED",
				"the session has an unfinished %s of %q, %s: wait for it, cancel it, or choose another scope", o.Kind, o.Scope, name).
				With("decision_id", name)
		}
		if !errors.Is(err, store.ErrNoRows) {
			return err
		}
	}
	if err := u.tx.QueryRow(countUnfinished, u.session.ID).Scan(&unfinished); err != nil {
		return err
	}
	if unfinished >= mostUnfinished {
		return fault.New(fault.Exhausted, "TOO_MANY_DECISIONS",
			"the session has %d unfinished decisions, which is the limit: decide or cancel some of them", mostUnfinished).
			With("limit", "unfinished_decisions")
	}
	return nil
}

// reach checks that an addressee exists that is not the actor.
func (u *decisionTx) reach(agent, role string) error {
	if agent != "" {
		if agent == u.actor.Name {
			return fault.Field("agent", "%q opens the decision and cannot decide it: name another agent or a role", agent)
		}
		_, found, err := u.Directory.Find(u.tx, u.session.ID, agent)
		if err == nil && !found {
			err = work.UnknownAgent(u.tx, u.Directory, u.session.ID, agent)
		}
		return err
	}
	others, err := u.members(role, u.actor.Name)
	if err == nil && len(others) == 0 {
		err = fault.Missing("role", role, "no agent of the role %q is registered that could decide", role)
	}
	return err
}

// members returns the agents of a role, without some.
func (u *decisionTx) members(role string, except ...string) (names []string, err error) {
	found, err := u.Directory.Matching(u.tx, u.session.ID, directory.Selection{Role: role})
	for _, a := range found {
		if !slices.Contains(except, a.Name) {
			names = append(names, a.Name)
		}
	}
	return names, err
}

// handOver passes the token of a round from the opener to the addressee.
func (u *decisionTx) handOver(d *Decision) error {
	d.Fence = 0
	passed, err := u.pass(d, d.OpenedBy, d.Agent, d.Role)
	if err == nil && d.PassToken && !passed {
		err = tokenNotHeld(d)
	}
	return err
}

// tokenNotHeld is the error for an opener that does not hold the token that it wants to pass.
func tokenNotHeld(d *Decision) error {
	lost := fault.New(fault.Precondition, "TOKEN_NOT_HELD",
		"%s does not hold the token to pass: acquire the token of type %s and scope %q first", d.OpenedBy, TokenType, d.Scope)
	lost.Resource, lost.Name = "token", d.Scope
	return lost
}

// A Resubmission is the content of the next round.
type Resubmission struct {
	Title     string   // empty = as it is
	Content   *Content // nil = as it is
	Deadline  time.Time
	PassToken bool // from this round on; false = as it is
}

// Resubmit opens the next round of a decision. It returns the decision without its content. Errors:
// fault.NotFound; fault.Denied for another agent than the opener; fault.Precondition if it is not
// revising, and as Open.
func (t *Table) Resubmit(ctx context.Context, c identity.Caller, req idempotency.Request, id string, r Resubmission) (Decision, error) {
	var out Settled
	err := t.Post.Admit(ctx, c)
	if err == nil {
		err = t.change(ctx, c, req, &out, func(u *decisionTx) (err error) {
			if out.Decision, err = find(u.tx, u.session.ID, id); err != nil {
				return err
			}
			if err := u.resubmit(&out.Decision, r); err != nil {
				return err
			}
			out.trim()
			return nil
		})
	}
	if err != nil {
		return Decision{}, fmt.Errorf("resubmit decision: %w", err)
	}
	return out.Decision, nil
}

func (u *decisionTx) resubmit(d *Decision, r Resubmission) error {
	if d.OpenedBy != u.by() {
		return notYours(d, "only %s, who opened it, may resubmit it", d.OpenedBy)
	}
	if d.State != Revising {
		return fault.New(fault.Precondition, "DECISION_NOT_REVISING", "%s is %s; a decision is resubmitted after the verdict %s",
			d.Name(), d.State, Revise).With("decision_id", d.Name()).With("state", d.State.String())
	}
	if err := checkAhead("deadline", r.Deadline, u.tx.Now()); err != nil {
		return err
	}
	if r.PassToken && !d.mayPass() {
		return fault.Field("pass_token", onlyReviewsPass)
	}
	d.Title, d.PassToken = cmp.Or(r.Title, d.Title), d.PassToken || r.PassToken
	if r.Content != nil {
		d.Content = *r.Content
	}
	if !r.Deadline.IsZero() || !d.Deadline.After(u.tx.Now()) {
		d.Deadline = r.Deadline
	}
	d.Round++
	if d.last().Escalated {
		return u.resubmitEscalated(d, d.Note, r.PassToken)
	}
	if d.Agent != "" {
		_, found, err := u.Directory.Find(u.tx, u.session.ID, d.Agent)
		if err != nil {
			return err
		}
		if !found {
			return u.resubmitEscalated(d, d.Agent+" has deregistered", r.PassToken)
		}
	} else if err := u.reach("", d.Role); err != nil {
		return err
	}
	d.State, d.Note = Open, ""
	if err := u.append(d, "decision.resubmitted", nil, fmt.Sprintf("%s asks %s to decide round %d: %s", d.OpenedBy, d.addressee(), d.Round, d.Title)); err != nil {
		return err
	}
	if err := u.handOver(d); err != nil {
		return err
	}
	if err := u.store(d); err != nil {
		return err
	}
	u.calendar.Expect(u.tx, d.Deadline)
	return u.submit(d)
}

// resubmitEscalated opens a round that the agents of an escalation decide. mustPass refuses it if the
// opener does not hold the token; otherwise, the escalation continues without the token.
func (u *decisionTx) resubmitEscalated(d *Decision, why string, mustPass bool) error {
	if err := u.choose(d, why); err != nil {
		return err
	}
	if err := u.append(d, "decision.resubmitted", nil, fmt.Sprintf("%s asks for the verdict of round %d: %s", d.OpenedBy, d.Round, d.Title)); err != nil {
		return err
	}
	if mustPass && d.EscalatedTo == "" {
		return fault.Field("pass_token", "is set, but no agent can take the token: no role of the session's escalate_to has one")
	}
	if d.EscalatedTo != "" {
		passed, err := u.pass(d, d.OpenedBy, "", d.EscalatedTo)
		if err == nil && mustPass && !passed {
			err = tokenNotHeld(d)
		}
		if err != nil {
			return err
		}
	}
	if err := u.store(d); err != nil {
		return err
	}
	return u.sendEscalation(d)
}

// store updates the row with its content.
func (u *decisionTx) store(d *Decision) error {
	if err := d.saveContent(u.tx); err != nil {
		return err
	}
	d.save(u.tx)
	return nil
}

// trim leaves the newest verdict.
func (d *Decision) trim() {
	if n := len(d.Rounds); n > 1 {
		d.Rounds = d.Rounds[n-1:]
	}
}

// mostAhead is how far ahead times may be.
const mostAhead = 365 * 24 * time.Hour

// checkAhead refuses a time that is not in the future; zero is none.
func checkAhead(field string, at, now time.Time) error {
	switch {
	case at.IsZero():
		return nil
	case !at.After(now):
		return fault.Field(field, "is not in the future: it is %s now", now.UTC().Format(time.RFC3339))
	case at.Sub(now) > mostAhead:
		return fault.Field(field, "is more than 365 days ahead")
	}
	return nil
}
