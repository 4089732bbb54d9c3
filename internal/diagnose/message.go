package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// A stuck is a delivery that is to be explained.
type stuck struct {
	message     int64
	mailbox     int64
	ref         broker.MailboxRef
	state       broker.State
	rank        int64
	claims      int
	attempts    int
	maxAttempts int
	holder      string
	claimedAt   time.Time
	readAt      time.Time
	finishedAt  time.Time
	dueAt       time.Time
	ordering    string
	sentAt      time.Time
	sender      string
}

// id is how commands name the message.
func (s *stuck) id() string { return strconv.FormatInt(s.message, 10) }

// deliveries returns the deliveries of a message, the worst first; only the one in a mailbox unless
// that is 0.
func (e *explanation) deliveries(message, mailbox int64, most int) ([]stuck, error) {
	var found []stuck
	rows := e.q.Query(selectStuckDeliveries, message, mailbox, most)
	for rows.Next() {
		d := stuck{message: message}
		var kind, state int
		if err := rows.Scan(&d.mailbox, &kind, &d.ref.Name, &state, &d.rank, &d.claims, &d.attempts, &d.maxAttempts,
			&d.holder, &d.claimedAt,
			&d.readAt, &d.finishedAt, &d.dueAt, &d.ordering, &d.sentAt, &d.sender); err != nil {
			return nil, err
		}
		d.ref.Kind, d.state = broker.MailboxKind(kind), broker.State(state)
		found = append(found, d)
	}
	return found, rows.Err()
}

// message explains a message: each of its deliveries, and the answer that it requires.
func (e *explanation) message() error {
	ref, ok := broker.ParseRef(e.about.Name)
	if !ok {
		return fault.Field("message", "is no message's id and no revision")
	}
	m, err := broker.FindMessage(e.q, e.about.Session, ref)
	if err != nil {
		return err
	}
	all, err := e.deliveries(m.Revision, 0, mostDeliveries)
	if err != nil {
		return err
	}
	subject := "message " + strconv.FormatInt(m.Revision, 10)
	for i := range all {
		f, err := e.delivery(&all[i])
		if err != nil {
			return err
		}
		f.Subject = subject
		e.add(f)
	}
	if len(all) != 1 {
		var of, acked int
		if err := e.q.QueryRow(countDeliveries, m.Revision).Scan(&of, &acked); err != nil {
			return err
		}
		says := fmt.Sprintf("%d of %s have finished it", acked, finding.Count(of, "recipient"))
		if of == 0 {
			says = "it had no recipients when it was sent"
		}
		e.add(finding.Finding{Severity: finding.Info, Subject: subject, Summary: says, Since: m.CreatedAt,
			Commands: []finding.Command{{"message", "report", strconv.FormatInt(m.Revision, 10)}}})
	}
	return e.answer(&m, all)
}

