package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
)

// gatedAgents finds the agents that get no work, except those that have stopped.
func (e *explanation) gatedAgents() {
	for _, t := range e.agents {
		if _, gated := e.gates[t.Name]; gated && t.Health != directory.Stopped {
			e.blame(t.Name)
		}
	}
}

// moreAgents counts the agents that get no work and have no finding.
func (e *explanation) moreAgents() {
	if e.more == 0 {
		return
	}
	e.add(finding.Finding{Severity: finding.Warning, Subject: "agents", Since: e.about.Now,
		Summary: finding.Count(e.more, "more agent") +
			" without work: failed, stopped, halted, or with an open circuit breaker",
		Calls: []calls.Call{calls.Do(&pb.ListAgentsRequest{})}})
}

// askedOperators finds the questions that wait for the answer of an operator. Those that are overdue are
// separate findings.
func (e *explanation) askedOperators() {
	id := e.mailboxID(mail.OperatorMailbox)
	if id == 0 {
		return
	}
	asked, err := mail.Owed(e.q, e.about.Session, mail.OperatorMailbox.Name, id, mostQuestions, e.about.Now)
	e.fail(err)
	f := finding.Finding{Severity: finding.Warning, Subject: "operators",
		Calls: []calls.Call{inbox()}}
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
		f.Reasons = f.Reasons[:min(n, mostDescribed)]
		e.add(f)
	}
}

// mailboxes finds mailboxes that no agent takes from, that are full or nearly so, and ordering
// keys in them that are held up. Agents that get no work cover the mailboxes and questions that wait for
// them. Queues of several such agents come first, since they cover these agents.
func (e *explanation) mailboxes() {
	session, err := e.dir.ByID(e.q, e.about.Session)
	e.fail(err)
	e.loadAgents()
	boxes := e.fullest()
	for _, c := range boxes[:min(len(boxes), mostKeyed)] {
		e.orderings(c.Mailbox)
	}
	slices.SortStableFunc(boxes, func(a, b countedBox) int { return cmp.Compare(b.Ref.Kind, a.Ref.Kind) })
	told, more := 0, 0
	for _, c := range boxes {
		f := e.mailbox(c, session.Settings.GetMailboxLimit())
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
			Summary: finding.Count(more, "more mailbox") + " full, or with messages that no agent takes",
			Calls:   []calls.Call{calls.Do(&pb.GetStatusRequest{})}})
	}
}

// mailbox examines a mailbox. The finding is Info if nothing is wrong with it, or if the finding of an
// agent covers it.
func (e *explanation) mailbox(c countedBox, limit int64) finding.Finding {
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + c.Ref.String(), Summary: wait(c.waiting) + " in it"}
	if limit > 0 && c.waiting*10 >= limit*nearlyFull {
		f.Severity = finding.Warning
		f.Summary = fmt.Sprintf("%d of at most %d messages wait in it (a warning from %d0 %% on)", c.waiting, limit,
			nearlyFull)
		if c.waiting >= limit {
			f.Severity = finding.Error
			f.Reasons = append(f.Reasons, "it is full: the broker refuses further messages to it")
		}
		f.Calls = append(f.Calls, calls.Do(&pb.ConfigureSessionRequest{
			Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(2 * limit)}}))
	}
	full := f.Severity
	e.line(&f, c.Ref, c.ID)
	f.Severity = max(f.Severity, full)
	return f
}

// blame adds the finding about an agent that gets no work, once; it covers the messages and
// questions that wait for the agent.
func (e *explanation) blame(name string) {
	t, registered := e.taker(name)
	if e.blamed[name] || !registered {
		return
	}
	e.blamed[name] = true
	if e.idle == mostOfAKind {
		e.more++
		return
	}
	e.idle++
	f := finding.Finding{Severity: finding.Warning, Subject: "agent " + name, Reasons: e.waitingFor(t)}
	if len(f.Reasons) > 0 {
		f.Severity = finding.Error
	}
	f.Calls = e.freeing(t)
	switch t.ability(false, e.about.Now) {
	case failed:
		f.Severity, f.Since = finding.Error, t.FailedAt
		f.Summary = "it has failed: its lease ended at " + e.about.When(t.FailedAt)
		f.Reasons = append(f.Reasons, "its last call was at "+e.about.When(t.LastSeen)+"; its next call revives it")
		if f.Calls[0].Program == nil {
			f.Reasons = append(f.Reasons,
				"the broker does not know how its program was started: start it again, or give its messages to others")
		}
	case stopped:
		f.Severity, f.Since = finding.Warning, t.StoppedAt
		f.Summary = "it has stopped: its program ended at " + e.about.When(t.StoppedAt)
		f.Reasons = append(f.Reasons, "start its program again, or give its messages to others")
		if len(f.Calls) == 0 {
			f.Calls = []calls.Call{calls.Do(&pb.GetAgentRequest{Name: name})}
		}
	case halted:
		f.Since, f.Summary = t.haltedAt, "it is halted"
		m, err := mail.FindMessage(e.q, e.about.Session, msgid.Ref{Revision: t.halt})
		if err == nil { // retention may have removed the directive
			f.Summary += " by " + m.Sender
		}
		f.Summary += ": until a resume it gets nothing but directives"
	default:
		f.Severity, f.Since, f.Summary = finding.Warning, t.openedAt, "it is degraded: "+e.breaker(t)
		if !f.Since.IsZero() { // an earlier version did not record it
			f.Summary = "it is degraded since " + e.about.When(f.Since) + ": " + e.breaker(t)
		}
		f.Reasons = append(f.Reasons, "registering "+name+" again closes the breaker at once; a program that runs as "+
			name+" must then register as well")
		call, err := e.crew.Registering(e.q, e.about.Session, name)
		e.fail(err)
		f.Calls = []calls.Call{call}
	}
	e.add(f)
}

