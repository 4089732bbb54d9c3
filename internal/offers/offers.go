package offers

import (
	"context"
	"slices"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	offerTime    = time.Minute // an offer without evidence is returned after this time
	offerWindow  = 10_000      // the oldest unfinished deliveries, which Offer searches, since some stay for long
	offerUnread  = 1000        // unread ones of them that it reads
	offersKept   = 20          // of one delivery
	offersAtOnce = 1000        // that one function settles
	offersDue    = 300         // that one function returns because their time has ended

	mostUnsettled = 10 // marks that the answer to an Offer names

	hasPassed = "no evidence within 1m that the text stands in the conversation"
)

// The ways in which an agent asks for its mail itself.
const (
	viaMCP   mail.Way = 8
	viaShell mail.Way = 9
)

// An Observer measures offers. Its method is called concurrently, after the commit, and must be quick.
type Observer interface {
	// Accepted reports how long after its message was sent an offer was accepted, by its way.
	Accepted(way string, after time.Duration)
}

// Offers has the offers of all agents. Its methods may be called concurrently.
type Offers struct {
	store    *store.Store
	log      *events.Log
	broker   *broker.Broker
	observer Observer // may be nil
}

// New returns the offers of the core's messages.
func New(st *store.Store, log *events.Log, core *broker.Broker) *Offers {
	return &Offers{store: st, log: log, broker: core}
}

// Observe sets the observer. Call it before the offers are used.
func (o *Offers) Observe(to Observer) { o.observer = to }

// A Request says to which session of a coding agent unread messages are offered, and how many.
type Request struct {
	mail.Offering
	Limit int // messages
	Bytes int // of their contents; the first message may exceed it
}

// Offered are the messages that an Offer returns.
type Offered struct {
	Items     []mail.Item
	More      int // that are unread and not offered, among the oldest offerUnread
	Revision  int64
	Attention directory.Attention // of the agent

	Unsettled []mail.Offer // earlier ones to the same session, the newest of each mark first, at most mostUnsettled
}

// Offer offers unread messages of the calling agent's own mailbox: directives first, then in order of arrival. They
// stay unread, and cannot be offered again until the offer is settled. With the mark of open offers it returns these.
// Errors: fault.Precondition (MARK_USED) for the mark of an offer that is settled, (AGENT_REQUIRED) without an agent.
func (o *Offers) Offer(ctx context.Context, c identity.Caller, r Request) (Offered, error) {
	var out Offered
	err := o.store.Write(ctx, func(tx *store.Tx) error {
		out = Offered{Revision: o.store.Revision()}
		a, err := o.broker.Mailboxes.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		out.Attention = max(a.Attention, directory.AttentionOpen)
		if out.Unsettled, err = unsettled(tx, a, r.Harness); err != nil {
			return err
		}
		chosen, err := offeredAs(tx, a, r.Mark)
		if err == nil && len(chosen) == 0 {
			chosen, err = o.offer(tx, a, r, &out)
		}
		if err != nil || len(chosen) == 0 {
			return err
		}
		refs := make([]msgid.Ref, len(chosen))
		for i, message := range chosen {
			refs[i].Revision = message
		}
		out.Items, err = mail.FindItems(tx, a, refs)
		return err
	})
	return out, err
}

// unsettled returns the marks of earlier offers to a session whose outcome can still be reported.
func unsettled(tx *store.Tx, a mail.Actor, harness string) ([]mail.Offer, error) {
	rows := tx.Query(selectUnsettled, a.Mailbox, harness, mostUnsettled)
	return store.Collect(rows, func(r *store.Rows) (o mail.Offer, err error) {
		var way int
		err = r.Scan(&o.Mark, &way, &o.OfferedAt)
		o.Way, o.Harness = mail.Way(way), harness
		return o, err
	})
}

// offeredAs returns the messages that are offered with a mark.
func offeredAs(tx *store.Tx, a mail.Actor, mark string) (chosen []int64, err error) {
	rows := tx.Query(selectMarked, a.Mailbox, mark, offersAtOnce)
	defer rows.Close()
	for rows.Next() {
		var message int64
		var open bool
		if err := rows.Scan(&message, &open); err != nil {
			return nil, err
		}
		if !open {
			return nil, fault.New(fault.Precondition, "MARK_USED",
				"an offer with the mark %s is settled: use a new mark", mark)
		}
		chosen = append(chosen, message)
	}
	return chosen, rows.Err()
}

