package broker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Question is a message that requires a response and has none.
type Question struct {
	Message
	Deadline time.Time
	Overdue  bool
}

// Subject returns one line that says what the question is about.
func (q *Question) Subject() string { return Title(q.Content) }

// checkDeadline refuses a deadline that has passed or is too far ahead.
func (d *Draft) checkDeadline(now time.Time) error {
	switch {
	case d.Deadline.IsZero():
		return nil
	case !d.Deadline.After(now):
		return fault.Field("response_deadline", "is not in the future")
	case d.Deadline.Sub(now) > MaxTTL:
		return fault.Field("response_deadline", "is more than 365 days ahead")
	}
	return nil
}

// question notes that a message requires a response.
func (s *sending) question(d *Draft, m *Message) {
	s.due = Earliest(s.due, d.Deadline)
	s.tx.Exec(insertQuestion, m.Revision, s.actor.Session.ID, m.Sender, m.ThreadID(), d.Deadline)
}

// ThreadID returns the thread that a message belongs to: its own id if it names none.
func (m *Message) ThreadID() string {
	if m.Thread == "" {
		return m.ID.String()
	}
	return m.Thread
}

// An answering is what a draft answers. It is nil for a draft that answers nothing.
type answering struct {
	to    Message
	open  bool      // it requires a response, has none, and this is one
	waits []*asking // calls that get it
}

// answers finds out what a draft answers. A reply that is to be delivered later is nobody's who waits now; a
// directive is no reply.
func (s *sending) answers(d *Draft) (*answering, error) {
	if d.ReplyTo.Revision == 0 {
		return nil, nil
	}
	m, err := FindMessage(s.tx, s.actor.Session.ID, d.ReplyTo)
	if err != nil {
		return nil, err
	}
	a := &answering{to: m}
	if m.Sender == s.actor.Name || IsDirective(d.Type) {
		return a, nil
	}
	var settled, reply int64
	err = s.tx.QueryRow(selectQuestion, m.Revision).Scan(&settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return a, nil
	}
	a.open = settled == 0
	if a.open && !d.NotBefore.After(s.tx.Now()) {
		a.waits = s.waitingFor(m.Revision)
	}
	return a, err
}

// awaited reports whether a call waits for it.
func (a *answering) awaited() bool { return a != nil && len(a.waits) > 0 }

// awaitedIn reports whether the mailbox is that of an agent whose call waits for it.
func (a *answering) awaitedIn(r *room) bool {
	return a.awaited() && r.ref == MailboxRef{AgentMailbox, a.to.Sender}
}

// ThreadID returns the thread that is stored with a draft: the given one, or that of the message it answers, or none,
// which means its own.
func (a *answering) thread(d *Draft) string {
	if a == nil || d.Thread != "" {
		return d.Thread
	}
	return a.to.ThreadID()
}

// answer settles the question with its first reply, and has those who wait for it told.
func (s *sending) answer(a *answering, m *Message) error {
	s.tx.Exec(updateSettled, m.Revision, m.Revision, a.to.Revision)
	s.endWaits(s.tx, a.to.Revision, a.waits, verdict{reply: m})
	return s.Withdraw(s.tx, s.actor.Session.ID, Moot{About: a.to.Revision, Type: overdueType})
}

// settleQuestion settles an open question otherwise than by a reply; those who wait for one are told why none comes.
func (b *Broker) settleQuestion(tx *store.Tx, session, message, revision int64, why NoReplyReason) error {
	tx.Exec(updateSettled, revision, nil, message)
	b.endWaits(tx, message, b.waitingFor(message), verdict{none: NoReply{Reason: why}})
	return b.Withdraw(tx, session, Moot{About: message, Type: overdueType})
}

