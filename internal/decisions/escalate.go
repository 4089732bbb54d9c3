package decisions

import (
	"fmt"
	"time"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// duePage is how many decisions escalate in one transaction.
const duePage = 100

// due escalates the decisions whose deadlines have passed, and returns the next deadline.
func (t *Table) due(tx *store.Tx) (next time.Time, err error) {
	type key struct{ id, session int64 }
	var list []key
	rows := tx.Query(selectDue, tx.Now(), duePage)
	defer rows.Close()
	for rows.Next() {
		var k key
		if err := rows.Scan(&k.id, &k.session); err != nil {
			return next, err
		}
		list = append(list, k)
	}
	if err := rows.Err(); err != nil {
		return next, err
	}
	for _, k := range list {
		s, _, err := t.Directory.ByID(tx, k.session)
		if err != nil {
			return next, err
		}
		d, err := find(tx, k.session, work.ID(idLetter, k.id))
		if err != nil {
			return next, err
		}
		u := &decisionTx{Table: t, tx: tx, session: s}
		if err := u.escalate(&d, nil, "no verdict came by the deadline"); err != nil {
			return next, fmt.Errorf("escalate decision %s: %w", d.Name(), err)
		}
	}
	upcoming := tx.Query(nextDeadline)
	defer upcoming.Close()
	if upcoming.Next() {
		err = upcoming.Scan(&next)
	}
	if err == nil {
		err = upcoming.Err()
	}
	return next, err
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
	if err := d.save(u.tx); err != nil {
		return err
	}
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
