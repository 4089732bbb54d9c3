package broker

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	offerTime    = time.Minute // without evidence, after which an offer is returned
	offerWindow  = 10_000      // unfinished deliveries, the oldest, among which Offer searches: an agent may never finish its mail
	offerUnread  = 1000        // unread ones of them that it looks at
	offersKept   = 20          // of one delivery
	offersAtOnce = 1000        // that one function settles

	mostUnsettled = 10 // marks that the answer to an Offer names

	hasPassed = "no evidence within 1m that the text stands in the conversation"
)

// A Way is how an offer reaches a model. The numbers are those of the API.
type Way int

// The ways in which an agent asks for its mail itself.
const (
	viaMCP   Way = 8
	viaShell Way = 9
)

// String returns the name of the way as events and metrics spell it.
func (w Way) String() string {
	names := [...]string{"unknown", "turn_end", "tool_call", "prompt", "wake", "plugin", "app_server", "terminal", "mcp", "shell", "queue"}
	if w < 0 || int(w) >= len(names) {
		return names[0]
	}
	return names[w]
}

// An Offer is one attempt to put a delivery before a model. It is open until it is accepted or returned.
type Offer struct {
	Number     int // counts the offers of the delivery, from 1
	Way        Way
	Harness    string // the session of the coding agent
	Mark       string
	OfferedAt  time.Time
	AcceptedAt time.Time // zero unless it was accepted
	ReturnedAt time.Time // zero unless it was returned
	Why        string    // it was returned
}

// asked reports whether the agent itself has asked for what is offered in this way.
func (w Way) asked() bool { return w == viaMCP || w == viaShell }

// An Attention says which messages are offered to an agent that has not asked for them; 0 = all. The numbers are
// those of the API.
type Attention int

// What is offered to an agent that wants little.
const (
	attentionOpen       Attention = 1 + iota
	attentionDirectives           // directives, answers to its questions and notices
	attentionOff                  // nothing
)

// An Offering says to whom unread messages are offered.
type Offering struct {
	Way     Way
	Harness string
	Mark    string
	Limit   int // messages
	Bytes   int // of their contents; the first message may exceed it
}

// Offered are the messages of an Offering.
type Offered struct {
	Items     []Item
	More      int // that are unread and not offered, among the oldest offerUnread
	Revision  int64
	Attention Attention // of the agent

	Unsettled []Offer // earlier ones to the same session, the newest of each mark first, at most mostUnsettled
}

// Offer offers unread messages of the calling agent's own mailbox: directives first, then in order of arrival. They
// stay unread, and are offered to nobody else until the offer is settled. With the mark of open offers it returns
// these. Errors: fault.Precondition (MARK_USED) for the mark of an offer that is settled, (AGENT_REQUIRED) without an
// agent.
func (b *Broker) Offer(ctx context.Context, c identity.Caller, o Offering) (Offered, error) {
	var out Offered
	err := b.store.Write(ctx, func(tx *store.Tx) error {
		out = Offered{Revision: b.store.Revision()}
		a, err := b.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		out.Attention = max(a.Attention, attentionOpen)
		if out.Unsettled, err = unsettled(tx, a, o.Harness); err != nil {
			return err
		}
		chosen, err := offeredAs(tx, a, o.Mark)
		if err == nil && len(chosen) == 0 {
			err = b.offer(tx, a, o, &out, &chosen)
		}
		if err != nil || len(chosen) == 0 {
			return err
		}
		out.Items, err = FindItems(tx, a, chosen)
		return err
	})
	return out, err
}

// unsettled returns the marks of earlier offers to a session whose outcome can still be said.
func unsettled(tx *store.Tx, a Actor, harness string) ([]Offer, error) {
	return store.Collect(tx.Query(selectUnsettled, a.Mailbox, harness, mostUnsettled), func(r *store.Rows) (o Offer, err error) {
		var way int
		err = r.Scan(&o.Mark, &way, &o.OfferedAt)
		o.Way, o.Harness = Way(way), harness
		return o, err
	})
}

// offeredAs returns the messages that are offered with a mark.
func offeredAs(tx *store.Tx, a Actor, mark string) (chosen []Ref, err error) {
	rows := tx.Query(selectMarked, a.Mailbox, mark, offersAtOnce)
	defer rows.Close()
	for rows.Next() {
		var ref Ref
		var open bool
		if err := rows.Scan(&ref.Revision, &open); err != nil {
			return nil, err
		}
		if !open {
			return nil, fault.New(fault.Precondition, "MARK_USED",
				"an offer with the mark %s is settled: use a new mark", mark)
		}
		chosen = append(chosen, ref)
	}
	return chosen, rows.Err()
}

