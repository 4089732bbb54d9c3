package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/finding"
)

// everything finds the worst problems of the session. Agents that get no work cover the mailboxes
// and questions that wait for them; queues of several such agents come first, since they cover
// these agents.
func (e *explanation) everything() error {
	if err := e.boxesStuck(); err != nil {
		return err
	}
	for _, m := range e.members {
		if _, gated := e.gates[m.Name]; gated && m.Health != Stopped {
			if err := e.blame(m.Name); err != nil {
				return err
			}
		}
	}
	if err := e.askedOperators(); err != nil {
		return err
	}
	if err := e.longClaims(); err != nil {
		return err
	}
	if err := e.deadBoxes(nil); err != nil {
		return err
	}
	if err := e.late(e.q.Query(selectLate, e.about.Session, mostOfAKind)); err != nil || e.more == 0 {
		return err
	}
	e.add(finding.Finding{Severity: finding.Warning, Subject: "agents", Since: e.about.Now,
		Summary:  finding.Count(e.more, "more agent") + " without work: failed, stopped, halted, or with an open circuit breaker",
		Commands: []finding.Command{{"agent", "list"}}})
	return nil
}

// askedOperators finds the questions that wait for the answer of an operator. Those that are overdue are
// findings of their own.
func (e *explanation) askedOperators() error {
	id, err := e.broker.FindMailbox(e.q, e.about.Session, broker.OperatorMailbox)
	if err != nil || id == 0 {
		return err
	}
	asked, err := broker.Owed(e.q, e.about.Session, broker.OperatorMailbox.Name, id, mostQuestions, e.about.Now)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Warning, Subject: "operators", Commands: []finding.Command{{"inbox", "--operator"}}}
	for i := range asked {
		q := &asked[i]
		if q.Overdue {
			continue
		}
		if f.Since.IsZero() {
			f.Since = q.CreatedAt
		}
		f.Reasons = append(f.Reasons, fmt.Sprintf("message %d of %s, due at %s: %s", q.Revision, q.Sender,
			e.about.When(q.Deadline), finding.Clip(q.Subject())))
	}
	if n := len(f.Reasons); n > 0 {
		f.Summary = finding.Count(n, "question") + " to operators without an answer"
		f.Reasons = f.Reasons[:min(n, mostServers)]
		e.add(f)
	}
	return nil
}

// A countedBox is a mailbox with the number of messages that wait in it.
type countedBox struct {
	broker.Mailbox
	waiting int64
}

// fullest returns the mailboxes with the most messages that wait, the fullest first.
func (e *explanation) fullest() ([]countedBox, error) {
	var boxes []countedBox
	rows := e.q.Query(selectFullest, e.about.Session, mostBoxes)
	for rows.Next() {
		var c countedBox
		var kind int
		if err := rows.Scan(&c.ID, &kind, &c.Ref.Name, &c.waiting); err != nil {
			return nil, err
		}
		c.Ref.Kind = broker.MailboxKind(kind)
		boxes = append(boxes, c)
	}
	return boxes, rows.Err()
}

// boxesStuck finds mailboxes that no agent takes from, that are full or nearly so, and ordering
// keys in them that are held up.
func (e *explanation) boxesStuck() error {
	session, err := e.sessions.ByID(e.q, e.about.Session)
	if err != nil {
		return err
	}
	if err := e.agents(); err != nil {
		return err
	}
	boxes, err := e.fullest()
	if err != nil {
		return err
	}
	for i, c := range boxes[:min(len(boxes), mostKeyed)] {
		if err := e.orderings(c.Mailbox); err != nil {
			return fmt.Errorf("mailbox %d: %w", i, err)
		}
	}
	slices.SortStableFunc(boxes, func(a, b countedBox) int { return cmp.Compare(b.Ref.Kind, a.Ref.Kind) }) // queues first
	told, more := 0, 0
	for _, c := range boxes {
		f, err := e.box(c.Mailbox, c.waiting, session.MailboxLimit)
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
	}
	if more > 0 {
		e.add(finding.Finding{Severity: finding.Warning, Subject: "mailboxes", Since: e.about.Now,
			Summary:  finding.Count(more, "more mailbox") + " full, or with messages that no agent takes",
			Commands: []finding.Command{{"status", "-o", "json"}}})
	}
	return nil
}