// answer explains whether the answer that a message requires has come.
func (e *explanation) answer(m *broker.Message, all []stuck) error {
	var deadline time.Time
	var settled, reply int64
	err := e.q.QueryRow(selectQuestionOf, m.Revision).Scan(&deadline, &settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	id := strconv.FormatInt(m.Revision, 10)
	f := finding.Finding{Severity: finding.Info, Subject: "message " + id, Since: m.CreatedAt}
	switch {
	case reply != 0:
		f.Summary = "it was answered by message " + strconv.FormatInt(reply, 10)
		f.Commands = []finding.Command{{"message", "get", strconv.FormatInt(reply, 10)}}
	case settled != 0:
		f.Summary = "its sender expects no answer any more: its thread was resolved, or it was cancelled"
	case deadline.After(e.about.Now):
		f.Summary = "its answer is due at " + e.about.When(deadline)
	default:
		f = e.overdue(m, deadline, all)
	}
	e.add(f)
	return nil
}

// overdue explains that the answer is late. The agent that owes it gets the command that answers;
// the sender and an operator get those that ask again or give up.
func (e *explanation) overdue(m *broker.Message, deadline time.Time, all []stuck) finding.Finding {
	id := strconv.FormatInt(m.Revision, 10)
	f := finding.Finding{Severity: finding.Warning, Subject: "message " + id, Since: deadline,
		Summary: m.Sender + " waits for its answer, which was due at " + e.about.When(deadline)}
	finished, owes := true, false
	for i := range all {
		d := &all[i]
		finished = finished && !d.state.Waits()
		owes = owes || e.owes(m, d)
		if len(f.Reasons) == mostServers {
			continue
		}
		switch {
		case d.state == broker.Acked:
			f.Reasons = append(f.Reasons, fmt.Sprintf("%s acknowledged it at %s without an answer", d.holder,
				e.about.When(d.finishedAt)))
			f.Commands = append(f.Commands, finding.Command{"agent", "nudge", d.holder, "answer message " + id})
		case d.state == broker.Claimed:
			f.Reasons = append(f.Reasons, fmt.Sprintf("%s holds it as claim %s since %s", d.holder,
				broker.ClaimID(d.message, d.claims), e.about.When(d.claimedAt)))
		case d.state.Waits():
			f.Reasons = append(f.Reasons, "it waits in "+d.ref.String())
		case d.state == broker.Dead:
			f.Reasons = append(f.Reasons, "it is a dead letter in "+d.ref.String())
		}
	}
	if owes {
		f.Reasons = slices.Insert(f.Reasons, 0,
			fmt.Sprintf("answer it with: brokerctl --agent %s reply %s TEXT", e.about.Asker, id))
		f.Commands = append(f.Commands, finding.Command{"message", "get", id})
	}
	if !finished && e.about.Mine(m.Sender) {
		f.Commands = append(f.Commands, finding.Command{"message", "resend", id})
	}
	if e.about.Kind != finding.Message {
		f.Commands = append(f.Commands, finding.Command{"explain", "message", id})
	}
	if e.about.Mine(m.Sender) {
		f.Commands = append(f.Commands, finding.Command{"thread", "resolve", m.ThreadID(), "no answer came"})
	}
	return f
}

// owes reports whether the asking agent owes the answer because of a delivery.
func (e *explanation) owes(m *broker.Message, d *stuck) bool {
	asker := e.about.Asker
	return asker != "" && asker != m.Sender && d.state != broker.Expired && d.state != broker.Cancelled &&
		(d.holder == asker || d.ref == mailboxOf(asker))
}

// delivery explains one delivery.
func (e *explanation) delivery(d *stuck) (finding.Finding, error) {
	switch d.state {
	case broker.Pending:
		return e.pending(d)
	case broker.Blocked:
		return e.blocked(d)
	case broker.Delayed:
		return e.delayed(d)
	case broker.Claimed:
		return e.claimed(d)
	case broker.Dead:
		return e.dead(d)
	}
	f := finding.Finding{Severity: finding.Info, Since: d.finishedAt,
		Commands: []finding.Command{{"message", "get", d.id()}}}
	switch d.state {
	case broker.Acked:
		f.Summary = d.holder + " has finished it"
		if d.ref.Kind != broker.AgentMailbox {
			f.Summary += ", from " + d.ref.String()
		}
	case broker.NoticeUnread:
		f.Summary = "it is a notice of the broker, which " + d.ref.Name + " has not read"
	case broker.Expired:
		f.Summary = "it has expired in " + d.ref.String() + ": no agent took it within its time to live"
	default:
		f.Summary = "it was cancelled in " + d.ref.String()
	}
	return f, nil
}

// pending explains a delivery that the broker could deliver.
func (e *explanation) pending(d *stuck) (finding.Finding, error) {
	f := finding.Finding{Since: d.sentAt}
	st, err := e.standing(d.ref, d.mailbox, d.sender, d.rank < broker.DirectiveRank)
	if err != nil {
		return f, err
	}
	f.Severity, f.Reasons, f.Commands = st.severity, st.reasons, st.commands
	var ahead int64
	if err := e.q.QueryRow(countAhead, d.mailbox, d.rank, d.message, mostBefore).Scan(&ahead); err != nil {
		return f, err
	}
	f.Summary = "it waits in " + d.ref.String()
	switch {
	case ahead >= mostBefore:
		f.Summary += fmt.Sprintf(" behind %d or more messages", mostBefore)
	case ahead > 0:
		f.Summary += " behind " + finding.Count(ahead, "message")
	default:
		f.Summary += " as the first"
	}
	if st.says != "" {
		f.Summary += ", and " + st.says
	}
	if says, err := e.lastOffer(d); err != nil {
		return f, err
	} else if says != "" {
		f.Reasons = append(f.Reasons, says)
	}
	if d.attempts > 0 {
		says, err := e.lastFailure(d)
		if err != nil {
			return f, err
		}
		f.Reasons = append(f.Reasons, says)
	}
	ready := d.sentAt
	for _, later := range []time.Time{d.dueAt, d.claimedAt} {
		if later.After(ready) {
			ready = later
		}
	}
	if waits := e.about.Now.Sub(ready); st.severity == finding.Info && waits >= slowMail && d.readAt.IsZero() {
		f.Severity = finding.Warning
		f.Summary += fmt.Sprintf(", for %s%s", finding.Rough(waits), finding.After(slowMail))
		f.Commands = append(f.Commands, finding.Command{"agent", "nudge", d.ref.String()})
	}
	for i, command := range f.Commands { // only this message
		if command[0] == "admin" {
			f.Commands[i] = append(slices.Clone(command), "--id", d.id())
		}
	}
	if e.about.Mine(d.sender) {
		f.Commands = append(f.Commands, finding.Command{"message", "cancel", d.id()})
	}
	return f, nil
}

// lastOffer says what became of the last attempt to put a delivery before a model; "" if there was none.
func (e *explanation) lastOffer(d *stuck) (string, error) {
	var way int
	var harness, why string
	var offered, accepted, returned time.Time
	err := e.q.QueryRow(selectLastOffer, d.message, d.mailbox).Scan(&way, &harness, &offered, &accepted, &returned, &why)
	if errors.Is(err, store.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	says := fmt.Sprintf("it was offered to session %s of %s (%s) at %s", finding.Clip(harness), d.ref.Name, broker.Way(way),
		e.about.When(offered))
	switch {
	case !accepted.IsZero():
		return says + ", which accepted it at " + e.about.When(accepted), nil
	case !returned.IsZero():
		return says + ", without success: " + finding.Clip(why), nil
	}
	return says + "; there is no evidence yet that its model received it", nil
}

// blocked explains a delivery that waits for another one with its ordering key, and that one too.
func (e *explanation) blocked(d *stuck) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Warning, Since: d.sentAt}
	var head int64
	err := e.q.QueryRow(selectHead, d.mailbox, d.ordering).Scan(&head)
	if err != nil {
		return f, fmt.Errorf("head of ordering key: %w", err)
	}
	first, err := e.deliveries(head, d.mailbox, 1)
	if err != nil || len(first) == 0 || first[0].state == broker.Blocked { // the last never is: see invariants
		return f, err
	}
	of, err := e.delivery(&first[0])
	if err != nil {
		return f, err
	}
	var before int64
	if err := e.q.QueryRow(countOrderedBefore, d.mailbox, d.ordering, d.message, mostBefore).Scan(&before); err != nil {
		return f, err
	}
	f.Severity = of.Severity
	f.Summary = fmt.Sprintf("it waits in %s behind message %d, which has the same ordering key, %q", d.ref, head,
		finding.Clip(d.ordering))
	if before > 1 {
		f.Reasons = append(f.Reasons, fmt.Sprintf("%s with this key come before it", finding.Count(before, "message")))
	}
	f.Reasons = append(f.Reasons, fmt.Sprintf("message %d: %s", head, of.Summary))
	f.Reasons = append(f.Reasons, of.Reasons...)
	f.Commands = append(f.Commands, of.Commands...)
	return f, nil
}