// offer notes new offers.
func (b *Broker) offer(tx *store.Tx, a Actor, o Offering, out *Offered, chosen *[]Ref) error {
	var fresh []int64
	limit := attentionOpen
	if !o.Way.asked() {
		limit = out.Attention
	}
	rows := tx.Query(selectOfferable, a.Mailbox, offerWindow, int64(limit), int64(DirectiveRank), a.Name, offerUnread)
	bytes, full := 0, false
	for rows.Next() {
		var ref Ref
		var undelivered, wanted bool
		var size int
		if err := rows.Scan(&ref.Revision, &undelivered, &size, &wanted); err != nil {
			return err
		}
		if !wanted {
			out.More++
			continue
		}
		bytes += size
		if full = full || len(*chosen) == o.Limit || bytes > o.Bytes && len(*chosen) > 0; full {
			out.More++
			continue
		}
		if *chosen = append(*chosen, ref); undelivered {
			fresh = append(fresh, ref.Revision)
		}
	}
	if err := rows.Err(); err != nil || len(*chosen) == 0 {
		return err
	}
	tx.OnCommit(func() { b.worked(a, 0, len(fresh), 0) })
	if err := b.count(tx, a.Session, isDelivered, fresh...); err != nil {
		return err
	}
	messages := make([]int64, len(*chosen))
	for i, ref := range *chosen {
		messages[i] = ref.Revision
	}
	var err error
	out.Revision, err = b.noteOffers(tx, a, o, messages)
	return err
}

// noteOffers notes offers of messages in an agent's mailbox, and returns the revision of the event.
func (b *Broker) noteOffers(tx *store.Tx, a Actor, o Offering, messages []int64) (int64, error) {
	due := tx.Now().Add(offerTime)
	for _, m := range messages {
		tx.Exec(insertOffer, m, a.Mailbox, int(o.Way), o.Harness, o.Mark, tx.Now(), due)
		tx.Exec(deleteOldOffers, m, a.Mailbox, offersKept)
		tx.Exec(updateDelivered, tx.Now(), m, a.Mailbox)
	}
	b.calendar.expect(tx, due)
	return b.logOffers(tx, a, a.Name, "message.offered", "offered to", events.Debug, messages, o.Way, o.Harness, "")
}

// logOffers appends the event about offers to an agent, of one way to one session of its coding agent.
func (b *Broker) logOffers(tx *store.Tx, a Actor, agent, kind, verb string, severity events.Severity, messages []int64,
	way Way, harness, why string,
) (int64, error) {
	entry := a.Event(kind)
	entry.Severity = severity
	entry.Summary = counted(len(messages), "message") + " " + verb + " " + agent + " (" + way.String() + ")"
	if why != "" {
		entry.Summary += ": " + why
	}
	var details strings.Builder
	details.WriteString(`{"agent":` + Quote(agent) + `,"way":` + Quote(way.String()) + `,"harness":` + Quote(harness))
	if why != "" {
		details.WriteString(`,"why":` + Quote(why))
	}
	details.WriteString(`,"messages":[`)
	for i, m := range messages {
		if i > 0 {
			details.WriteByte(',')
		}
		details.WriteString(strconv.FormatInt(m, 10))
		if i < namedRecipients {
			entry.Related = append(entry.Related, strconv.FormatInt(m, 10))
		}
	}
	details.WriteString("]}")
	entry.Details = details.String()
	return b.log.Append(tx, entry)
}

// An OfferOutcome says what became of offers.
type OfferOutcome struct {
	Marks    []string // empty = the open offers of the harness, and those without evidence in time if they are accepted
	Harness  string   // empty = any
	Ways     []Way    // empty = all
	Open     bool     // without marks, only open offers
	Accepted bool     // otherwise they are returned
	Why      string   // they are returned
}

// concerns reports whether an offer is meant.
func (o *OfferOutcome) concerns(f *offered) bool {
	return (o.Harness == "" || o.Harness == f.harness) && (len(o.Ways) == 0 || slices.Contains(o.Ways, f.way))
}

// SettleOffers notes what became of offers to the calling agent, and returns how many it concerned and the revision of
// the event. An offer that was returned can be accepted; an accepted one stays so. Errors: fault.Precondition
// (AGENT_REQUIRED) without an agent.
func (b *Broker) SettleOffers(ctx context.Context, c identity.Caller, o OfferOutcome) (n int, revision int64, err error) {
	err = b.store.Write(ctx, func(tx *store.Tx) error {
		n, revision = 0, b.store.Revision()
		a, err := b.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		var found []offered
		if len(o.Marks) == 0 {
			found, err = scanOffers(tx.Query(selectOffersTo, a.Mailbox, o.Harness, o.Accepted && !o.Open, offersAtOnce))
			slices.Reverse(found)
		}
		for _, mark := range o.Marks {
			var more []offered
			if more, err = scanOffers(tx.Query(selectOffersMarked, a.Mailbox, mark, offersAtOnce)); err != nil {
				break
			}
			found = append(found, more...)
		}
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(f offered) bool { return !o.concerns(&f) })
		if n = len(found); n == 0 {
			return nil
		}
		revision, err = b.settleOffers(tx, a, a.Name, found, o.Accepted, o.Why)
		return err
	})
	return n, revision, err
}

