package broker

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/store"
)

const (
	// most rows that one dispatch looks at in a mailbox; the scan goes on in the next batch.
	dispatchScan = 2000
	// most rows that one query asks for.
	dispatchPage = 256
	// most rows that are read for one consumer at a time, of all its mailboxes, but one of each.
	dispatchRead = 4096
)

// dispatch gives ready deliveries to those who wait for them. It runs in the writer, at the end of a batch, and is
// the only place where streams and waiting calls are told of work, what was granted on sending included.
//
// A consumer with capacity that is not eager has seen all there was in its mailboxes, so only what
// this batch touched can be for it. What is kept in memory changes after the commit alone.
func (b *Broker) dispatch(tx *store.Tx) error {
	w := b.Waiters
	touched := readied{}
	for mailbox, at := range w.touched.All() {
		touched[mailbox] = at
		w.touched.Delete(tx, mailbox)
	}
	w.mu.Lock()
	for mailbox, at := range w.scans {
		touched.add(mailbox, at)
	}
	eager := w.eager
	d := dispatchRun{Broker: b, tx: tx, shares: map[*consumer]*share{}, left: tally{}, scans: readied{}, eager: len(eager)}
	d.lower(touched) // before there are shares, which copy it
	w.mu.Unlock()
	d.takeGrants()
	if err := d.run(eager, touched); err != nil {
		return err
	}
	tx.OnCommit(func() { d.commit(touched) })
	return nil
}

// A dispatchRun is one run of dispatch.
type dispatchRun struct {
	*Broker
	tx     *store.Tx
	eager  int // how many of the waiters' are looked at
	shares map[*consumer]*share
	order  []*consumer // who got something
	left   tally
	scans  readied
}

// A share is what one consumer gets, and how far its mailboxes were looked through for it.
type share struct {
	granted
	from map[int64]place
	full bool // it had no capacity at some time in this run, so there may be more for it
}

func (d *dispatchRun) share(c *consumer) *share {
	s := d.shares[c]
	if s == nil {
		s = &share{}
		if !c.filter.empty() {
			s.from = map[int64]place{}
			maps.Copy(s.from, c.from)
		}
		d.shares[c] = s
	}
	return s
}

// lower has filtered consumers look again at what was touched.
func (d *dispatchRun) lower(touched readied) {
	for mailbox, at := range touched {
		for _, c := range d.Waiters.consumers[mailbox] {
			if from, ok := c.from[mailbox]; ok && !from.before(at) {
				c.from[mailbox] = at.justBefore()
			}
		}
	}
}

// takeGrants takes over what the sending functions have granted.
func (d *dispatchRun) takeGrants() {
	for c, g := range d.Waiters.grants.All() {
		d.share(c).granted = granted{slices.Clip(g.claims), g.bytes}
		d.order = append(d.order, c)
		d.Waiters.grants.Delete(d.tx, c)
	}
	first := func(c *consumer) key { return d.shares[c].claims[0].key }
	slices.SortFunc(d.order, func(a, b *consumer) int { return first(a).compare(first(b)) })
}

func (d *dispatchRun) run(eager []*consumer, touched readied) error {
	for _, c := range eager {
		if err := d.fill(c); err != nil {
			return err
		}
	}
	for mailbox, at := range touched {
		if at == justVisible {
			continue
		}
		if err := d.spread(mailbox, at.justBefore()); err != nil {
			return err
		}
	}
	for _, c := range d.order {
		if err := d.claimed(d.tx, c.actor, c.name, d.shares[c].claims); err != nil {
			return err
		}
	}
	d.left.flush(d.tx)
	return nil
}

// commit tells everybody.
func (d *dispatchRun) commit(touched readied) {
	w := d.Waiters
	w.mu.Lock()
	for _, c := range w.eager[:d.eager] {
		c.eager = false
	}
	w.eager = slices.Delete(w.eager, 0, d.eager)
	for _, c := range w.eager {
		c.eager = true // again, since this batch
	}
	w.scans = d.scans
	for c, s := range d.shares {
		c.inFlight += len(s.claims)
		c.bytes += s.bytes
		if c.stream != nil {
			c.unsent += s.bytes
		}
		c.from = s.from
		if s.full && c.capacity() > 0 { // an ack has freed some, and refill could not know that this matters
			w.lookAt(c)
		}
	}
	again := len(w.eager) > 0 || len(w.scans) > 0
	w.mu.Unlock()
	for _, c := range d.order {
		if c.isEnded() {
			continue // in this batch, after it was given something
		}
		claims := d.shares[c].claims
		d.begin(c, claims)
		c.deliver(claims)
	}
	w.signal(touched)
	if again {
		d.Waiters.kick()
	}
}

