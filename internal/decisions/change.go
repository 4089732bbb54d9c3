package decisions

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A decisionTx makes the changes of one writer function in one session.
type decisionTx struct {
	*Table
	tx      *store.Tx
	session directory.Session
	actor   directory.Agent // the zero Agent = the broker itself
}

// change runs a function of the writer in the name of a caller. fn leaves in out what a repeated
// request returns again.
func (t *Table) change(
	ctx context.Context, c identity.Caller, req idempotency.Request, out *Settled, fn func(u *decisionTx) error,
) error {
	return t.Store.Write(ctx, func(tx *store.Tx) error {
		*out = Settled{} // the function can run twice
		var kept keptDecision
		seen, err := req.Do(tx, &kept, func() error {
			s, err := t.Directory.Session(tx, c.Session)
			if err != nil {
				return err
			}
			a, err := t.Directory.Acting(tx, s.ID, c)
			if err != nil {
				return err
			}
			err = fn(&decisionTx{Table: t, tx: tx, session: s, actor: a})
			kept = keep(out)
			return err
		})
		if err == nil && seen {
			*out, err = kept.settled(tx)
		}
		return err
	})
}

// by names the actor.
func (u *decisionTx) by() string {
	if u.actor.Name == "" {
		return identity.System
	}
	return u.actor.Name
}

// details are those of an event.
type details struct {
	ID        string     `json:"decision_id,omitempty"`
	Kind      string     `json:"kind"`
	State     string     `json:"state"`
	Scope     string     `json:"scope,omitempty"`
	OpenedBy  string     `json:"opened_by"`
	Agent     string     `json:"agent,omitempty"`
	Role      string     `json:"role,omitempty"`
	Round     int        `json:"round"`
	MaxRounds int        `json:"max_rounds"`
	Verdict   string     `json:"verdict,omitempty"`
	DecidedBy string     `json:"decided_by,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Escalated string     `json:"escalated_to,omitempty"`
	Note      string     `json:"note,omitempty"`
}

// append adds the event of a change and stamps the decision with its revision. v is the verdict that
// the change gives, nil for none. The outcome is counted after the commit.
func (u *decisionTx) append(d *Decision, event string, v *Verdict, summary string) error {
	more := details{
		Kind: d.Kind.String(), State: d.State.String(), Scope: d.Scope, OpenedBy: d.OpenedBy, Agent: d.Agent, Role: d.Role,
		Round: d.Round, MaxRounds: d.MaxRounds, Escalated: d.EscalatedTo, Note: d.Note,
	}
	if d.ID != 0 { // an event of the opening has the id as its revision
		more.ID = d.Name()
	}
	if v != nil {
		more.Verdict, more.DecidedBy = v.Verdict, v.By
		if !v.Until.IsZero() {
			more.Until = &v.Until
		}
	}
	text, err := json.Marshal(more)
	if err != nil {
		return err
	}
	severity := events.Info
	if d.State == Escalated {
		severity = events.Warning
	}
	related := []string{d.OpenedBy}
	for _, other := range []string{d.Agent, d.Role, more.ID} {
		if other != "" && other != d.OpenedBy {
			related = append(related, other)
		}
	}
	revision, err := u.Log.Append(u.tx, events.Entry{
		Session: d.Session, Category: events.Work, Type: event, Severity: severity, Source: u.by(),
		SourceRole: u.actor.Role, Summary: summary, Details: string(text), Related: related, TaskID: d.Task,
	})
	if err != nil {
		return err
	}
	d.Revision, d.ChangedAt = revision, u.tx.Now()
	if d.ID == 0 {
		d.ID, d.OpenedAt = revision, d.ChangedAt
	}
	if v != nil {
		v.Revision = revision
	}
	id := d.ID
	u.tx.OnCommit(func() {
		u.hub.Wake(id)
		if u.observer != nil {
			u.observer.Work("decision", strings.TrimPrefix(event, "decision."))
		}
	})
	return nil
}

// pass passes the token of a decision on, if it passes one, and reports whether it did. The decision
// keeps the fence of the new grant.
func (u *decisionTx) pass(d *Decision, from, agent, role string) (bool, error) {
	if !d.PassToken {
		return false, nil
	}
	fence, passed, err := u.Tokens.Pass(u.tx, d.Session, TokenPass{
		Scope: d.Scope, Fence: d.Fence, From: from, Agent: agent, Role: role, Note: d.String() + ", round " + fmt.Sprint(d.Round),
	})
	d.Fence = fence
	return passed, err
}

// notYours is the error for a caller that may not make a change.
func notYours(d *Decision, format string, args ...any) error {
	return fault.New(fault.Denied, "NOT_YOUR_DECISION", "%s: %s", d.Name(), fmt.Sprintf(format, args...)).With("decision_id", d.Name())
}

// closed is the error for a change that the state of the decision does not permit.
func (d *Decision) closed() error {
	says := "is " + d.State.String()
	switch v := d.last(); {
	case d.State.waits():
		says = fmt.Sprintf("waits for a verdict on round %d, not on another round", d.Round)
	case d.State == Cancelled && d.Note != "":
		says += ": " + finding.Clip(d.Note)
	case d.State != Cancelled && v != nil:
		says = fmt.Sprintf("is already decided: the verdict of %s on round %d is %s", v.By, v.Round, v.Verdict)
	}
	return fault.New(fault.Precondition, "DECISION_CLOSED", "%s %s", d.Name(), says).
		With("decision_id", d.Name()).With("state", d.State.String())
}
