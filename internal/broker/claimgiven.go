package broker

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// given claims given messages, all or none, whatever their place in the mailbox. It returns
// first those that the consumer holds already. Ordering keys, halts and circuit breakers hold as
// for every claim.
func (call *claimCall) given(tx *store.Tx, a mail.Actor, boxes []mail.Mailbox) ([]Claim, error) {
	b, w := call.Broker, call.wish
	wanted := map[int64]bool{}
	bytes := 0
	for _, ref := range w.IDs {
		m, err := mail.FindMessage(tx, a.Session.ID, ref)
		if err != nil {
			return nil, err
		}
		if bytes += len(m.Content); bytes > mail.MaxAnswer && len(w.IDs) > 1 {
			return nil, fault.Field("ids", "names messages of more than 3 MiB together; claim fewer in one call")
		}
		wanted[ref.Revision] = true
	}
	list, _ := json.Marshal(slices.Collect(maps.Keys(wanted))) // numbers always marshal
	claims, err := b.Running.open(tx, a, noLimit, selectHeldGiven, a.Mailbox, w.Consumer, string(list))
	if err != nil {
		return nil, err
	}
	for i := range claims {
		delete(wanted, claims[i].Revision)
	}
	if len(wanted) > 0 {
		if err := mayHold(tx, a, w.Consumer); err != nil {
			return nil, err
		}
	}
	k := &consumer{
		actor: a, name: w.Consumer, boxes: boxes, max: noLimit, maxBytes: noLimit, claimFor: w.ClaimFor, lasts: w.ClaimFor,
	}
	d := dispatchRun{Broker: b, tx: tx, left: mail.Tally{}}
	for _, ref := range w.IDs {
		if !wanted[ref.Revision] {
			continue // held, or given twice
		}
		delete(wanted, ref.Revision)
		r, err := d.claimable(k, ref)
		if err != nil {
			return nil, err
		}
		if err := d.give(k, r); err != nil {
			return nil, err
		}
	}
	fresh, err := d.claim(k)
	return append(claims, fresh...), err
}

// claimable returns the delivery of a message that a consumer can claim now, or an error that says
// why it cannot.
func (d *dispatchRun) claimable(c *consumer, ref msgid.Ref) (*ready, error) {
	ids := make([]int64, len(c.boxes))
	for i := range c.boxes {
		ids[i] = c.boxes[i].ID
	}
	list, _ := json.Marshal(ids) // numbers always marshal
	var mailbox int64
	var state int
	var holder, consumer string
	var due, expires time.Time
	err := d.tx.QueryRow(selectClaimable, ref.Revision, string(list)).
		Scan(&mailbox, &state, &holder, &consumer, &due, &expires)
	if errors.Is(err, store.ErrNoRows) {
		return nil, fault.Missing("message", ref.Text,
			"message %s is in no mailbox that agent %q takes from in this call", ref.Text, c.actor.Name)
	}
	if err != nil {
		return nil, err
	}
	now := d.tx.Now()
	if mail.State(state).Waits() && !expires.IsZero() && !expires.After(now) {
		state = int(mail.Expired)
	}
	switch mail.State(state) {
	case mail.Pending:
	case mail.Claimed:
		return nil, notClaimable(ref, "ALREADY_CLAIMED", "agent "+strconv.Quote(holder)+" holds it"+consumerNote(consumer))
	case mail.Delayed:
		e := notClaimable(ref, "DELAYED", "it is delayed until "+due.UTC().Format(time.RFC3339))
		e.RetryAfter = due.Sub(now)
		return nil, e
	case mail.Blocked:
		return nil, notClaimable(ref, "BLOCKED_BY_ORDER", "an earlier message of its ordering key is unfinished")
	case mail.NoticeUnread:
		return nil, notClaimable(ref, "NOTICE", "it is a notice, which is read and not claimed")
	case mail.Acked, mail.Dead, mail.Expired, mail.Cancelled:
		why := "it is finished (" + mail.State(state).String()
		if mail.State(state) == mail.Acked && holder != "" {
			why += " by " + strconv.Quote(holder)
		}
		return nil, notClaimable(ref, "FINISHED", why+")")
	}
	box := c.boxes[indexID(c.boxes, mailbox)]
	found, err := readReady(d.tx.Query(selectReadyOne, ref.Revision, mailbox), box)
	if err != nil {
		return nil, err
	}
	r := &found[0]
	if !c.takes(box.Ref.Kind, r) {
		return nil, notClaimable(ref, "OWN_MESSAGE", "the caller sent it to one of several agents, and another one must take it")
	}
	return r, d.admits(c, r, ref)
}

// admits returns an error if the agent's gate does not let the delivery through.
func (d *dispatchRun) admits(c *consumer, r *ready, ref msgid.Ref) error {
	ok, err := d.Waiters.passes(d.tx, c, r)
	if ok || err != nil {
		return err
	}
	why, until, err := d.gates.Barrier(d.tx, c.actor.Mailbox)
	if err != nil {
		return err
	}
	switch why {
	case AgentHalted:
		return notClaimable(ref, "HALTED", "the agent is halted until a resume")
	case Draining:
		return notClaimable(ref, "DRAINING", "an operator drains the broker, which delivers no new work")
	default:
		e := notClaimable(ref, "BREAKER_OPEN", "the circuit breaker of the agent is open after too many failures")
		if !until.IsZero() {
			e.RetryAfter = until.Sub(d.tx.Now())
		}
		return e
	}
}

func notClaimable(ref msgid.Ref, reason, why string) *fault.Error {
	e := fault.New(fault.Precondition, reason, "message %s cannot be claimed: %s", ref.Text, why)
	e.Resource, e.Name = "message", ref.Text
	return e
}

// consumerNote names the consumer of a claim, if it has a name.
func consumerNote(consumer string) string {
	if consumer == "" {
		return ""
	}
	return " (consumer " + strconv.Quote(consumer) + ")"
}

func indexID(boxes []mail.Mailbox, id int64) int {
	for i := range boxes {
		if boxes[i].ID == id {
			return i
		}
	}
	return -1
}