// begin starts the deadlines of new claims of a consumer, and counts the messages that it receives.
func (d *dispatchRun) begin(c *consumer, claims []Claim) {
	end := d.clock.Now().Add(c.lasts)
	received := 0
	for i := range claims {
		d.Running.ends.Set(claims[i].key, end)
		if claims[i].fresh {
			received++
		}
	}
	d.Counters.worked(c.actor, 0, received, 0)
}

// capacity is how many more claims a consumer may be given in this run.
func (d *dispatchRun) capacity(c *consumer) int {
	d.Waiters.mu.Lock()
	defer d.Waiters.mu.Unlock()
	return d.capacityLocked(c)
}

// capacityLocked is capacity for a caller that holds the waiters' mutex.
func (d *dispatchRun) capacityLocked(c *consumer) int {
	if _, leaving := d.Waiters.leaving.Find(c); leaving {
		return 0
	}
	s := d.shares[c]
	if s == nil {
		return c.capacity()
	}
	capacity := c.capacityBeside(s.granted)
	s.full = s.full || capacity == 0 // acks may free some before this run ends
	return capacity
}

// fill gives one consumer as much as it has capacity for.
func (d *dispatchRun) fill(c *consumer) error {
	if p, err := d.pass(c); err != nil || p != Everything {
		if err != nil {
			return err
		}
		return d.fillGated(c, p)
	}
	return d.merge(c, noLimit, func(box Mailbox, want int) ([]ready, error) { return d.candidates(c, box, want) })
}

// merge gives a consumer as much as it has capacity for, up to a number, from all its mailboxes in one order. read
// returns the first deliveries of a mailbox that were not given yet.
func (d *dispatchRun) merge(c *consumer, most int, read func(box Mailbox, want int) ([]ready, error)) error {
	found := make([][]ready, len(c.boxes))
	ended := make([]bool, len(c.boxes))
	for ; most > 0 && d.capacity(c) > 0; most-- {
		first := -1
		for i, box := range c.boxes {
			if len(found[i]) == 0 && !ended[i] && box.ID != 0 {
				want := min(most, d.capacity(c), dispatchPage, max(1, dispatchRead/len(c.boxes)))
				var err error
				if found[i], err = read(box, want); err != nil {
					return err
				}
				ended[i] = len(found[i]) < want
			}
			if len(found[i]) > 0 && (first < 0 || found[i][0].place.before(found[first][0].place)) {
				first = i
			}
		}
		if first < 0 {
			return nil
		}
		if err := d.give(c, &found[first][0]); err != nil {
			return err
		}
		found[first] = found[first][1:]
	}
	for i := range found {
		if len(found[i]) > 0 {
			d.share(c).keep(&found[i][0])
		}
	}
	return nil
}

// candidates reads the first deliveries of a mailbox that a consumer may be given.
func (d *dispatchRun) candidates(c *consumer, box Mailbox, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	now := d.tx.Now()
	if c.filter.empty() {
		return readReady(d.tx.Query(selectReady, box.ID, now, self, want), box)
	}
	seen := d.share(c).from
	from, ok := seen[box.ID]
	if !ok {
		from = front
	}
	found, err := readReady(d.tx.Query(selectReadyFiltered,
		c.filter.args([]any{box.ID, from.rank, from.message, now}, self, want)...), box)
	if err != nil {
		return nil, err
	}
	if len(found) < want {
		seen[box.ID] = back
	} else {
		seen[box.ID] = found[len(found)-1].place
	}
	return found, nil
}

// keep puts a filtered consumer's place back before a delivery that it was not given after all.
func (s *share) keep(r *ready) {
	if from, ok := s.from[r.key.mailbox]; ok && !from.before(r.place) {
		s.from[r.key.mailbox] = r.place.justBefore()
	}
}