// offer chooses messages and records new offers of them.
func (o *Offers) offer(tx *store.Tx, a mail.Actor, r Request, out *Offered) (chosen []int64, err error) {
	limit := directory.AttentionOpen
	if r.Way != viaMCP && r.Way != viaShell {
		limit = out.Attention
	}
	rows := tx.Query(
		selectOfferable, a.Mailbox, offerWindow, int64(limit), int64(mail.DirectiveRank), a.Name, offerUnread)
	bytes, full := 0, false
	for rows.Next() {
		var message int64
		var wanted bool
		var size int
		if err := rows.Scan(&message, &size, &wanted); err != nil {
			return nil, err
		}
		if !wanted {
			out.More++
			continue
		}
		bytes += size
		if full = full || len(chosen) == r.Limit || bytes > r.Bytes && len(chosen) > 0; full {
			out.More++
			continue
		}
		chosen = append(chosen, message)
	}
	if err := rows.Err(); err != nil || len(chosen) == 0 {
		return nil, err
	}
	if err := o.broker.NoteDelivered(tx, a, chosen, nil); err != nil {
		return nil, err
	}
	out.Revision, err = o.record(tx, a, r.Offering, chosen)
	return chosen, err
}

// OfferNotices implements broker.Offers.
func (o *Offers) OfferNotices(tx *store.Tx, a mail.Actor, to mail.Offering) ([]work.UnreadNotice, error) {
	again, _, err := mail.ScanNotices(tx.Query(selectNoticesOffered, a.Mailbox, to.Mark, mail.MostNotices))
	if err != nil || len(again) > 0 {
		return again, err
	}
	unread, chosen, err := mail.ScanNotices(tx.Query(selectUnofferedNotices, a.Mailbox, mail.MostNotices))
	if err != nil || len(chosen) == 0 {
		return unread, err
	}
	for _, notice := range chosen {
		tx.Exec(updateDelivered, tx.Now(), notice, a.Mailbox)
	}
	_, err = o.record(tx, a, to, chosen)
	return unread, err
}

// record writes offers of messages in an agent's mailbox, and returns the revision of the event.
func (o *Offers) record(tx *store.Tx, a mail.Actor, to mail.Offering, messages []int64) (int64, error) {
	due := tx.Now().Add(offerTime)
	for _, m := range messages {
		tx.Exec(insertOffer, m, a.Mailbox, int(to.Way), to.Harness, to.Mark, tx.Now(), due)
		tx.Exec(deleteOldOffers, m, a.Mailbox, offersKept)
	}
	o.broker.Calendar.Expect(tx, due)
	return o.append(tx, a, entry{
		kind: "message.offered", verb: "offered to", severity: events.Debug, agent: a.Name,
		way: to.Way, harness: to.Harness, messages: messages,
	})
}

// An Outcome says what became of offers.
type Outcome struct {
	Marks    []string   // empty = the harness's open offers, and if they are accepted, those without evidence in time
	Harness  string     // empty = any
	Ways     []mail.Way // empty = all
	Open     bool       // without marks, only open offers
	Accepted bool       // otherwise they are returned
	Why      string     // they are returned
}

// concerns reports whether an offer is meant.
func (out *Outcome) concerns(f *found) bool {
	return (out.Harness == "" || out.Harness == f.harness) && (len(out.Ways) == 0 || slices.Contains(out.Ways, f.way))
}

// Settle records what became of offers to the calling agent, and returns how many it concerned and the revision of the
// event. An offer that was returned can be accepted; an accepted one stays so. Errors: fault.Precondition
// (AGENT_REQUIRED) without an agent.
func (o *Offers) Settle(ctx context.Context, c identity.Caller, out Outcome) (n int, revision int64, err error) {
	err = o.store.Write(ctx, func(tx *store.Tx) error {
		n, revision = 0, o.store.Revision()
		a, err := o.broker.Mailboxes.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		var all []found
		if len(out.Marks) == 0 {
			all, err = scan(tx.Query(selectOffersTo, a.Mailbox, out.Harness, out.Accepted && !out.Open, offersAtOnce))
			slices.Reverse(all)
		}
		for _, mark := range out.Marks {
			var more []found
			if more, err = scan(tx.Query(selectOffersMarked, a.Mailbox, mark, offersAtOnce)); err != nil {
				break
			}
			all = append(all, more...)
		}
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(f found) bool { return !out.concerns(&f) })
		if n = len(all); n == 0 {
			return nil
		}
		revision, err = o.settle(tx, a, a.Name, all, out.Accepted, out.Why)
		return err
	})
	return n, revision, err
}

