package broker

import (
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/finding"
)

// gated tells of what stands in the way of agents: of one, or of all if no name is given.
func (e *explaining) gated(only string) error {
	if err := e.agents(); err != nil {
		return err
	}
	told, more := 0, 0
	for _, m := range e.members {
		g, found := e.gates[m.Name]
		if !found || only != "" && m.Name != only {
			continue
		}
		if told++; told > mostOfAKind {
			more++
			continue
		}
		_, waiting, err := e.waitingIn(mailboxRef{agentBox, m.Name})
		if err != nil {
			return err
		}
		f := finding.Finding{Severity: finding.Warning, Subject: "agent " + m.Name}
		if waiting > 0 {
			f.Reasons = append(f.Reasons, wait(waiting)+" in its mailbox")
		}
		if !g.haltedAt.IsZero() {
			f.Since = g.haltedAt
			if waiting > 0 {
				f.Severity = finding.Error
			}
			by, err := e.onlySender(g.halt)
			f.Summary = "it is halted, by " + by + ": nothing but directives is handed out to it until a resume"
			if err != nil { // the directive was removed in the meantime
				f.Summary = "it is halted: nothing but directives is handed out to it until a resume"
			}
			f.Commands = []finding.Command{{"agent", "resume", m.Name}}
			e.add(f)
			continue
		}
		f.Since, f.Summary = g.openedAt, "it is degraded: "+e.breaker(&server{m, g})
		if !f.Since.IsZero() { // an earlier version has not noted it
			f.Summary = "it is degraded since " + e.about.When(f.Since) + ": " + e.breaker(&server{m, g})
		}
		if f.Commands, err = e.registering(m.Name); err != nil {
			return err
		}
		f.Reasons = append(f.Reasons, "registering again closes it at once, and has what runs as "+m.Name+" begin anew")
		e.add(f)
	}
	if more > 0 {
		e.add(finding.Finding{Severity: finding.Warning, Subject: "agents", Since: e.about.Now,
			Summary:  finding.Count(more, "more agent") + " halted, or with an open circuit breaker",
			Commands: []finding.Command{{"agent", "list"}}})
	}
	return nil
}

// everything tells of the worst that is stuck in the session.
func (e *explaining) everything() error {
	if err := e.gated(""); err != nil {
		return err
	}
	if err := e.boxesStuck(); err != nil {
		return err
	}
	if err := e.longClaims(); err != nil {
		return err
	}
	if err := e.deadBoxes(); err != nil {
		return err
	}
	return e.late(e.q.Query(selectLate, e.about.Session, mostOfAKind))
}

// boxesStuck tells of mailboxes that nobody takes from, that are full or nearly so, and of ordering keys in them that are held up.
func (e *explaining) boxesStuck() error {
	session, err := e.dir.ByID(e.q, e.about.Session)
	if err != nil {
		return err
	}
	type counted struct {
		box
		waiting int64
	}
	var boxes []counted
	rows := e.q.Query(selectFullest, e.about.Session, mostBoxes)
	for rows.Next() {
		var c counted
		var kind int
		if err := rows.Scan(&c.id, &kind, &c.ref.name, &c.waiting); err != nil {
			return err
		}
		c.ref.kind = boxKind(kind)
		boxes = append(boxes, c)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	told, more := 0, 0
	for i, c := range boxes {
		f, err := e.box(c.box, c.waiting, session.MailboxLimit)
		if err != nil {
			return err
		}
		switch {
		case f.Severity <= finding.Info:
		case told < mostOfAKind:
			told++
			e.add(f)
		default:
			more++
		}
		if i < mostKeyed {
			if err := e.orderings(c.box); err != nil {
				return err
			}
		}
	}
	if more > 0 {
		e.add(finding.Finding{Severity: finding.Warning, Subject: "mailboxes", Since: e.about.Now,
			Summary:  finding.Count(more, "more mailbox") + " like those: full, or with mail that nobody takes",
			Commands: []finding.Command{{"status", "-o", "json"}}})
	}
	return nil
}

// box tells of a mailbox. It is Info if nothing is wrong with it, or if that is told of its agent.
func (e *explaining) box(c box, waiting, limit int64) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + c.ref.String(), Summary: wait(waiting) + " in it"}
	if limit > 0 && waiting*10 >= limit*nearlyFull {
		f.Severity = finding.Warning
		f.Summary = fmt.Sprintf("%d of at most %d messages wait in it", waiting, limit)
		if waiting >= limit {
			f.Severity = finding.Error
			f.Reasons = append(f.Reasons, "it is full: what is sent to it is refused")
		}
		f.Commands = append(f.Commands, finding.Command{"session", "configure", "--mailbox-limit", strconv.FormatInt(2*limit, 10)})
	}
	full := f.Severity
	if g := e.gates[c.ref.name]; c.ref.kind == agentBox && g != (gating{}) && full == finding.Info {
		return f, nil
	}
	err := e.line(&f, c.ref, c.id)
	f.Severity = max(f.Severity, full)
	return f, err
}

