package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// ofAgent explains why an agent gets no work, which messages wait for it and on which it works.
func (e *explanation) ofAgent() error {
	member, registered, err := e.member(e.about.Name)
	if err != nil || !registered {
		return err
	}
	ref := mailboxOf(member.Name)
	if _, gated := e.gates[member.Name]; gated && member.Health != Stopped || member.Health == Failed {
		if err := e.blame(member.Name); err != nil {
			return err
		}
	}
	id, waiting, err := e.waitingIn(ref)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String()}
	unread, claimable, err := e.broker.Counts(e.q, e.about.Session, member.Agent)
	if err != nil {
		return err
	}
	f.Summary = fmt.Sprintf("%s in it, %s unread", wait(waiting), upTo(unread))
	if claimable > 0 {
		places, err := e.claimable(member.Agent, id)
		if err != nil {
			return err
		}
		f.Summary += fmt.Sprintf("; %s claimable: %s", are(claimable), finding.Names(places))
	}
	if waiting > 0 {
		if err := e.line(&f, ref, id); err != nil {
			return err
		}
		f.Commands = append(f.Commands, finding.Command{"--agent", member.Name, "inbox"})
	}
	e.add(f)
	if err := e.working(member.Name, id); err != nil {
		return err
	}
	if err := e.deadBoxes(id); err != nil {
		return err
	}
	if member.Name == e.about.Asker {
		if err := e.undeliverable(member.Agent); err != nil {
			return err
		}
	}
	if err := e.late(e.q.Query(selectLateOwed, e.about.Session, member.Name, id, mostOfAKind)); err != nil {
		return err
	}
	return e.late(e.q.Query(selectLateAsked, e.about.Session, member.Name, mostOfAKind))
}

