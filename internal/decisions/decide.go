package decisions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/work"
)

// A Ruling is a verdict as its giver states it.
type Ruling struct {
	Verdict  string
	Reason   string
	Feedback []Feedback
	Until    time.Time // of Defer
	Round    int       // that it is about; 0 = the current one
}

// A Settled is a decision with the verdict that a call has given.
type Settled struct {
	Decision
	Passed bool // the token
}

// Decide gives the verdict of the round. It returns the decision without its content. Errors:
// fault.NotFound; fault.Precondition if the round has a verdict; fault.Denied for an agent that may
// not decide; fault.Invalid for another verdict than those of the decision.
func (t *Table) Decide(ctx context.Context, c identity.Caller, req idempotency.Request, id string, r Ruling) (Settled, error) {
	var out Settled
	err := t.change(ctx, c, req, &out, func(u *decisionTx) (err error) {
		if out.Decision, err = find(u.tx, u.session.ID, id); err != nil {
			return err
		}
		if out.Passed, err = u.decide(&out.Decision, r); err != nil {
			return err
		}
		out.trim()
		return nil
	})
	if err != nil {
		return Settled{}, fmt.Errorf("decide: %w", err)
	}
	return out, nil
}

func (u *decisionTx) decide(d *Decision, r Ruling) (passed bool, err error) {
	if err := u.admitRuling(d, r); err != nil {
		return false, err
	}
	v := Verdict{
		Round: d.Round, Verdict: r.Verdict, By: u.by(), At: u.tx.Now(), Reason: r.Reason, Feedback: r.Feedback, Until: r.Until,
		Escalated: d.State == Escalated,
	}
	if r.Verdict == Revise && d.State == Open && d.Round >= d.MaxRounds {
		d.Rounds = append(d.Rounds, v)
		return false, u.escalate(d, &d.Rounds[len(d.Rounds)-1], fmt.Sprintf("round %d of %d has the verdict %s", d.Round, d.MaxRounds, Revise))
	}
	if d.State = Decided; r.Verdict == Revise {
		d.State = Revising
	} else {
		d.Verdict, d.Note = r.Verdict, ""
	}
	if err := u.append(d, "decision.decided", &v, fmt.Sprintf("%s has decided on %s: %s", v.By, d, v.Verdict)); err != nil {
		return false, err
	}
	d.Rounds = append(d.Rounds, v)
	if passed, err = u.pass(d, v.By, d.OpenedBy, ""); err != nil {
		return false, err
	}
	if err := v.insert(u.tx, d.ID); err != nil {
		return false, fmt.Errorf("store verdict: %w", err)
	}
	d.save(u.tx)
	if err := u.Post.Withdraw(u.tx, d.Session, work.Moot{About: d.ID}); err != nil {
		return false, err
	}
	return passed, u.announce(d, &v)
}

// admitRuling refuses a verdict that the actor may not give.
func (u *decisionTx) admitRuling(d *Decision, r Ruling) error {
	switch {
	case !d.State.waits() || r.Round != 0 && r.Round != d.Round:
		return d.closed()
	case !d.mayDecide(u.actor, u.session):
		return notYours(d, "%s", u.deciders(d))
	case !slices.Contains(d.Verdicts, r.Verdict):
		return u.unknownVerdict(d, r.Verdict)
	case r.Verdict == Defer && r.Until.IsZero():
		return fault.Field("until", "is absent; the verdict %s names a time", Defer)
	case r.Verdict != Defer && !r.Until.IsZero():
		return fault.Field("until", "is set; only the verdict %s has it", Defer)
	}
	return checkAhead("until", r.Until, u.tx.Now())
}

// unknownVerdict is the error for a verdict that the decision does not have.
func (u *decisionTx) unknownVerdict(d *Decision, verdict string) error {
	says := fmt.Sprintf("is %q; the verdicts of %s are %s", verdict, d.Name(), strings.Join(d.Verdicts, ", "))
	if near := nearest.Names(verdict, d.Verdicts); len(near) > 0 && nearest.Like(verdict, near[0]) {
		says += "; " + nearest.Hint(verdict, d.Verdicts)
	}
	return fault.Field("verdict", "%s", says)
}

// deciders says which agents may decide.
func (u *decisionTx) deciders(d *Decision) string {
	switch {
	case d.State == Escalated && len(u.session.EscalateTo) > 0:
		return "it has escalated; an operator or an agent of the roles " + strings.Join(u.session.EscalateTo, ", ") + " decides"
	case d.Agent != "":
		return "only " + d.Agent + " may decide"
	}
	return fmt.Sprintf("only agents of the role %s may decide, other than %s, who opened it", d.Role, d.OpenedBy)
}

// Cancel cancels an unfinished decision; a cancelled one stays as it is. It returns the decision
// without its content. Errors: fault.NotFound; fault.Denied for an agent that did not open it;
// fault.Precondition if it is decided.
func (t *Table) Cancel(ctx context.Context, c identity.Caller, req idempotency.Request, id, reason string) (Decision, error) {
	var out Settled
	err := t.change(ctx, c, req, &out, func(u *decisionTx) (err error) {
		d := &out.Decision
		if *d, err = find(u.tx, u.session.ID, id); err != nil {
			return err
		}
		defer d.trim()
		switch {
		case d.OpenedBy != u.by() && c.Access != identity.Operator:
			return notYours(d, "only %s, who opened it, and operators may cancel it", d.OpenedBy)
		case d.State == Cancelled:
			return nil
		case d.State == Decided:
			return d.closed()
		}
		return u.cancel(d, reason, d.OpenedBy)
	})
	if err != nil {
		return Decision{}, fmt.Errorf("cancel decision: %w", err)
	}
	return out.Decision, nil
}

// cancel cancels a decision. heir receives the token; empty = it is released.
func (u *decisionTx) cancel(d *Decision, reason, heir string) error {
	waited := d.State.waits()
	d.State, d.Note = Cancelled, reason
	summary := fmt.Sprintf("%s cancels %s", u.by(), d)
	if reason != "" {
		summary += ": " + reason
	}
	if err := u.append(d, "decision.cancelled", nil, summary); err != nil {
		return err
	}
	if waited {
		if _, err := u.pass(d, "", heir, ""); err != nil {
			return err
		}
	}
	d.save(u.tx)
	if err := u.Post.Withdraw(u.tx, d.Session, work.Moot{About: d.ID}); err != nil {
		return err
	}
	return u.announceEnd(d, waited)
}