// spread gives what a mailbox has, beyond a place, to those who wait, each in turn.
func (d *dispatchRun) spread(mailbox int64, at place) error {
	waiting := d.Waiters.waitingAt(mailbox)
	if capacity, err := d.capacityOf(waiting, at); err != nil || capacity == 0 {
		return err
	}
	var box Mailbox
	for _, b := range waiting[0].boxes {
		if b.ID == mailbox {
			box = b
		}
	}
	for looked := 0; ; {
		capacity, err := d.capacityOf(waiting, at)
		if err != nil {
			return err
		}
		want := min(capacity, dispatchPage)
		if want == 0 {
			break
		}
		found, err := readReady(d.tx.Query(selectReadyFrom, mailbox, at.rank, at.message, d.tx.Now(), want), box)
		if err != nil {
			return err
		}
		for i := range found {
			r := &found[i]
			var failed error
			d.Waiters.mu.Lock()
			c := d.Waiters.nextConsumer(mailbox, func(c *consumer) bool {
				if !c.takes(box.Ref.Kind, r) || d.capacityLocked(c) == 0 {
					return false
				}
				ok, err := d.Waiters.passes(d.tx, c, r)
				failed = errors.Join(failed, err)
				return ok
			})
			d.Waiters.mu.Unlock()
			if failed != nil {
				return failed
			}
			if c == nil {
				continue
			}
			if err := d.give(c, r); err != nil {
				return err
			}
		}
		if len(found) < want {
			break
		}
		at = found[len(found)-1].place
		if looked += len(found); looked >= dispatchScan {
			d.scans.add(mailbox, place{at.rank, at.message + 1})
			break
		}
	}
	return nil
}

// give claims a delivery for a consumer.
func (d *dispatchRun) give(c *consumer, r *ready) error {
	take(d.tx, r, c.actor.Mailbox, c.name, c.claimFor)
	if r.unread > 0 {
		if err := d.tx.QueryRow(selectContent, r.Revision).Scan(&r.Content); err != nil {
			return err
		}
		r.unread = 0
	}
	s := d.share(c)
	if len(s.claims) == 0 {
		d.order = append(d.order, c)
	}
	s.claims = append(s.claims, r.Claim)
	s.bytes += len(r.Content)
	d.left[r.key.mailbox]--
	return d.probed(c, r)
}

// claimed appends the event of new claims, and counts the messages that an agent receives by them.
func (b *Broker) claimed(tx *store.Tx, a Actor, consumer string, claims []Claim) error {
	entry := a.Event("message.claimed")
	entry.Severity = events.Debug
	var details strings.Builder
	details.WriteString(`{"consumer":`)
	writeJSON(&details, consumer)
	details.WriteString(`,"claims":[`)
	for i := range claims {
		if claims[i].fresh {
			if err := b.Counters.count(tx, a.Session, isDelivered, claims[i].Revision); err != nil {
				return err
			}
		}
		if i > 0 {
			details.WriteByte(',')
		}
		details.WriteByte('"')
		details.WriteString(claims[i].ClaimID())
		details.WriteByte('"')
	}
	details.WriteString(`]}`)
	entry.Details = details.String()
	entry.Summary = counted(len(claims), "message") + " claimed"
	_, err := b.log.Append(tx, entry)
	return err
}

// A ready is a delivery that can be handed out.
type ready struct {
	Claim
	place
	kind        string
	priority    int
	task        string
	correlation string
	claims      int
}

// take claims a ready delivery for an agent and completes r.Claim.
func take(tx *store.Tx, r *ready, holder int64, consumer string, lasts time.Duration) {
	if r.fresh {
		tx.Exec(updateClaimFresh, holder, consumer, tx.Now(), lasts, tx.Now(), r.key.message, r.key.mailbox)
	} else {
		tx.Exec(updateClaim, holder, consumer, tx.Now(), lasts, r.key.message, r.key.mailbox)
	}
	r.Number = r.claims + 1
	r.ExpiresIn = lasts
}

// readReady reads the rows of the selectReady queries. A content of more than 4 KiB is left unread until give: not
// all that is found is given.
func readReady(rows *store.Rows, box Mailbox) ([]ready, error) {
	var found []ready
	for rows.Next() {
		var r ready
		var id []byte
		var attempts int
		var delivered int64
		if err := rows.Scan(&r.place.rank, &r.key.message, &r.claims, &attempts, &r.Claim.MaxAttempts, &delivered, &r.ordered,
			&id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread, &r.kind, &r.priority,
			&r.task, &r.correlation, &r.Content, &r.unread); err != nil {
			return nil, err
		}
		if r.Content != nil {
			r.unread = 0
		}
		copy(r.Message.ID[:], id)
		r.place.message, r.Revision, r.key.mailbox = r.key.message, r.key.message, box.ID
		r.Mailbox = box.Ref.String()
		r.Attempt = attempts + 1
		r.fresh = delivered == 0
		found = append(found, r)
	}
	return found, rows.Err()
}