// undeliverable finds messages that an agent has sent to mailboxes from which no agent takes, except
// the queue of the role of that agent, which has its own finding.
func (e *explanation) undeliverable(sender broker.Agent) error {
	boxes, err := e.fullest()
	if err != nil {
		return err
	}
	told := 0
	for i := 0; i < len(boxes) && told < mostOfAKind; i++ {
		ref, id := boxes[i].Ref, boxes[i].ID
		if ref.Name == sender.Name && ref.Kind == broker.AgentMailbox || ref.Name == sender.Role && ref.Kind == broker.RoleMailbox {
			continue
		}
		servers, err := e.serving(ref, id, sender.Name)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(servers, func(s server) bool { return s.ability(false, e.about.Now) < halted }) {
			continue
		}
		var first, count int64
		err = e.q.QueryRow(selectSentReady, id, mostRead, sender.Name).Scan(&first, &count)
		if errors.Is(err, store.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		found, err := e.deliveries(first, id, 1)
		if err != nil || len(found) == 0 {
			return err
		}
		f, err := e.delivery(&found[0])
		if err != nil {
			return err
		}
		f.Subject = "message " + strconv.FormatInt(first, 10)
		if count > 1 {
			f.Reasons = append(f.Reasons, upTo(count)+" messages of "+sender.Name+" wait there")
		}
		e.add(f)
		told++
	}
	return nil
}

// claimable says where the messages are that an agent can claim: "2 here", "1 in role:builder".
func (e *explanation) claimable(agent broker.Agent, mailbox int64) (places []string, err error) {
	boxes, err := e.broker.Reachable(e.q, broker.Actor{Agent: agent, Session: broker.Session{ID: e.about.Session}, Mailbox: mailbox})
	if err != nil {
		return nil, err
	}
	for _, box := range boxes {
		n, err := broker.CountReady(e.q, box.ID, broker.MostCounted)
		if err != nil {
			return nil, err
		}
		switch {
		case n > 0 && box.ID == mailbox:
			places = append(places, upTo(n)+" here")
		case n > 0:
			places = append(places, upTo(n)+" in "+box.Ref.String())
		}
	}
	return places, nil
}

// are says how many messages are.
func are(n int64) string {
	if n == 1 {
		return "1 message is"
	}
	return upTo(n) + " messages are"
}

// upTo formats a count that ends at MostCounted.
func upTo(n int64) string {
	if n >= broker.MostCounted {
		return fmt.Sprintf("%d or more", broker.MostCounted)
	}
	return strconv.FormatInt(n, 10)
}

// ofRole explains which messages wait for a role.
func (e *explanation) ofRole() error {
	if err := e.agents(); err != nil {
		return err
	}
	ref := broker.MailboxRef{Kind: broker.RoleMailbox, Name: e.about.Name}
	id, waiting, err := e.waitingIn(ref)
	if err != nil || id == 0 {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(), Summary: wait(waiting) + " in it"}
	if waiting > 0 {
		if err := e.line(&f, ref, id); err != nil {
			return err
		}
	}
	e.add(f)
	return e.deadBoxes(id)
}

// waitingIn returns a mailbox's id, 0 if it does not exist yet, and how many wait in it.
func (e *explanation) waitingIn(ref broker.MailboxRef) (id, waiting int64, err error) {
	err = e.q.QueryRow(selectWaitingOf, e.about.Session, int(ref.Kind), ref.Name).Scan(&id, &waiting)
	if errors.Is(err, store.ErrNoRows) {
		err = nil
	}
	return id, waiting, err
}

// wait says how many messages wait.
func wait(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

// line adds to the finding of a mailbox how long its first message waits, and why the agents do not
// take it. It leaves the finding as Info if an agent has read the messages, and if the finding of
// an agent covers them.
func (e *explanation) line(f *finding.Finding, ref broker.MailboxRef, id int64) error {
	var first int64
	var read bool
	var delayed, claimed time.Time
	err := e.q.QueryRow(selectFirstInLine, id, int64(broker.DirectiveRank), mostRead).Scan(&first, &f.Since, &delayed, &claimed, &read)
	if errors.Is(err, store.ErrNoRows) {
		f.Summary += "; none of them is ready: they are delayed, or wait behind others"
		return nil
	}
	if err != nil {
		return err
	}
	for _, at := range []time.Time{delayed, claimed} {
		if at.After(f.Since) {
			f.Since = at
		}
	}
	sender := ""
	if ref.Kind != broker.AgentMailbox {
		if sender, err = e.onlySender(first); err != nil {
			return err
		}
	}
	st, err := e.standing(ref, id, sender, false)
	if err != nil {
		return err
	}
	explain := finding.Command{"explain", "message", strconv.FormatInt(first, 10)}
	waits := e.about.Now.Sub(f.Since)
	switch {
	case ref == broker.OperatorMailbox:
		f.Commands = append(f.Commands, st.commands...)
		if !read && waits >= slowMail {
			f.Severity = finding.Warning
			f.Summary += fmt.Sprintf(", the first for %s%s, and no operator has read it", finding.Rough(waits), finding.After(slowMail))
		}
		return nil
	case read && ref.Kind == broker.AgentMailbox:
		f.Reasons = append(f.Reasons, ref.Name+" has read all that is ready, up to message "+strconv.FormatInt(first, 10))
		return nil
	case ref.Kind == broker.AgentMailbox && len(st.servers) == 1 && st.servers[0].Health == Stopped:
		f.Reasons = append(f.Reasons, st.reasons...)
		return nil
	case st.says != "" && len(st.servers) == 1:
		return e.blame(st.servers[0].Name)
	case st.says != "":
		f.Severity = st.severity
		f.Summary += ", and " + st.says
		for i := range st.servers[:min(len(st.servers), mostServers)] { // this finding covers them
			name := st.servers[i].Name
			e.blamed[name] = true
			_, waiting, err := e.waitingIn(mailboxOf(name))
			if err != nil {
				return err
			}
			if waiting > 0 {
				f.Reasons = append(f.Reasons, wait(waiting)+" in the mailbox of "+name)
			}
		}
	case waits >= slowMail:
		f.Severity = finding.Warning
		f.Summary += fmt.Sprintf(", the first for %s%s, although %s could take it", finding.Rough(waits),
			finding.After(slowMail), e.first(&st))
		st.commands = append(st.commands, finding.Command{"agent", "nudge", ref.String()})
		e.slow[id] = true
		if f.Reasons, err = e.owed(f.Reasons, "", id); err != nil {
			return err
		}
	}
	f.Reasons = append(f.Reasons, fmt.Sprintf("message %d waits since %s", first, e.about.When(f.Since)))
	f.Reasons = append(f.Reasons, st.reasons...)
	f.Commands = append(f.Commands, st.commands...)
	if st.says != "" && len(st.servers) == 0 && e.about.Mine(sender) {
		f.Commands = append(f.Commands, finding.Command{"message", "cancel", strconv.FormatInt(first, 10)})
	}
	f.Commands = append(f.Commands, explain)
	return nil
}

// first names the agents that could take a message.
func (e *explanation) first(st *standing) string {
	if len(st.servers) == 1 {
		return st.servers[0].Name
	}
	return finding.Count(len(st.servers), "agent")
}

// onlySender returns the sender of a message.
func (e *explanation) onlySender(message int64) (string, error) {
	m, err := broker.FindMessage(e.q, e.about.Session, broker.Ref{Revision: message})
	return m.Sender, err
}

// working describes the claims of an agent.
func (e *explanation) working(agent string, id int64) error {
	rows := e.q.Query(selectHoldersClaims, id, mostOfAKind)
	type claim struct {
		message int64
		number  int
		at      time.Time
	}
	var claims []claim
	total := 0
	for rows.Next() {
		var c claim
		if err := rows.Scan(&c.message, &c.number, &c.at, &total); err != nil {
			return err
		}
		claims = append(claims, c)
	}
	if err := rows.Err(); err != nil || total == 0 {
		return err
	}
	m, _, err := e.member(agent)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "agent " + agent, Since: claims[0].at,
		Summary: "it works on " + finding.Count(total, "message")}
	held := e.about.Now.Sub(f.Since)
	limit := longClaim
	if m.Health != Alive {
		limit = lateClaim
		f.Reasons = append(f.Reasons, "it is late: its last call was at "+e.about.When(m.LastSeen))
	}
	if held >= limit {
		f.Severity = finding.Warning
		f.Summary += ", on one of them for " + finding.Rough(held) + finding.After(limit)
	}
	for _, c := range claims {
		f.Reasons = append(f.Reasons, fmt.Sprintf("message %d since %s", c.message, e.about.When(c.at)))
		if e.about.Now.Sub(c.at) >= longClaim || f.Severity == finding.Warning && len(f.Commands) == 0 {
			f.Commands = append(f.Commands, finding.Command{"--agent", agent, "release", broker.ClaimID(c.message, c.number)})
		}
	}
	f.Commands = append(f.Commands, finding.Command{"explain", "message", strconv.FormatInt(claims[0].message, 10)})
	e.add(f)
	return nil
}

// A question is one whose deadline has passed and that has no answer.
type question struct {
	message  int64
	deadline time.Time
}

func readQuestions(rows *store.Rows) ([]question, error) {
	return store.Collect(rows, func(r *store.Rows) (q question, err error) {
		return q, r.Scan(&q.message, &q.deadline)
	})
}

// late finds overdue questions. The finding of an agent that gets no work covers the questions that
// only this agent can answer.
func (e *explanation) late(rows *store.Rows) error {
	questions, err := readQuestions(rows)
	if err != nil {
		return err
	}
	for _, q := range questions {
		if q.deadline.After(e.about.Now) {
			continue // the clock was set back
		}
		m, err := broker.FindMessage(e.q, e.about.Session, broker.Ref{Revision: q.message})
		if err != nil {
			return err
		}
		all, err := e.deliveries(m.Revision, 0, mostDeliveries)
		if err != nil {
			return err
		}
		covered, err := e.unable(&m, all)
		if err != nil {
			return err
		}
		if !covered {
			e.add(e.overdue(&m, q.deadline, all))
		}
	}
	return nil
}

// unable reports whether a question waits in a mailbox whose finding covers it, or for a single
// agent that gets no work and is blamed for it.
func (e *explanation) unable(m *broker.Message, all []stuck) (bool, error) {
	if len(all) != 1 {
		return false, nil
	}
	d := &all[0]
	if d.state == broker.Pending && e.slow[d.mailbox] {
		return true, nil
	}
	servers, err := e.serving(d.ref, d.mailbox, m.Sender)
	if err != nil {
		return false, err
	}
	if !d.state.Waits() {
		servers = slices.DeleteFunc(e.servers(), func(s server) bool { return s.Name != d.holder })
	}
	if len(servers) != 1 || servers[0].ability(false, e.about.Now) < halted {
		return false, nil
	}
	return true, e.blame(servers[0].Name)
}

// servers returns all agents of the session.
func (e *explanation) servers() []server {
	all := make([]server, len(e.members))
	for i, m := range e.members {
		all[i] = server{m, e.gates[m.Name]}
	}
	return all
}

// member returns the member of a name.
func (e *explanation) member(name string) (Member, bool, error) {
	if err := e.agents(); err != nil {
		return Member{}, false, err
	}
	i, registered := e.named[name]
	if !registered {
		return Member{}, false, nil
	}
	return e.members[i], true, nil
}