// isOpen reports whether a message requires a response and has none.
func isOpen(q store.Querier, message int64) (bool, error) {
	var settled, reply int64
	err := q.QueryRow(selectQuestion, message).Scan(&settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	return settled == 0, err
}

// nextReminder returns when the next response is overdue or the next delivery is to arrive anew; zero for never.
func (b *Broker) nextReminder(q store.Querier) (time.Time, error) {
	var overdue, resend time.Time
	err := q.QueryRow(selectNextReminders).Scan(&overdue, &resend)
	return Earliest(overdue, resend), err
}

// A lateness is a question whose deadline has passed.
type lateness struct {
	Question
	session int64
	task    string
}

// tellOverdue reports each question whose deadline has passed once: by an event, and by a notice to
// the first of the session's escalation roles that a registered agent has.
func (b *Broker) tellOverdue(tx *store.Tx) error {
	var found []lateness
	rows := tx.Query(selectOverdue, tx.Now(), calendarPage)
	for rows.Next() {
		var l lateness
		var id []byte
		if err := rows.Scan(&l.Revision, &l.session, &l.Deadline, &l.Thread, &id, &l.Sender, &l.CreatedAt, &l.task, &l.Content); err != nil {
			return err
		}
		copy(l.ID[:], id)
		found = append(found, l)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for i := range found {
		if err := b.escalate(tx, &found[i]); err != nil {
			return err
		}
	}
	return nil
}

// escalate reports one question whose deadline has passed. In a closed session it reports nothing:
// nothing changes there.
func (b *Broker) escalate(tx *store.Tx, l *lateness) error {
	session, err := b.dir.ByID(tx, l.session)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return err
	}
	revision := int64(0)
	if removed := l.Sender == ""; err == nil && !session.Closed && !removed {
		role, err := b.escalation(tx, session)
		if err != nil {
			return err
		}
		entry := system(l.session).Event("message.overdue")
		entry.Severity = events.Warning
		entry.Summary = fmt.Sprintf("message %d of %s has no response", l.Revision, l.Sender)
		entry.Related = []string{strconv.FormatInt(l.Revision, 10)}
		entry.TaskID = l.task
		entry.Details = fmt.Sprintf(`{"sender":%s,"deadline":%q,"escalated_to":%s}`, Quote(l.Sender), l.Deadline.Format(time.RFC3339Nano), Quote(role))
		if revision, err = b.log.Append(tx, entry); err != nil {
			return err
		}
		if err := b.notifier.Notify(tx, l.session, overdueNotice(role, l)); err != nil {
			return err
		}
	}
	tx.Exec(updateOverdue, revision, l.Revision)
	return nil
}

// overdueType is the type of the notice about a question that has no response in time.
const overdueType = "overdue"

// overdueNotice is that notice, to all agents of a role.
func overdueNotice(role string, l *lateness) Notice {
	until := l.Deadline.Format(time.RFC3339)
	return Notice{
		Role: role, Type: overdueType, Task: l.task, About: l.Revision,
		Subject: fmt.Sprintf("message %d of %s has had no response by %s: %s", l.Revision, l.Sender, until, l.Subject()),
		Payload: `{"id":"` + l.ID.String() + `","revision":` + strconv.FormatInt(l.Revision, 10) +
			`,"sender":` + Quote(l.Sender) + `,"deadline":"` + until + `"}`,
	}
}

// escalation returns the first role of the session's that a registered agent has, or none.
func (b *Broker) escalation(tx *store.Tx, session Session) (string, error) {
	for _, role := range session.EscalateTo {
		agents, err := b.dir.Matching(tx, session.ID, Selection{Role: role, Most: 1})
		if err != nil || len(agents) > 0 {
			return role, err
		}
	}
	return "", nil
}

// recipients is route, but refuses a reply to a message of the broker itself, which nobody would read.
func (s *sending) recipients(d *Draft, a *answering) ([]*room, error) {
	if a != nil && a.to.Sender == identity.System && d.Target == (Target{ToAgent, identity.System}) {
		var own bool
		if err := s.tx.QueryRow(selectIsBrokers, a.to.Revision).Scan(&own); err != nil {
			return nil, err
		}
		if own {
			return nil, fault.New(fault.Precondition, "NOBODY_WAITS",
				"message %d takes no reply: the broker has sent it to inform its recipients; acknowledge it", a.to.Revision)
		}
	}
	return s.route(d)
}