// delayed explains a delivery that is not due yet.
func (e *explanation) delayed(d *stuck) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Since: d.sentAt, Commands: []finding.Command{{"message", "get", d.id()}}}
	if e.about.Mine(d.sender) {
		f.Commands = append(f.Commands, finding.Command{"message", "cancel", d.id()})
	}
	if d.attempts == 0 {
		f.Summary = fmt.Sprintf("its sender delayed it: the broker delivers it in %s from %s on", d.ref,
			e.about.When(d.dueAt))
		return f, nil
	}
	f.Summary = fmt.Sprintf("it has failed %d of %d times in %s; the next attempt is at %s", d.attempts, d.maxAttempts,
		d.ref, e.about.When(d.dueAt))
	says, err := e.lastFailure(d)
	f.Reasons = append(f.Reasons, says)
	return f, err
}

// lastFailure says how the last attempt ended.
func (e *explanation) lastFailure(d *stuck) (string, error) {
	var by, why string
	var at time.Time
	err := e.q.QueryRow(selectLastAttempt, d.message, d.mailbox).Scan(&by, &at, &why)
	if errors.Is(err, store.ErrNoRows) {
		return fmt.Sprintf("it has failed %d of %d times", d.attempts, d.maxAttempts), nil
	}
	return fmt.Sprintf("the last attempt, by %s, ended at %s: %s", by, e.about.When(at), finding.Clip(why)), err
}

