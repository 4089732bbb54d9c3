package crashtest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// A replay goes through the log: revisions only grow, the subscriber got each event once and unchanged, and the
// events tell of every delivery a life in which at most one claim is valid at any time.
type replay struct {
	record *record
	truth  *truth
	got    []receivedEvent // not compared yet
	last   int64
	sent   int
	lives  map[delivery]*life
}

func newReplay(r *record, t *truth, got []receivedEvent) *replay {
	return &replay{record: r, truth: t, got: got, lives: map[delivery]*life{}}
}

// A life is that of a delivery as the events tell it.
type life struct {
	claims  int   // how often it was claimed
	open    bool  // the last claim is valid
	first   int64 // revision of the first claim
	acked   int64 // revision of the ack; 0 = none
	trouble bool  // it was dead at some time

	offeredTo string          // the session with the open offer; "" = none
	given     map[string]bool // the sessions that have returned it
	read      bool            // an offer was accepted
}

// event goes on by one event.
func (p *replay) event(e *pb.Event) {
	if e.GetRevision() <= p.last {
		p.record.fault("event %d comes after event %d", e.GetRevision(), p.last)
	}
	p.last = e.GetRevision()
	if len(p.got) == 0 || p.got[0] != received(e) {
		p.record.fault("the subscriber has not got %v, or something else: %v", e, p.got[:min(1, len(p.got))])
	}
	p.got = p.got[min(1, len(p.got)):]
	if e.GetType() == "message.sent" {
		if p.sent++; p.truth.messages[e.GetRevision()] == nil {
			p.record.fault("the log has a send that is no message: %v", e)
		}
	}
	p.settlement(e)
	p.offer(e)
}

// finish compares where it all ends.
func (p *replay) finish() {
	if len(p.got) > 0 {
		p.record.fault("the subscriber got %d events that the log has not", len(p.got))
	}
	if p.sent != len(p.truth.messages) {
		p.record.fault("the log has %d sends of %d messages", p.sent, len(p.truth.messages))
	}
	for which, l := range p.lives {
		if d := p.truth.deliveries[which]; l.open || l.claims != lastClaim(d) {
			p.record.fault("the events of %v end with claim %d (open: %t), and it is %v", which, l.claims, l.open, d)
		}
		if d := p.truth.deliveries[which]; l.offeredTo != "" || l.read && d.GetReadAt() == nil {
			p.record.fault("the events of %v end with an offer to %q (read: %t), and it is %v",
				which, l.offeredTo, l.read, d)
		}
	}
	p.verifyOrder()
}

// settlement goes on by an event about claims.
func (p *replay) settlement(e *pb.Event) {
	var details struct {
		Consumer string   `json:"consumer"`
		Claims   []string `json:"claims"`
		Claim    string   `json:"claim"`
		State    string   `json:"state"`
	}
	kind, ours := strings.CutPrefix(e.GetType(), "message.")
	if !ours || e.GetDetails() == "" {
		return
	}
	if err := json.Unmarshal([]byte(e.GetDetails()), &details); err != nil {
		p.record.fault("the details of an event are not JSON: %v", e)
		return
	}
	if details.Claim != "" {
		details.Claims = append(details.Claims, details.Claim)
	}
	for _, id := range details.Claims {
		which, number := p.delivery(e, id)
		l := p.life(which)
		if why := l.turn(kind, number, e.GetRevision()); why != "" {
			p.record.fault("%s %s in %s by %s (event %d): %s", kind, id, which.mailbox, e.GetSource(), e.GetRevision(), why)
		}
		if kind == "retried" && details.State == "EXPIRED" { // its time to live ended while it was claimed
			l.trouble = true
		}
		if c := p.record.claims[which][number]; kind == "claimed" && c != nil && c.holder != (holder{e.GetSource(), details.Consumer}) {
			p.record.fault("the log has claim %s for %s %q, and it was given to %v", id, e.GetSource(), details.Consumer, c.holder)
		}
	}
}

func (p *replay) life(which delivery) *life {
	l := p.lives[which]
	if l == nil {
		l = &life{given: map[string]bool{}}
		p.lives[which] = l
	}
	return l
}