// An offered is an offer that is to be settled, with its delivery.
type offered struct {
	key
	number  int
	way     Way
	harness string
	sentAt  time.Time
	state   State
	readAt  time.Time
	session int64
	agent   string
}

func scanOffers(rows *store.Rows) ([]offered, error) {
	return store.Collect(rows, func(r *store.Rows) (f offered, err error) {
		var way, state int
		err = r.Scan(&f.message, &f.mailbox, &f.number, &way, &f.harness, &f.sentAt, &state, &f.readAt, &f.session, &f.agent)
		f.way, f.state = Way(way), State(state)
		return f, err
	})
}

// settleOffers accepts or returns offers to one agent, and returns the revision of the last event. An offer whose
// message was read or acknowledged since is accepted in any case.
func (b *Broker) settleOffers(tx *store.Tx, a Actor, agent string, all []offered, accepted bool, why string,
) (revision int64, err error) {
	type group struct {
		accepted bool
		way      Way
		harness  string
	}
	var order []group
	messages := map[group][]int64{}
	for i := range all {
		f := &all[i]
		g := group{accepted || !f.readAt.IsZero(), f.way, f.harness}
		if g.accepted {
			b.accept(tx, f)
		} else {
			tx.Exec(updateOfferReturned, tx.Now(), why, f.message, f.mailbox, f.number)
		}
		if messages[g] == nil {
			order = append(order, g)
		}
		messages[g] = append(messages[g], f.message)
	}
	for _, g := range order {
		if g.accepted {
			revision, err = b.logOffers(tx, a, agent, "message.accepted", "accepted by", events.Debug, messages[g], g.way, g.harness, "")
		} else {
			revision, err = b.logOffers(tx, a, agent, "message.returned", "not accepted by", events.Info, messages[g], g.way, g.harness, why)
		}
		if err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// accept accepts an offer, which reads the message.
func (b *Broker) accept(tx *store.Tx, f *offered) {
	at := tx.Now()
	if !f.readAt.IsZero() {
		at = f.readAt
	}
	tx.Exec(updateOfferAccepted, at, f.message, f.mailbox, f.number)
	if f.readAt.IsZero() {
		tx.Exec(updateRead, at, at, f.message, f.mailbox)
	}
	if f.state == NoticeUnread {
		finishNotices(tx, f.mailbox, []int64{f.message})
	}
	if b.observer != nil {
		after, way := at.Sub(f.sentAt), f.way
		tx.OnCommit(func() { b.observer.Accepted(way.String(), after) })
	}
}

// returnOffers returns offers for which there was no evidence in time.
func (b *Broker) returnOffers(tx *store.Tx) error {
	due, err := scanOffers(tx.Query(selectOffersDue, tx.Now(), calendarPage))
	if err != nil {
		return err
	}
	for len(due) > 0 {
		first := due[0]
		n := slices.IndexFunc(due, func(f offered) bool { return f.mailbox != first.mailbox })
		if n < 0 {
			n = len(due)
		}
		if _, err := b.settleOffers(tx, system(first.session), first.agent, due[:n], false, hasPassed); err != nil {
			return err
		}
		due = due[n:]
	}
	return nil
}

// takeBack returns the open offers to an agent that has ended.
func (b *Broker) takeBack(tx *store.Tx, session, mailbox int64, agent, why string) error {
	open, err := scanOffers(tx.Query(selectOpenOffers, mailbox, offersAtOnce))
	if err == nil {
		_, err = b.settleOffers(tx, system(session), agent, open, false, why)
	}
	return err
}

// offersOf adds to the deliveries of a message, by their place in the list, the offers of each.
func offersOf(q store.Querier, message, first, last int64, at map[int64]int, found []Delivery) error {
	rows := q.Query(selectOffers, message, first, last)
	defer rows.Close()
	for rows.Next() {
		var mailbox int64
		var o Offer
		var way int
		if err := rows.Scan(&mailbox, &o.Number, &way, &o.Harness, &o.Mark, &o.OfferedAt, &o.AcceptedAt, &o.ReturnedAt,
			&o.Why); err != nil {
			return err
		}
		o.Way = Way(way)
		if i, ok := at[mailbox]; ok {
			found[i].Offers = append(found[i].Offers, o)
		}
	}
	return rows.Err()
}

// OpenOffers adds to a page of a mailbox which of its messages are offered now.
func OpenOffers(q store.Querier, mailbox int64, items []Item) error {
	open := map[int64]Offer{}
	rows := q.Query(selectOpenOffersIn, mailbox, offersAtOnce)
	defer rows.Close()
	for rows.Next() {
		var message int64
		var o Offer
		var way int
		if err := rows.Scan(&message, &o.Number, &way, &o.Harness, &o.Mark, &o.OfferedAt); err != nil {
			return err
		}
		o.Way = Way(way)
		open[message] = o
	}
	for i := range items {
		if o, ok := open[items[i].Revision]; ok && !items[i].Queued {
			items[i].Delivery.Offers = []Offer{o}
		}
	}
	return rows.Err()
}
