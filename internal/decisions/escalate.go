package decisions

import (
	"errors"
	"fmt"

	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// deadlines returns the decisions that escalate next.
func deadlines(q store.Querier, limit int) ([]work.Entry[int64], error) {
	return store.Collect(q.Query(selectDeadlines, limit), func(r *store.Rows) (e work.Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// due escalates a decision if its deadline has passed.
func (t *Table) due(tx *store.Tx, id int64) error {
	d, s, found, err := t.one(tx, id)
	if err != nil || !found || d.State != Open || d.Deadline.IsZero() || d.Deadline.After(tx.Now()) {
		return err
	}
	u := &decisionTx{Table: t, tx: tx, session: s}
	if err := u.escalate(&d, nil, "no verdict came by the deadline"); err != nil {
		return fmt.Errorf("escalate decision %s: %w", d.Name(), err)
	}
	return nil
}

// one returns a decision of any session, with its content and all verdicts, and the session.
func (t *Table) one(tx *store.Tx, id int64) (d Decision, s directory.Session, found bool, err error) {
	var session int64
	err = tx.QueryRow(selectSession, id).Scan(&session)
	if errors.Is(err, store.ErrNoRows) {
		return d, s, false, nil
	}
	if err == nil {
		d, err = find(tx, session, work.ID(idLetter, id))
	}
	if err == nil {
		s, err = t.Directory.ByID(tx, session)
	}
	return d, s, err == nil, err
}

// escalate escalates an open decision. v is the verdict revise that does so, nil for another reason.
func (u *decisionTx) escalate(d *Decision, v *Verdict, why string) error {
	if err := u.choose(d, why); err != nil {
		return err
	}
	if err := u.append(d, "decision.escalated", v, fmt.Sprintf("%s escalates: %s", d, why)); err != nil {
		return err
	}
	from := ""
	if v != nil {
		from = v.By
		if err := v.insert(u.tx, d.ID); err != nil {
			return fmt.Errorf("store verdict: %w", err)
		}
	}
	if d.EscalatedTo != "" {
		if _, err := u.pass(d, from, "", d.EscalatedTo); err != nil {
			return err
		}
	}
	d.save(u.tx)
	if err := u.Post.Withdraw(u.tx, d.Session, work.Moot{About: d.ID}); err != nil {
		return err
	}
	if err := u.sendEscalation(d); err != nil {
		return err
	}
	return u.announceEscalation(d, v)
}

// choose makes the decision ESCALATED, to the first escalate_to role that has an agent other than
// the opener and the addressee.
func (u *decisionTx) choose(d *Decision, why string) error {
	d.State, d.EscalatedTo, d.Note = Escalated, "", why
	for _, role := range u.session.EscalateTo {
		members, err := u.members(role, d.OpenedBy, d.Agent)
		if err != nil {
			return err
		}
		if len(members) > 0 {
			d.EscalatedTo = role
			return nil
		}
	}
	return nil
}