// box examines a mailbox. The finding is Info if nothing is wrong with it, or if the finding of an
// agent covers it.
func (e *explanation) box(c broker.Mailbox, waiting, limit int64) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + c.Ref.String(), Summary: wait(waiting) + " in it"}
	if limit > 0 && waiting*10 >= limit*nearlyFull {
		f.Severity = finding.Warning
		f.Summary = fmt.Sprintf("%d of at most %d messages wait in it (a warning from %d0 %% on)", waiting, limit, nearlyFull)
		if waiting >= limit {
			f.Severity = finding.Error
			f.Reasons = append(f.Reasons, "it is full: the broker refuses further messages to it")
		}
		f.Commands = append(f.Commands, finding.Command{"session", "configure", "--mailbox-limit",
			strconv.FormatInt(2*limit, 10)})
	}
	full := f.Severity
	err := e.line(&f, c.Ref, c.ID)
	f.Severity = max(f.Severity, full)
	return f, err
}

// blame adds the finding about an agent that gets no work, once; it covers the messages and
// questions that wait for the agent.
func (e *explanation) blame(name string) error {
	m, registered, err := e.member(name)
	if err != nil || e.blamed[name] || !registered {
		return err
	}
	e.blamed[name] = true
	if e.idle == mostOfAKind {
		e.more++
		return nil
	}
	e.idle++
	s := &server{m, e.gates[name]}
	f := finding.Finding{Severity: finding.Warning, Subject: "agent " + name}
	if f.Reasons, err = e.waitingFor(s); err != nil {
		return err
	}
	if len(f.Reasons) > 0 {
		f.Severity = finding.Error
	}
	switch s.ability(false, e.about.Now) {
	case failed:
		f.Severity, f.Since = finding.Error, m.FailedAt
		f.Summary = "it has failed: its lease ended at " + e.about.When(m.FailedAt)
		f.Reasons = append(f.Reasons, "its last call was at "+e.about.When(m.LastSeen)+"; its next call revives it")
		if f.Commands, err = e.freeing(nil, s); err == nil && f.Commands[0][0] != "--agent" {
			f.Reasons = append(f.Reasons,
				"the broker does not know how its program was started: start it again, or give its messages to others")
		}
	case stopped:
		f.Severity, f.Since = finding.Warning, m.StoppedAt
		f.Summary = "it has stopped: its program ended at " + e.about.When(m.StoppedAt)
		f.Reasons = append(f.Reasons, "start its program again, or give its messages to others")
		if f.Commands, err = e.freeing(nil, s); len(f.Commands) == 0 {
			f.Commands = []finding.Command{{"agent", "get", name}}
		}
	case halted:
		f.Since = s.haltedAt
		f.Summary = "it is halted: until a resume it gets nothing but directives"
		if by, err := e.onlySender(s.halt); err == nil { // retention may have removed the directive
			f.Summary = "it is halted by " + by + ": until a resume it gets nothing but directives"
		}
		f.Commands, err = e.freeing(nil, s)
	default:
		f.Severity, f.Since, f.Summary = finding.Warning, s.openedAt, "it is degraded: "+e.breaker(s)
		if !f.Since.IsZero() { // an earlier version did not record it
			f.Summary = "it is degraded since " + e.about.When(f.Since) + ": " + e.breaker(s)
		}
		f.Reasons = append(f.Reasons, "registering "+name+" again closes the breaker at once; a program that runs as "+
			name+" must then register as well")
		var command finding.Command
		command, err = e.crew.Registering(e.q, e.about.Session, name)
		f.Commands = []finding.Command{command}
	}
	e.add(f)
	return err
}