// A found is an offer that is to be settled, with its delivery.
type found struct {
	message int64
	mailbox int64
	number  int
	way     mail.Way
	harness string
	sentAt  time.Time
	state   mail.State
	readAt  time.Time
	session int64
	agent   string
}

func scan(rows *store.Rows) ([]found, error) {
	return store.Collect(rows, func(r *store.Rows) (f found, err error) {
		var way, state int
		err = r.Scan(
			&f.message, &f.mailbox, &f.number, &way, &f.harness, &f.sentAt, &state, &f.readAt, &f.session, &f.agent)
		f.way, f.state = mail.Way(way), mail.State(state)
		return f, err
	})
}

// settle accepts or returns offers to one agent, and returns the revision of the last event. An offer whose message was
// read or acknowledged since is accepted in any case.
func (o *Offers) settle(tx *store.Tx, a mail.Actor, agent string, all []found, accepted bool, why string,
) (revision int64, err error) {
	type group struct {
		accepted bool
		way      mail.Way
		harness  string
	}
	var order []group
	messages := map[group][]int64{}
	for i := range all {
		f := &all[i]
		g := group{accepted || !f.readAt.IsZero(), f.way, f.harness}
		if g.accepted {
			o.accept(tx, f)
		} else {
			tx.Exec(updateOfferReturned, tx.Now(), why, f.message, f.mailbox, f.number)
		}
		if messages[g] == nil {
			order = append(order, g)
		}
		messages[g] = append(messages[g], f.message)
	}
	for _, g := range order {
		e := entry{
			kind: "message.returned", verb: "not accepted by", severity: events.Info, agent: agent,
			way: g.way, harness: g.harness, why: why, messages: messages[g],
		}
		if g.accepted {
			e.kind, e.verb, e.severity, e.why = "message.accepted", "accepted by", events.Debug, ""
		}
		if revision, err = o.append(tx, a, e); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// accept accepts an offer, which marks the message read.
func (o *Offers) accept(tx *store.Tx, f *found) {
	at := tx.Now()
	if !f.readAt.IsZero() {
		at = f.readAt
	}
	tx.Exec(updateOfferAccepted, at, f.message, f.mailbox, f.number)
	if f.readAt.IsZero() {
		tx.Exec(updateRead, at, at, f.message, f.mailbox)
	}
	if f.state == mail.NoticeUnread {
		broker.FinishNotices(tx, f.mailbox, []int64{f.message})
	}
	if o.observer != nil {
		after, way := at.Sub(f.sentAt), f.way
		tx.OnCommit(func() { o.observer.Accepted(way.String(), after) })
	}
}

// Due implements broker.Timed: it returns offers for which there was no evidence in time.
func (o *Offers) Due(tx *store.Tx) error {
	due, err := scan(tx.Query(selectOffersDue, tx.Now(), offersDue))
	if err != nil {
		return err
	}
	for len(due) > 0 {
		first := due[0]
		n := slices.IndexFunc(due, func(f found) bool { return f.mailbox != first.mailbox })
		if n < 0 {
			n = len(due)
		}
		if _, err := o.settle(tx, mail.System(first.session), first.agent, due[:n], false, hasPassed); err != nil {
			return err
		}
		due = due[n:]
	}
	return nil
}

// Next implements broker.Timed.
func (o *Offers) Next(q store.Querier) (at time.Time, err error) {
	err = q.QueryRow(selectNextDue).Scan(&at)
	return at, err
}

// AgentEnded implements broker.Offers.
func (o *Offers) AgentEnded(tx *store.Tx, session, mailbox int64, agent, why string) error {
	open, err := scan(tx.Query(selectOpenOffers, mailbox, offersAtOnce))
	if err == nil {
		_, err = o.settle(tx, mail.System(session), agent, open, false, why)
	}
	return err
}
