package diagnose

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
)

// agent explains why an agent gets no work, which messages wait for it and on which it works.
func (e *explanation) agent() {
	t, registered := e.taker(e.about.Name)
	if !registered {
		return
	}
	ref := mailboxOf(t.Name)
	if _, gated := e.gates[t.Name]; gated && t.Health != directory.Stopped || t.Health == directory.Failed {
		e.blame(t.Name)
	}
	id, waiting := e.waitingIn(ref)
	unread, claimable, err := e.broker.Mailboxes.Counts(e.q, e.about.Session, t.Agent)
	e.fail(err)
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(),
		Summary: fmt.Sprintf("%s in it, %s unread", wait(waiting), upTo(unread))}
	if claimable > 0 {
		are := "1 message is"
		if claimable > 1 {
			are = upTo(claimable) + " messages are"
		}
		f.Summary += fmt.Sprintf("; %s claimable: %s", are, finding.Names(e.claimable(t.Agent, id)))
	}
	if waiting > 0 {
		e.line(&f, ref, id)
		f.Calls = append(f.Calls, inbox().As(t.Name))
	}
	e.add(f)
	e.claims(t.Name, id)
	e.deadLetters(id)
	if t.Name == e.about.Asker {
		e.undeliverable(t.Agent)
	}
	e.late(selectLateOwed, e.about.Session, t.Name, id, mostOfAKind)
	e.late(selectLateAsked, e.about.Session, t.Name, mostOfAKind)
}

// undeliverable finds messages that an agent has sent to mailboxes from which no agent takes, except
// the queue of the role of that agent, which has its own finding.
func (e *explanation) undeliverable(sender directory.Agent) {
	told := 0
	for _, box := range e.fullest() {
		own := box.Ref == mailboxOf(sender.Name) || box.Ref.Kind == mail.RoleMailbox && box.Ref.Name == sender.Role
		if own || e.anyGetsWork(e.takers(box.Ref, box.ID, sender.Name)) {
			continue
		}
		var first, count int64
		if !e.read(row{&first, &count}, selectSentReady, box.ID, mostRead, sender.Name) {
			continue
		}
		found := e.deliveries(first, box.ID, 1)
		if len(found) == 0 {
			return
		}
		f := e.explain(&found[0])
		f.Subject = "message " + revision(first)
		if count > 1 {
			f.Reasons = append(f.Reasons, upTo(count)+" messages of "+sender.Name+" wait there")
		}
		e.add(f)
		if told++; told == mostOfAKind {
			return
		}
	}
}

// claimable says where the messages are that an agent can claim: "2 here", "1 in role:builder".
func (e *explanation) claimable(agent directory.Agent, mailbox int64) (places []string) {
	for _, box := range e.reachable(agent, mailbox) {
		n, err := mail.CountReady(e.q, box.ID, mail.MostCounted)
		e.fail(err)
		switch {
		case n > 0 && box.ID == mailbox:
			places = append(places, upTo(n)+" here")
		case n > 0:
			places = append(places, upTo(n)+" in "+box.Ref.String())
		}
	}
	return places
}

// role explains which messages wait for a role.
func (e *explanation) role() {
	e.loadAgents()
	ref := mail.RoleRef(e.about.Name)
	id, waiting := e.waitingIn(ref)
	if id == 0 {
		return
	}
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(), Summary: wait(waiting) + " in it"}
	if waiting > 0 {
		e.line(&f, ref, id)
	}
	e.add(f)
	e.deadLetters(id)
}

// line adds to the finding of a mailbox how long its first message waits, and why the agents do not
// take it. It leaves the finding as Info if an agent has read the messages, and if the finding of
// an agent covers them.
func (e *explanation) line(f *finding.Finding, ref mail.MailboxRef, id int64) {
	var first int64
	var read bool
	var created, delayed, claimed time.Time
	if !e.read(row{&first, &created, &delayed, &claimed, &read}, selectFirstInLine, id, int64(mail.DirectiveRank),
		mostRead) {
		f.Summary += "; none of them is ready: they are delayed, or wait behind others"
		return
	}
	f.Since = latest(created, delayed, claimed)
	sender := ""
	if ref.Kind != mail.AgentMailbox {
		sender = e.find(msgid.Ref{Revision: first}).Sender
	}
	p := e.prospect(ref, id, sender, false)
	waits := e.about.Now.Sub(f.Since)
	switch {
	case ref == mail.OperatorMailbox:
		f.Calls = append(f.Calls, p.calls...)
		if !read && waits >= slowMail {
			f.Severity = finding.Warning
			f.Summary += ", the first for " + longer(waits, slowMail) + ", and no operator has read it"
		}
		return
	case read && ref.Kind == mail.AgentMailbox:
		f.Reasons = append(f.Reasons, ref.Name+" has read all that is ready, up to message "+revision(first))
		return
	case ref.Kind == mail.AgentMailbox && len(p.takers) == 1 && p.takers[0].Health == directory.Stopped:
		f.Reasons = append(f.Reasons, p.reasons...)
		return
	case p.says != "" && len(p.takers) == 1:
		e.blame(p.takers[0].Name)
		return
	case p.says != "":
		f.Severity = p.severity
		f.Summary += ", and " + p.says
		for _, t := range p.takers[:min(len(p.takers), mostDescribed)] { // this finding covers them
			e.blamed[t.Name] = true
			if _, waiting := e.waitingIn(mailboxOf(t.Name)); waiting > 0 {
				f.Reasons = append(f.Reasons, wait(waiting)+" in the mailbox of "+t.Name)
			}
		}
	case waits >= slowMail:
		could := finding.Count(len(p.takers), "agent")
		if len(p.takers) == 1 {
			could = p.takers[0].Name
		}
		f.Severity = finding.Warning
		f.Summary += fmt.Sprintf(", the first for %s, although %s could take it", longer(waits, slowMail), could)
		p.calls = append(p.calls, nudge(ref, ""))
		e.slow[id] = true
		f.Reasons = e.owed(f.Reasons, "", id)
	}
	f.Reasons = append(f.Reasons, fmt.Sprintf("message %d waits since %s", first, e.about.When(f.Since)))
	f.Reasons = append(f.Reasons, p.reasons...)
	f.Calls = append(f.Calls, p.calls...)
	if p.says != "" && len(p.takers) == 0 && e.about.Mine(sender) {
		f.Calls = append(f.Calls, calls.Do(&pb.CancelMessageRequest{Id: revision(first)}))
	}
	f.Calls = append(f.Calls, finding.Explain(finding.Message, revision(first)))
}