// offer goes on by an event about offers.
func (p *replay) offer(e *pb.Event) {
	var details struct {
		Agent    string  `json:"agent"`
		Harness  string  `json:"harness"`
		Messages []int64 `json:"messages"`
	}
	switch e.GetType() {
	case "message.offered", "message.accepted", "message.returned":
	default:
		return
	}
	if err := json.Unmarshal([]byte(e.GetDetails()), &details); err != nil || len(details.Messages) == 0 {
		p.record.fault("an event about offers names none: %v", e)
	}
	for _, n := range details.Messages {
		l := p.life(delivery{n, details.Agent})
		if why := l.offer(e.GetType(), details.Harness); why != "" {
			p.record.fault("%s of %d to %s (event %d): %s", e.GetType(), n, details.Harness, e.GetRevision(), why)
		}
	}
}

// delivery is what a claim id means in an event.
func (p *replay) delivery(e *pb.Event, id string) (delivery, int) {
	revision, number, _ := strings.Cut(id, ".")
	var which delivery
	which.message, _ = strconv.ParseInt(revision, 10, 64)
	n, _ := strconv.Atoi(number)
	switch m := p.record.byRevision[which.message]; {
	case m != nil && m.queue:
		which.mailbox = m.expect[0]
	case e.GetSource() == "system":
		which.mailbox = slowAgent // nobody else's claims run out
	default:
		which.mailbox = e.GetSource()
	}
	return which, n
}

// turn goes on by one event, and says why it cannot be.
func (l *life) turn(kind string, number int, revision int64) string {
	switch {
	case kind == "claimed" && l.open:
		return fmt.Sprintf("claim %d is valid", l.claims)
	case kind == "claimed" && l.acked != 0:
		return fmt.Sprintf("it was acked at %d", l.acked)
	case kind == "claimed" && number != l.claims+1:
		return fmt.Sprintf("it was claimed %d times before", l.claims)
	case kind != "claimed" && number != l.claims:
		return fmt.Sprintf("claim %d has come since", l.claims)
	case kind != "claimed" && kind != "acked" && !l.open:
		return "the claim is not valid"
	case kind == "acked" && l.acked != 0:
		return fmt.Sprintf("it was acked before, at %d", l.acked)
	}
	switch kind {
	case "claimed":
		l.open, l.claims = true, number
		if l.first == 0 {
			l.first = revision
		}
	case "acked":
		l.open, l.acked = false, revision
	case "dead":
		l.open, l.trouble = false, true
	case "retried", "released":
		l.open = false
	}
	return ""
}

// offer goes on by one event about an offer, and says why it cannot be.
func (l *life) offer(kind, harness string) string {
	open := l.offeredTo == harness
	switch {
	case kind == "message.offered" && l.offeredTo != "":
		return "the offer to " + l.offeredTo + " is open"
	case kind == "message.offered" && (l.read || l.acked != 0):
		return "it is read"
	case kind == "message.offered":
		l.offeredTo = harness
		return ""
	case !open && !l.given[harness]:
		return "it is not offered to it"
	case open:
		l.offeredTo = ""
	}
	if kind == "message.accepted" {
		l.read = true
	} else {
		l.given[harness] = true
	}
	return ""
}

// verifyOrder: of two deliveries of one mailbox with the same ordering key, the later one was claimed only after the
// earlier was acked; where that one was given up in between, nothing is said.
func (p *replay) verifyOrder() {
	type row struct{ mailbox, key string }
	rows := map[row][]int64{}
	for which := range p.lives {
		if m := p.record.byRevision[which.message]; m != nil && m.wire.GetOrderingKey() != "" {
			in := row{which.mailbox, m.wire.GetOrderingKey()}
			rows[in] = append(rows[in], which.message)
		}
	}
	for in, messages := range rows {
		slices.Sort(messages)
		for i := 1; i < len(messages); i++ {
			before := p.lives[delivery{messages[i-1], in.mailbox}]
			next := p.lives[delivery{messages[i], in.mailbox}]
			if before.acked != 0 && !before.trouble && next.first != 0 && next.first < before.acked {
				p.record.fault("%d was claimed at %d before %d, which has the same ordering key %q in %s, was acked at %d",
					messages[i], next.first, messages[i-1], in.key, in.mailbox, before.acked)
			}
		}
	}
}