// waitingFor says which mail waits for one agent alone: messages in its mailbox, its role's and its
// channels', and overdue questions.
func (e *explanation) waitingFor(t *taker) (says []string) {
	own := e.mailboxID(mailboxOf(t.Name))
	for _, box := range e.reachable(t.Agent, own) {
		_, waiting := e.waitingIn(box.Ref)
		if len(e.takers(box.Ref, box.ID, "")) != 1 || waiting == 0 {
			continue
		}
		says = append(says, wait(waiting)+[...]string{
			mail.AgentMailbox:   " in its mailbox",
			mail.RoleMailbox:    " for the role " + box.Ref.Name + ", which no other agent has",
			mail.ChannelMailbox: " in the channel " + box.Ref.Name + ", which no other agent subscribes to",
		}[box.Ref.Kind])
	}
	return e.owed(says, t.Name, own)
}

// orderings finds ordering keys whose first message has held up another for too long.
func (e *explanation) orderings(box mail.Mailbox) {
	type heldUp struct {
		key   string
		head  int64
		since time.Time
	}
	for _, h := range collect(&e.rowReader, func(h *heldUp) row { return row{&h.key, &h.head, &h.since} },
		selectOrderings, box.ID, mostOrderings, e.about.Now.Add(-longBlocked)) {
		if e.heldUp == mostOfAKind {
			break
		}
		first := e.deliveries(h.head, box.ID, 1)
		if len(first) == 0 || first[0].state == mail.Pending {
			continue // the finding of the mailbox covers it
		}
		of := e.explain(&first[0])
		e.heldUp++
		e.add(finding.Finding{Severity: finding.Warning, Subject: "mailbox " + box.Ref.String(), Since: h.since,
			Summary: fmt.Sprintf("messages with the ordering key %q wait behind message %d%s", finding.Clip(h.key),
				h.head, finding.After(longBlocked)),
			Reasons: append([]string{fmt.Sprintf("message %d: %s", h.head, of.Summary)}, of.Reasons...),
			Calls:   of.Calls})
	}
}

// longClaims finds agents that hold claims for too long; an agent that is late has less time.
func (e *explanation) longClaims() {
	type holder struct {
		name  string
		since time.Time // of its oldest claim
	}
	told := 0
	for _, h := range collect(&e.rowReader, func(h *holder) row { return row{&h.name, &h.since} },
		selectLongClaims, e.about.Session, e.about.Now.Add(-lateClaim), mostBoxes) {
		t, _ := e.taker(h.name)
		if told == mostOfAKind || e.about.Now.Sub(h.since) < longClaim && t.Health == directory.Alive {
			continue
		}
		told++
		e.claims(h.name, e.mailboxID(mailboxOf(h.name)))
	}
}

// deadLetters finds dead letters, by mailbox; only in one mailbox unless that is nil.
func (e *explanation) deadLetters(only any) {
	type box struct {
		id  int64
		ref mail.MailboxRef
		n   int64
	}
	for _, b := range collect(&e.rowReader, func(b *box) row { return row{&b.id, (*int)(&b.ref.Kind), &b.ref.Name, &b.n} },
		selectDeadBoxes, e.about.Session, mostLetters, mostOfAKind, only) {
		name := b.ref.String()
		f := finding.Finding{Severity: finding.Error, Subject: "mailbox " + name, Summary: finding.Count(b.n, "dead letter")}
		if b.n == mostLetters {
			f.Summary = fmt.Sprintf("%d dead letters or more", mostLetters)
		}
		var last int64
		e.read(row{&f.Since}, selectFirstDead, b.id)
		e.read(row{&last}, selectLastDead, b.id)
		found := e.deliveries(last, b.id, 1)
		if len(found) == 0 {
			return
		}
		of := e.dead(&found[0])
		f.Reasons = append([]string{fmt.Sprintf("the newest is message %d", last)}, of.Reasons...)
		for _, call := range of.Calls { // for the whole mailbox
			switch r := call.Request.(type) {
			case *pb.RedriveDeadLettersRequest:
				r.Ids = nil
			case *pb.PurgeDeadLettersRequest:
				r.Ids = nil
			}
			f.Calls = append(f.Calls, call)
		}
		f.Calls = append(f.Calls, calls.Do(&pb.ListDeadLettersRequest{Mailbox: name}))
		e.add(f)
	}
}