// orderings tells of ordering keys whose first message has held up another for long.
func (e *explaining) orderings(c box) error {
	type heldUp struct {
		key   string
		head  int64
		since time.Time
	}
	var all []heldUp
	rows := e.q.Query(selectOrderings, c.id, mostOrderings, e.about.Now.Add(-longBlocked))
	for rows.Next() {
		var h heldUp
		if err := rows.Scan(&h.key, &h.head, &h.since); err != nil {
			return err
		}
		all = append(all, h)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, h := range all {
		if e.heldUp == mostOfAKind {
			break
		}
		first, err := e.deliveries(h.head, c.id, 1)
		if err != nil {
			return err
		}
		if len(first) == 0 || first[0].state == Pending {
			continue // a matter of the mailbox
		}
		of, err := e.delivery(&first[0])
		if err != nil {
			return err
		}
		e.heldUp++
		e.add(finding.Finding{Severity: finding.Warning, Subject: "mailbox " + c.ref.String(), Since: h.since,
			Summary:  fmt.Sprintf("messages with the ordering key %q wait behind message %d", finding.Clip(h.key), h.head),
			Reasons:  append([]string{fmt.Sprintf("message %d: %s", h.head, of.Summary)}, of.Reasons...),
			Commands: of.Commands})
	}
	return nil
}

// longClaims tells of agents that hold claims for long: for less long if they are late.
func (e *explaining) longClaims() error {
	holders := map[string]bool{}
	rows := e.q.Query(selectLongClaims, e.about.Session, e.about.Now.Add(-lateClaim), mostBoxes)
	var names []string
	for rows.Next() {
		var name string
		var since time.Time
		if err := rows.Scan(&name, &since, new(int64)); err != nil {
			return err
		}
		if e.about.Now.Sub(since) >= longClaim {
			holders[name] = true
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	told := 0
	for _, name := range names {
		m, _, err := e.member(name)
		if err != nil {
			return err
		}
		if told == mostOfAKind || !holders[name] && m.Health == Alive {
			continue
		}
		told++
		id, err := e.findMailbox(e.q, e.about.Session, mailboxRef{agentBox, name})
		if err != nil {
			return err
		}
		if err := e.working(name, id); err != nil {
			return err
		}
	}
	return nil
}

// deadBoxes tells of dead letters, by mailbox.
func (e *explaining) deadBoxes() error {
	type dying struct {
		id  int64
		ref mailboxRef
		n   int64
	}
	const most = 1000 // dead letters that are counted in each
	var boxes []dying
	rows := e.q.Query(selectDeadBoxes, e.about.Session, most, mostOfAKind)
	for rows.Next() {
		var d dying
		var kind int
		if err := rows.Scan(&d.id, &kind, &d.ref.name, &d.n); err != nil {
			return err
		}
		d.ref.kind = boxKind(kind)
		boxes = append(boxes, d)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, d := range boxes {
		f := finding.Finding{Severity: finding.Error, Subject: "mailbox " + d.ref.String(), Summary: finding.Count(d.n, "dead letter")}
		if d.n == most {
			f.Summary = fmt.Sprintf("%d dead letters or more", most)
		}
		var first, last int64
		if err := e.q.QueryRow(selectFirstDead, d.id).Scan(&first, &f.Since); err != nil {
			return err
		}
		if err := e.q.QueryRow(selectLastDead, d.id).Scan(&last); err != nil {
			return err
		}
		found, err := e.deliveries(last, d.id, 1)
		if err != nil || len(found) == 0 {
			return err
		}
		of, err := e.dead(&found[0])
		if err != nil {
			return err
		}
		f.Reasons = append([]string{fmt.Sprintf("the newest is message %d", last)}, of.Reasons...)
		f.Commands = of.Commands[:len(of.Commands)-2] // who must be registered first
		f.Commands = append(f.Commands, finding.Command{"dlq", "list", "--mailbox", d.ref.String()},
			finding.Command{"dlq", "redrive", "--mailbox", d.ref.String()})
		e.add(f)
	}
	return nil
}