// claimed explains a delivery that an agent works on.
func (e *explanation) claimed(d *stuck) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Since: d.claimedAt}
	f.Summary = d.holder + " works on it"
	if d.ref.Kind != broker.AgentMailbox {
		f.Summary += ", from " + d.ref.String()
	}
	if until, ok := e.broker.ClaimEnds(d.message, d.mailbox); ok {
		f.Reasons = append(f.Reasons, fmt.Sprintf("the claim, attempt %d of %d, ends at %s unless it is extended",
			d.attempts+1, d.maxAttempts, e.about.When(until)))
	}
	m, registered, err := e.member(d.holder)
	if err != nil {
		return f, err
	}
	held := e.about.Now.Sub(d.claimedAt)
	switch {
	case registered && m.Health == Late:
		f.Reasons = append(f.Reasons,
			m.Name+" is late: its last call was at "+e.about.When(m.LastSeen)+finding.After(lateClaim))
		if held >= lateClaim {
			f.Severity = finding.Warning
		}
	case registered && m.Health == Failed: // the broker returns its claims at the same moment
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, m.Name+" has failed")
	case registered:
		f.Reasons = append(f.Reasons, "the last call of "+m.Name+" was at "+e.about.When(m.LastSeen))
	}
	if held >= longClaim {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, m.Name+" has held the claim for "+finding.Rough(held)+finding.After(longClaim))
	}
	if g := e.gates[d.holder]; !g.haltedAt.IsZero() {
		f.Reasons = append(f.Reasons, d.holder+" is halted since "+e.about.When(g.haltedAt))
		f.Commands = append(f.Commands, finding.Command{"agent", "resume", d.holder})
	}
	release := finding.Command{"--agent", d.holder, "release", broker.ClaimID(d.message, d.claims)}
	ask := finding.Command{"explain", "agent", d.holder}
	if f.Severity == finding.Info {
		f.Commands = append(f.Commands, ask, release)
	} else {
		f.Commands = append(f.Commands, release, ask)
	}
	return f, nil
}

// dead explains a dead letter.
func (e *explanation) dead(d *stuck) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Error, Since: d.finishedAt}
	f.Summary = fmt.Sprintf("it is a dead letter in %s after %s", d.ref, finding.Count(d.attempts, "attempt"))
	says, err := e.lastFailure(d)
	if err != nil {
		return f, err
	}
	f.Reasons = append(f.Reasons, says)
	if d.ref.Kind == broker.AgentMailbox {
		if _, registered, err := e.member(d.ref.Name); err != nil {
			return f, err
		} else if !registered && e.crew != nil {
			f.Reasons = append(f.Reasons,
				"no agent "+d.ref.Name+" is registered; dlq redrive helps only once it has registered again")
			f.Commands = []finding.Command{{"dlq", "delete", d.id(), "--mailbox", d.ref.String()}}
			return f, nil
		}
	}
	f.Commands = []finding.Command{{"dlq", "redrive", d.id(), "--mailbox", d.ref.String()},
		{"dlq", "delete", d.id(), "--mailbox", d.ref.String()}}
	return f, nil
}
