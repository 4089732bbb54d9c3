package diagnose

import (
	"fmt"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// A delivery is one that is to be explained.
type delivery struct {
	message     int64
	mailbox     int64
	ref         mail.MailboxRef
	state       mail.State
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

// id is how calls name the message.
func (d *delivery) id() string { return revision(d.message) }

// deliveries returns the deliveries of a message, the worst first; only the one in a mailbox unless
// that is 0.
func (r *rowReader) deliveries(message, mailbox int64, most int) []delivery {
	return collect(r, func(d *delivery) row {
		return row{&d.message, &d.mailbox, (*int)(&d.ref.Kind), &d.ref.Name, (*int)(&d.state), &d.rank, &d.claims,
			&d.attempts, &d.maxAttempts, &d.holder, &d.claimedAt, &d.readAt, &d.finishedAt, &d.dueAt, &d.ordering,
			&d.sentAt, &d.sender}
	}, selectStuckDeliveries, message, mailbox, most)
}

// A deliveryExplainer explains why one delivery is in its state. It adds no findings to an answer.
type deliveryExplainer struct {
	roster
}

// explain explains one delivery.
func (e *deliveryExplainer) explain(d *delivery) finding.Finding {
	f := finding.Finding{Severity: finding.Info, Since: d.finishedAt,
		Calls: []calls.Call{calls.Do(&pb.GetMessageRequest{Id: d.id()})}}
	switch d.state {
	case mail.Pending:
		return e.pending(d)
	case mail.Blocked:
		return e.blocked(d)
	case mail.Delayed:
		return e.delayed(d)
	case mail.Claimed:
		return e.claimed(d)
	case mail.Dead:
		return e.dead(d)
	case mail.Acked:
		f.Summary = d.holder + " has finished it" + from(d)
	case mail.NoticeUnread:
		f.Summary = "it is a notice of the broker, which " + d.ref.Name + " has not read"
	case mail.Expired:
		f.Summary = "it has expired in " + d.ref.String() + ": no agent took it within its time to live"
	default:
		f.Summary = "it was cancelled in " + d.ref.String()
	}
	return f
}

// from names the mailbox of a delivery, if it is not that of an agent.
func from(d *delivery) string {
	if d.ref.Kind == mail.AgentMailbox {
		return ""
	}
	return ", from " + d.ref.String()
}

// pending explains a delivery that the broker could deliver.
func (e *deliveryExplainer) pending(d *delivery) finding.Finding {
	p := e.prospect(d.ref, d.mailbox, d.sender, d.rank < mail.DirectiveRank)
	f := finding.Finding{Severity: p.severity, Since: d.sentAt, Reasons: p.reasons, Calls: p.calls}
	var ahead int64
	e.read(row{&ahead}, countAhead, d.mailbox, d.rank, d.message, mostBefore)
	f.Summary = "it waits in " + d.ref.String()
	switch {
	case ahead >= mostBefore:
		f.Summary += fmt.Sprintf(" behind %d or more messages", mostBefore)
	case ahead > 0:
		f.Summary += " behind " + finding.Count(ahead, "message")
	default:
		f.Summary += " as the first"
	}
	if p.says != "" {
		f.Summary += ", and " + p.says
	}
	if says := e.lastOffer(d); says != "" {
		f.Reasons = append(f.Reasons, says)
	}
	if d.attempts > 0 {
		f.Reasons = append(f.Reasons, e.lastFailure(d))
	}
	waits := e.about.Now.Sub(latest(d.sentAt, d.dueAt, d.claimedAt))
	if p.severity == finding.Info && waits >= slowMail && d.readAt.IsZero() {
		f.Severity = finding.Warning
		f.Summary += ", for " + longer(waits, slowMail)
		f.Calls = append(f.Calls, nudge(d.ref, ""))
	}
	for _, call := range f.Calls {
		if move, ok := call.Request.(*pb.MoveMessagesRequest); ok { // only this message
			move.Ids = append(move.Ids, d.id())
		}
	}
	if e.about.Mine(d.sender) {
		f.Calls = append(f.Calls, calls.Do(&pb.CancelMessageRequest{Id: d.id()}))
	}
	return f
}

// latest returns the latest of times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// lastOffer says what became of the last attempt to put a delivery before a model; "" if there was none.
func (e *deliveryExplainer) lastOffer(d *delivery) string {
	var way int
	var harness, why string
	var offered, accepted, returned time.Time
	to := row{&way, &harness, &offered, &accepted, &returned, &why}
	if !e.read(to, selectLastOffer, d.message, d.mailbox) {
		return ""
	}
	says := fmt.Sprintf("it was offered to session %s of %s (%s) at %s", finding.Clip(harness), d.ref.Name,
		mail.Way(way), e.about.When(offered))
	switch {
	case !accepted.IsZero():
		return says + ", which accepted it at " + e.about.When(accepted)
	case !returned.IsZero():
		return says + ", without success: " + finding.Clip(why)
	}
	return says + "; there is no evidence yet that its model received it"
}

// blocked explains a delivery that waits for another one with its ordering key, and that one too.
func (e *deliveryExplainer) blocked(d *delivery) finding.Finding {
	f := finding.Finding{Severity: finding.Warning, Since: d.sentAt}
	var head int64
	if !e.read(row{&head}, selectHead, d.mailbox, d.ordering) {
		e.fail(fmt.Errorf("head of ordering key: %w", store.ErrNoRows))
	}
	first := e.deliveries(head, d.mailbox, 1)
	if len(first) == 0 || first[0].state == mail.Blocked { // a head never is: see the invariants of the core
		return f
	}
	of := e.explain(&first[0])
	var before int64
	e.read(row{&before}, countOrderedBefore, d.mailbox, d.ordering, d.message, mostBefore)
	f.Severity = of.Severity
	f.Summary = fmt.Sprintf("it waits in %s behind message %d, which has the same ordering key, %q", d.ref, head,
		finding.Clip(d.ordering))
	if before > 1 {
		f.Reasons = append(f.Reasons, fmt.Sprintf("%s with this key come before it", finding.Count(before, "message")))
	}
	f.Reasons = append(append(f.Reasons, fmt.Sprintf("message %d: %s", head, of.Summary)), of.Reasons...)
	f.Calls = of.Calls
	return f
}

// delayed explains a delivery that is not due yet.
func (e *deliveryExplainer) delayed(d *delivery) finding.Finding {
	f := finding.Finding{Severity: finding.Info, Since: d.sentAt,
		Calls: []calls.Call{calls.Do(&pb.GetMessageRequest{Id: d.id()})}}
	if e.about.Mine(d.sender) {
		f.Calls = append(f.Calls, calls.Do(&pb.CancelMessageRequest{Id: d.id()}))
	}
	if d.attempts == 0 {
		f.Summary = fmt.Sprintf("its sender delayed it: the broker delivers it in %s from %s on", d.ref,
			e.about.When(d.dueAt))
		return f
	}
	f.Summary = fmt.Sprintf("it has failed %d of %d times in %s; the next attempt is at %s", d.attempts, d.maxAttempts,
		d.ref, e.about.When(d.dueAt))
	f.Reasons = []string{e.lastFailure(d)}
	return f
}

// lastFailure says how the last attempt ended.
func (e *deliveryExplainer) lastFailure(d *delivery) string {
	var by, why string
	var at time.Time
	if !e.read(row{&by, &at, &why}, selectLastAttempt, d.message, d.mailbox) {
		return fmt.Sprintf("it has failed %d of %d times", d.attempts, d.maxAttempts)
	}
	return fmt.Sprintf("the last attempt, by %s, ended at %s: %s", by, e.about.When(at), finding.Clip(why))
}

// claimed explains a delivery that an agent works on.
func (e *deliveryExplainer) claimed(d *delivery) finding.Finding {
	f := finding.Finding{Severity: finding.Info, Since: d.claimedAt, Summary: d.holder + " works on it" + from(d)}
	if until, ok := e.broker.Running.End(d.message, d.mailbox); ok {
		f.Reasons = append(f.Reasons, fmt.Sprintf("the claim, attempt %d of %d, ends at %s unless it is extended",
			d.attempts+1, d.maxAttempts, e.about.When(until)))
	}
	t, registered := e.taker(d.holder)
	held := e.about.Now.Sub(d.claimedAt)
	switch {
	case registered && t.Health == directory.Late:
		f.Reasons = append(f.Reasons,
			t.Name+" is late: its last call was at "+e.about.When(t.LastSeen)+finding.After(lateClaim))
		if held >= lateClaim {
			f.Severity = finding.Warning
		}
	case registered && t.Health == directory.Failed: // the broker returns its claims at the same moment
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, t.Name+" has failed")
	case registered:
		f.Reasons = append(f.Reasons, "the last call of "+t.Name+" was at "+e.about.When(t.LastSeen))
	}
	if held >= longClaim {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, t.Name+" has held the claim for "+longer(held, longClaim))
	}
	if g := e.gates[d.holder]; !g.haltedAt.IsZero() {
		f.Reasons = append(f.Reasons, d.holder+" is halted since "+e.about.When(g.haltedAt))
		f.Calls = append(f.Calls, finding.Direct("resume", agent(d.holder), ""))
	}
	release := calls.Do(&pb.ReleaseClaimsRequest{Ids: []string{msgid.ClaimID(d.message, d.claims)}}).As(d.holder)
	ask := finding.Explain(finding.Agent, d.holder)
	if f.Severity == finding.Info {
		f.Calls = append(f.Calls, ask, release)
	} else {
		f.Calls = append(f.Calls, release, ask)
	}
	return f
}

// dead explains a dead letter.
func (e *deliveryExplainer) dead(d *delivery) finding.Finding {
	remove := calls.Do(&pb.PurgeDeadLettersRequest{Ids: []string{d.id()}, Mailbox: d.ref.String()})
	f := finding.Finding{Severity: finding.Error, Since: d.finishedAt,
		Summary: fmt.Sprintf("it is a dead letter in %s after %s", d.ref, finding.Count(d.attempts, "attempt")),
		Reasons: []string{e.lastFailure(d)}}
	if d.ref.Kind == mail.AgentMailbox {
		if _, registered := e.taker(d.ref.Name); !registered {
			f.Reasons = append(f.Reasons,
				"no agent "+d.ref.Name+" is registered; redriving it helps only once it has registered again")
			f.Calls = []calls.Call{remove}
			return f
		}
	}
	redrive := calls.Do(&pb.RedriveDeadLettersRequest{Ids: []string{d.id()}, Mailbox: d.ref.String()})
	f.Calls = []calls.Call{redrive, remove}
	return f
}
