package diagnose

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
)

// message explains a message: each of its deliveries, and the answer that it requires.
func (e *explanation) message() {
	ref, ok := msgid.ParseRef(e.about.Name)
	if !ok {
		e.fail(fault.Field("message", "is no message's id and no revision"))
	}
	m := e.find(ref)
	all := e.deliveries(m.Revision, 0, mostDeliveries)
	subject := "message " + revision(m.Revision)
	for i := range all {
		f := e.explain(&all[i])
		f.Subject = subject
		e.add(f)
	}
	if len(all) != 1 {
		var of, acked int
		e.read(row{&of, &acked}, countDeliveries, m.Revision)
		says := fmt.Sprintf("%d of %s have finished it", acked, finding.Count(of, "recipient"))
		if of == 0 {
			says = "it had no recipients when it was sent"
		}
		e.add(finding.Finding{Severity: finding.Info, Subject: subject, Summary: says, Since: m.CreatedAt,
			Calls: []calls.Call{calls.Do(&pb.GetMessageRequest{Id: revision(m.Revision)})}})
	}
	e.answer(&m, all)
}

// answer explains whether the answer that a message requires has come.
func (e *explanation) answer(m *mail.Message, all []delivery) {
	var deadline time.Time
	var settled, reply int64
	if !e.read(row{&deadline, &settled, &reply}, selectQuestionOf, m.Revision) {
		return
	}
	f := finding.Finding{Severity: finding.Info, Subject: "message " + revision(m.Revision), Since: m.CreatedAt}
	switch {
	case reply != 0:
		f.Summary = "it was answered by message " + revision(reply)
		f.Calls = []calls.Call{calls.Do(&pb.GetMessageRequest{Id: revision(reply)})}
	case settled != 0:
		f.Summary = "its sender expects no answer any more: its thread was resolved, or it was cancelled"
	case deadline.After(e.about.Now):
		f.Summary = "its answer is due at " + e.about.When(deadline)
	default:
		f = e.overdue(m, deadline, all)
	}
	e.add(f)
}

// overdue explains that the answer is late. The agent that owes it gets the call that answers;
// the sender and an operator get those that ask again or give up.
func (e *explanation) overdue(m *mail.Message, deadline time.Time, all []delivery) finding.Finding {
	id := revision(m.Revision)
	f := finding.Finding{Severity: finding.Warning, Subject: "message " + id, Since: deadline,
		Summary: m.Sender + " waits for its answer, which was due at " + e.about.When(deadline)}
	finished, owes := true, false
	for i := range all {
		d := &all[i]
		finished = finished && !d.state.Waits()
		owes = owes || e.owes(m, d)
		if len(f.Reasons) == mostDescribed {
			continue
		}
		switch {
		case d.state == mail.Acked:
			f.Reasons = append(f.Reasons, fmt.Sprintf("%s acknowledged it at %s without an answer", d.holder,
				e.about.When(d.finishedAt)))
			f.Calls = append(f.Calls, nudge(mailboxOf(d.holder), "answer message "+id))
		case d.state == mail.Claimed:
			f.Reasons = append(f.Reasons, fmt.Sprintf("%s holds it as claim %s since %s", d.holder,
				msgid.ClaimID(d.message, d.claims), e.about.When(d.claimedAt)))
		case d.state.Waits():
			f.Reasons = append(f.Reasons, "it waits in "+d.ref.String())
		case d.state == mail.Dead:
			f.Reasons = append(f.Reasons, "it is a dead letter in "+d.ref.String())
		}
	}
	if owes {
		f.Calls = append(f.Calls, calls.Do(&pb.ReplyRequest{Id: id}, "message.body"),
			calls.Do(&pb.GetMessageRequest{Id: id}))
	}
	if !finished && e.about.Mine(m.Sender) {
		f.Calls = append(f.Calls, calls.Do(&pb.ResendMessageRequest{Id: id}))
	}
	if e.about.Kind != finding.Message {
		f.Calls = append(f.Calls, finding.Explain(finding.Message, id))
	}
	if e.about.Mine(m.Sender) {
		f.Calls = append(f.Calls, calls.Do(&pb.ResolveThreadRequest{ThreadId: m.ThreadID(), Outcome: "no answer came"}))
	}
	return f
}

// owes reports whether the asking agent owes the answer because of a delivery.
func (e *explanation) owes(m *mail.Message, d *delivery) bool {
	asker := e.about.Asker
	return asker != "" && asker != m.Sender && d.state != mail.Expired && d.state != mail.Cancelled &&
		(d.holder == asker || d.ref == mailboxOf(asker))
}