// claims describes the claims of an agent.
func (e *explanation) claims(agent string, mailbox int64) {
	type claim struct {
		message, total int64
		number         int
		at             time.Time
	}
	claims := collect(&e.rowReader, func(c *claim) row { return row{&c.message, &c.number, &c.at, &c.total} },
		selectHoldersClaims, mailbox, mostOfAKind)
	if len(claims) == 0 {
		return
	}
	f := finding.Finding{Severity: finding.Info, Subject: "agent " + agent, Since: claims[0].at,
		Summary: "it works on " + finding.Count(claims[0].total, "message")}
	held := e.about.Now.Sub(f.Since)
	limit := longClaim
	if t, _ := e.taker(agent); t.Health != directory.Alive {
		limit = lateClaim
		f.Reasons = append(f.Reasons, "it is late: its last call was at "+e.about.When(t.LastSeen))
	}
	if held >= limit {
		f.Severity = finding.Warning
		f.Summary += ", on one of them for " + longer(held, limit)
	}
	for _, c := range claims {
		f.Reasons = append(f.Reasons, fmt.Sprintf("message %d since %s", c.message, e.about.When(c.at)))
		if e.about.Now.Sub(c.at) >= longClaim || f.Severity == finding.Warning && len(f.Calls) == 0 {
			release := calls.Do(&pb.ReleaseClaimsRequest{Ids: []string{msgid.ClaimID(c.message, c.number)}}).As(agent)
			f.Calls = append(f.Calls, release)
		}
	}
	f.Calls = append(f.Calls, finding.Explain(finding.Message, revision(claims[0].message)))
	e.add(f)
}

// late finds overdue questions. The finding of an agent that gets no work covers the questions that
// only this agent can answer.
func (e *explanation) late(query string, args ...any) {
	for _, q := range e.questions(query, args...) {
		if q.deadline.After(e.about.Now) {
			continue // the clock was set back
		}
		m := e.find(msgid.Ref{Revision: q.message})
		all := e.deliveries(m.Revision, 0, mostDeliveries)
		if !e.covered(&m, all) {
			e.add(e.overdue(&m, q.deadline, all))
		}
	}
}

// covered reports whether a question waits in a mailbox whose finding covers it, or for a single
// agent that gets no work and is blamed for it.
func (e *explanation) covered(m *mail.Message, all []delivery) bool {
	if len(all) != 1 {
		return false
	}
	d := &all[0]
	if d.state == mail.Pending && e.slow[d.mailbox] {
		return true
	}
	ref := d.ref
	if !d.state.Waits() {
		ref = mailboxOf(d.holder)
	}
	takers := e.takers(ref, d.mailbox, m.Sender)
	if len(takers) != 1 || e.anyGetsWork(takers) {
		return false
	}
	e.blame(takers[0].Name)
	return true
}

// owed adds the overdue questions in a mailbox, and those that its agent has acknowledged, except the
// questions that the agent has asked.
func (e *explanation) owed(says []string, agent string, mailbox int64) []string {
	late := e.questions(selectLateOwed, e.about.Session, agent, mailbox, mostOfAKind)
	if len(late) == 0 {
		return says
	}
	ids := make([]string, len(late))
	for i, q := range late {
		ids[i] = revision(q.message)
	}
	text := fmt.Sprintf("%d overdue questions wait for an answer: messages ", len(ids))
	if len(ids) == 1 {
		text = "1 overdue question waits for an answer: message "
	}
	return append(says, text+finding.Names(ids)+", since "+e.about.When(late[0].deadline))
}