// waitingFor says which mail waits for one agent alone: messages in its mailbox, its role's and its
// channels', and overdue questions.
func (e *explanation) waitingFor(s *server) (says []string, err error) {
	own, err := e.broker.FindMailbox(e.q, e.about.Session, mailboxOf(s.Name))
	if err != nil {
		return nil, err
	}
	boxes, err := e.broker.Reachable(e.q, broker.Actor{Agent: s.Agent, Session: broker.Session{ID: e.about.Session}, Mailbox: own})
	if err != nil {
		return nil, err
	}
	for _, box := range boxes {
		_, waiting, err := e.waitingIn(box.Ref)
		if err != nil {
			return nil, err
		}
		servers, err := e.serving(box.Ref, box.ID, "")
		if err != nil {
			return nil, err
		}
		if waiting == 0 || len(servers) != 1 {
			continue
		}
		says = append(says, wait(waiting)+[...]string{
			broker.AgentMailbox:   " in its mailbox",
			broker.RoleMailbox:    " for the role " + box.Ref.Name + ", which no other agent has",
			broker.ChannelMailbox: " in the channel " + box.Ref.Name + ", which no other agent subscribes to",
		}[box.Ref.Kind])
	}
	return e.owed(says, s.Name, own)
}

// owed adds the overdue questions in a mailbox, and those that its agent has acknowledged, except the
// questions that the agent has asked.
func (e *explanation) owed(says []string, agent string, mailbox int64) ([]string, error) {
	questions, err := readQuestions(e.q.Query(selectLateOwed, e.about.Session, agent, mailbox, mostOfAKind))
	if err != nil || len(questions) == 0 {
		return says, err
	}
	ids := make([]string, len(questions))
	for i := range questions {
		ids[i] = strconv.FormatInt(questions[i].message, 10)
	}
	text := fmt.Sprintf("%d overdue questions wait for an answer: messages ", len(ids))
	if len(ids) == 1 {
		text = "1 overdue question waits for an answer: message "
	}
	return append(says, text+finding.Names(ids)+", since "+e.about.When(questions[0].deadline)), nil
}

// orderings finds ordering keys whose first message has held up another for too long.
func (e *explanation) orderings(c broker.Mailbox) error {
	type heldUp struct {
		key   string
		head  int64
		since time.Time
	}
	var all []heldUp
	rows := e.q.Query(selectOrderings, c.ID, mostOrderings, e.about.Now.Add(-longBlocked))
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
		first, err := e.deliveries(h.head, c.ID, 1)
		if err != nil {
			return err
		}
		if len(first) == 0 || first[0].state == broker.Pending {
			continue // the finding of the mailbox covers it
		}
		of, err := e.delivery(&first[0])
		if err != nil {
			return err
		}
		e.heldUp++
		e.add(finding.Finding{Severity: finding.Warning, Subject: "mailbox " + c.Ref.String(), Since: h.since,
			Summary: fmt.Sprintf("messages with the ordering key %q wait behind message %d%s", finding.Clip(h.key), h.head,
				finding.After(longBlocked)),
			Reasons:  append([]string{fmt.Sprintf("message %d: %s", h.head, of.Summary)}, of.Reasons...),
			Commands: of.Commands})
	}
	return nil
}

// longClaims finds agents that hold claims for too long; an agent that is late has less time.
func (e *explanation) longClaims() error {
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
		id, err := e.broker.FindMailbox(e.q, e.about.Session, mailboxOf(name))
		if err != nil {
			return err
		}
		if err := e.working(name, id); err != nil {
			return err
		}
	}
	return nil
}

// deadBoxes finds dead letters, by mailbox; only in one mailbox unless that is nil.
func (e *explanation) deadBoxes(only any) error {
	type dying struct {
		id  int64
		ref broker.MailboxRef
		n   int64
	}
	const most = 1000 // dead letters that are counted in each
	var boxes []dying
	rows := e.q.Query(selectDeadBoxes, e.about.Session, most, mostOfAKind, only)
	for rows.Next() {
		var d dying
		var kind int
		if err := rows.Scan(&d.id, &kind, &d.ref.Name, &d.n); err != nil {
			return err
		}
		d.ref.Kind = broker.MailboxKind(kind)
		boxes = append(boxes, d)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, d := range boxes {
		f := finding.Finding{Severity: finding.Error, Subject: "mailbox " + d.ref.String(),
			Summary: finding.Count(d.n, "dead letter")}
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
		for _, command := range of.Commands { // for the whole mailbox
			f.Commands = append(f.Commands, finding.Command{"dlq", command[1], "--mailbox", d.ref.String()})
		}
		f.Commands = append(f.Commands, finding.Command{"dlq", "list", "--mailbox", d.ref.String()})
		e.add(f)
	}
	return nil
}
