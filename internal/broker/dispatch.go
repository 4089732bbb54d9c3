package broker

import (
	"container/heap"
	"errors"
	"maps"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

const (
	// most rows that one dispatch looks at in a mailbox for several consumers.
	dispatchScan = 2000
	// most rows that one query asks for.
	dispatchPage = 256
	// most rows that are read for one consumer at a time, of all its mailboxes, but one of each.
	dispatchRead = 4096
)

// dispatch gives ready deliveries to the consumers that wait for them. It runs in the writer, at the end of a batch. It
// alone delivers to streams and waiting calls, also what they were given when it was sent.
//
// A consumer with capacity that was not freed has been offered all there was in its mailboxes, so only what has become
// ready since the last dispatch can be for it.
func (b *Broker) dispatch(tx *store.Tx, changes []change) error {
	d := dispatchRun{Broker: b, tx: tx, left: mail.Tally{}}
	readied := map[int64]place{}
	for i := range changes {
		if c := &changes[i]; c.to != nil {
			d.order = append(d.order, c.to)
		} else if at, known := readied[c.mailbox]; !known || c.at.before(at) {
			readied[c.mailbox] = c.at
		}
	}
	d.lower(readied)
	if b.Waiters.unread.Get() {
		b.Waiters.unread.Set(tx, false)
	}
	for _, c := range b.Waiters.takeFreed(tx) {
		if err := d.fill(c); err != nil {
			return err
		}
	}
	if err := d.spread(readied); err != nil {
		return err
	}
	given, err := d.finish()
	tx.OnCommit(func() {
		for i := range given {
			if c := given[i].to; !c.isEnded() { // it may have ended in this batch, after it was given something
				d.begin(c, given[i].claims)
				c.deliver(given[i].claims)
			}
		}
		b.Waiters.signal(readied)
	})
	return err
}

// A dispatchRun gives deliveries to consumers in one function.
type dispatchRun struct {
	*Broker
	tx    *store.Tx
	order []*consumer // who was given something
	left  mail.Tally
}

// A gift is what a consumer was given.
type gift struct {
	to     *consumer
	claims []Claim
}

// lower has filtered consumers look again at what has become ready.
func (d *dispatchRun) lower(readied map[int64]place) {
	for mailbox, at := range readied {
		l := d.Waiters.lines[mailbox]
		if l == nil || at == justVisible {
			continue
		}
		for _, c := range l.consumers {
			if from, ok := c.from.Get()[mailbox]; ok && !from.before(at) {
				d.lookFrom(c, mailbox, at.justBefore())
			}
		}
	}
}

// lookFrom sets the place in a mailbox up to which nothing is for a filtered consumer.
func (d *dispatchRun) lookFrom(c *consumer, mailbox int64, at place) {
	from := maps.Clone(c.from.Get())
	if from == nil {
		from = map[int64]place{}
	}
	from[mailbox] = at
	c.from.Set(d.tx, from)
}

// finish writes what the deliveries given have in common, and returns them by consumer.
func (d *dispatchRun) finish() ([]gift, error) {
	given := make([]gift, 0, len(d.order))
	for _, c := range d.order {
		l := c.load.Get()
		if len(l.fresh) == 0 {
			continue // recalled
		}
		if err := d.claimed(d.tx, c.actor, c.name, l.fresh); err != nil {
			return nil, err
		}
		given = append(given, gift{c, l.fresh})
		l.fresh = nil
		c.load.Set(d.tx, l)
	}
	d.left.Flush(d.tx)
	return given, nil
}

// claim is finish for a call that claims.
func (d *dispatchRun) claim(k *consumer) ([]Claim, error) {
	given, err := d.finish()
	if err != nil || len(given) == 0 {
		return nil, err
	}
	claims := given[0].claims
	d.tx.OnCommit(func() { d.begin(k, claims) })
	return claims, nil
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
	d.Counters.Worked(c.actor, 0, received, 0)
}

// fill gives one consumer as much as it has capacity for.
func (d *dispatchRun) fill(c *consumer) error {
	if p, err := d.pass(c); err != nil || p != Everything {
		if err != nil {
			return err
		}
		return d.fillGated(c, p)
	}
	err := d.merge(c, noLimit, func(box mail.Mailbox, want int) ([]ready, error) { return d.candidates(c, box, want) })
	if err != nil || c.capacity() == 0 || !c.filter.empty() {
		return err
	}
	return d.noteEmpty(c.boxes)
}

// noteEmpty notes which of the mailboxes have nothing ready, after all that a consumer takes was given to it.
func (d *dispatchRun) noteEmpty(boxes []mail.Mailbox) error {
	for _, box := range boxes {
		l := d.Waiters.lines[box.ID]
		if l == nil || l.holds.Get() != offered {
			continue
		}
		left := false
		if box.Ref.Kind != mail.AgentMailbox { // messages of the consumer's agent may be left
			if err := d.tx.QueryRow(existsReady, box.ID).Scan(&left); err != nil {
				return err
			}
		}
		if !left {
			l.holds.Set(d.tx, empty)
		}
	}
	return nil
}

// merge gives a consumer as much as it has capacity for, up to a number, from all its mailboxes in one order. read
// returns the first deliveries of a mailbox that were not given yet.
func (d *dispatchRun) merge(c *consumer, most int, read func(box mail.Mailbox, want int) ([]ready, error)) error {
	found := make([][]ready, len(c.boxes))
	ended := make([]bool, len(c.boxes))
	for ; most > 0 && c.capacity() > 0; most-- {
		first := -1
		for i, box := range c.boxes {
			if len(found[i]) == 0 && !ended[i] && !d.Waiters.isEmpty(box.ID) {
				want := min(most, c.capacity(), dispatchPage, max(1, dispatchRead/len(c.boxes)))
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
			d.keep(c, &found[i][0])
		}
	}
	return nil
}

// candidates reads the first deliveries of a mailbox that a consumer may be given.
func (d *dispatchRun) candidates(c *consumer, box mail.Mailbox, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != mail.AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	now := d.tx.Now()
	if c.filter.empty() {
		return readReady(d.tx.Query(selectReady, box.ID, now, self, want), box)
	}
	from, ok := c.from.Get()[box.ID]
	if !ok {
		from = front
	}
	found, err := readReady(d.tx.Query(selectReadyFiltered,
		c.filter.args([]any{box.ID, from.rank, from.message, now}, self, want)...), box)
	if err != nil {
		return nil, err
	}
	if len(found) < want {
		from = back
	} else {
		from = found[len(found)-1].place
	}
	d.lookFrom(c, box.ID, from)
	return found, nil
}

// keep puts a filtered consumer's place back before a delivery that it was not given after all.
func (d *dispatchRun) keep(c *consumer, r *ready) {
	if from, ok := c.from.Get()[r.key.Mailbox]; ok && !from.before(r.place) {
		d.lookFrom(c, r.key.Mailbox, r.place.justBefore())
	}
}

// A source is a mailbox from which spread gives deliveries.
type source struct {
	line   *line
	box    mail.Mailbox
	at     place   // of the last delivery that was read
	found  []ready // read and not yet offered
	looked int     // how many were read
	ended  bool    // there are no more, or none is to be read now
}

// sources are a heap: the first one has the delivery that goes first.
type sources []*source

func (h sources) Len() int           { return len(h) }
func (h sources) Less(i, j int) bool { return h[i].found[0].place.before(h[j].found[0].place) }
func (h sources) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sources) Push(x any)        { *h = append(*h, x.(*source)) }

func (h *sources) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// spread gives what mailboxes have, from a place on, to the consumers that wait, each in turn. A consumer of several
// mailboxes receives their deliveries in one order.
func (d *dispatchRun) spread(readied map[int64]place) error {
	var from sources
	for mailbox, at := range readied {
		l := d.Waiters.lines[mailbox]
		if l == nil || at == justVisible {
			continue
		}
		l.holds.Set(d.tx, offered)
		boxes := l.consumers[0].boxes
		s := &source{line: l, box: boxes[indexID(boxes, mailbox)], at: at.justBefore()}
		if err := d.read(s); err != nil {
			return err
		}
		if len(s.found) > 0 {
			from = append(from, s)
		}
	}
	heap.Init(&from)
	for len(from) > 0 {
		s := from[0]
		if err := d.offer(s, &s.found[0]); err != nil {
			return err
		}
		if s.found = s.found[1:]; len(s.found) == 0 {
			if err := d.read(s); err != nil {
				return err
			}
		}
		if len(s.found) == 0 {
			heap.Pop(&from)
		} else {
			heap.Fix(&from, 0)
		}
	}
	return nil
}

// read reads the next deliveries of a mailbox, as many as its consumers have capacity for.
func (d *dispatchRun) read(s *source) error {
	capacity, err := d.capacityOf(s.line.consumers, s.at)
	want := min(capacity, dispatchPage)
	if err != nil || want == 0 || s.ended {
		return err
	}
	if s.looked >= dispatchScan { // the rest is for the next batch
		s.ended = true
		d.Waiters.ready(d.tx, s.box.ID, place{s.at.rank, s.at.message + 1})
		return nil
	}
	s.found, err = readReady(d.tx.Query(selectReadyFrom, s.box.ID, s.at.rank, s.at.message, d.tx.Now(), want), s.box)
	if err != nil {
		return err
	}
	s.ended = len(s.found) < want
	s.looked += len(s.found)
	if n := len(s.found); n > 0 {
		s.at = s.found[n-1].place
	}
	return nil
}

// offer gives a delivery to the next consumer that may have it, if there is one.
func (d *dispatchRun) offer(s *source, r *ready) error {
	var failed error
	c := s.line.nextTo(func(c *consumer) bool {
		if !c.takes(s.box.Ref.Kind, r) || d.Waiters.capacity(c) == 0 {
			return false
		}
		ok, err := d.Waiters.passes(d.tx, c, r)
		failed = errors.Join(failed, err)
		return ok
	})
	if c == nil || failed != nil {
		return failed
	}
	return d.give(c, r)
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
	if len(c.load.Get().fresh) == 0 {
		d.order = append(d.order, c)
	}
	c.take(d.tx, &r.Claim)
	d.left[r.key.Mailbox]--
	return d.probed(c, r)
}

// claimed appends the event of new claims, and counts the messages that an agent receives by them.
func (b *Broker) claimed(tx *store.Tx, a mail.Actor, consumer string, claims []Claim) error {
	entry := a.Event("message.claimed")
	entry.Severity = events.Debug
	var details strings.Builder
	details.WriteString(`{"consumer":`)
	events.WriteJSON(&details, consumer)
	details.WriteString(`,"claims":[`)
	for i := range claims {
		if claims[i].fresh {
			if err := b.Counters.countOne(tx, a.Session, isDelivered, claims[i].Revision, claims[i].class); err != nil {
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
	entry.Summary = events.Counted(len(claims), "message") + " claimed"
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
		tx.Exec(updateClaimFresh, holder, consumer, tx.Now(), lasts, tx.Now(), r.key.Message, r.key.Mailbox)
	} else {
		tx.Exec(updateClaim, holder, consumer, tx.Now(), lasts, r.key.Message, r.key.Mailbox)
	}
	r.class = classOf(r.kind)
	r.Number = r.claims + 1
	r.ExpiresIn = lasts
}

// readReady reads the rows of the selectReady queries. A content of more than 4 KiB is left unread until give: not
// all that is found is given.
func readReady(rows *store.Rows, box mail.Mailbox) ([]ready, error) {
	var found []ready
	for rows.Next() {
		var r ready
		var id []byte
		var attempts int
		var delivered int64
		if err := rows.Scan(&r.place.rank, &r.key.Message, &r.claims, &attempts, &r.Claim.MaxAttempts, &delivered, &r.ordered,
			&id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread, &r.kind, &r.priority,
			&r.task, &r.correlation, &r.Content, &r.unread); err != nil {
			return nil, err
		}
		if r.Content != nil {
			r.unread = 0
		}
		copy(r.Message.ID[:], id)
		r.place.message, r.Revision, r.key.Mailbox = r.key.Message, r.key.Message, box.ID
		r.Mailbox = box.Ref.String()
		r.Attempt = attempts + 1
		r.fresh = delivered == 0
		found = append(found, r)
	}
	return found, rows.Err()
}
