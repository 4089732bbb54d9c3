package broker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// calendarPage is how many deliveries one transaction of the calendar handles.
const calendarPage = 300

// Timed is work of a package beside the core that becomes due at times in the database. The calendar calls its methods
// in the writer.
type Timed interface {
	// Due does work that is due, as much as one function may.
	Due(tx *store.Tx) error
	// Next returns when work is due next; zero for never.
	Next(q store.Querier) (time.Time, error)
}

// OnDue adds work to the calendar. Call it before Start.
func (b *Broker) OnDue(t Timed) { b.timed = append(b.timed, t) }

// A Calendar makes delayed deliveries ready when they are due, expires those whose time to live has ended, and does the
// work of OnDue. It sleeps until the earliest of these times, which it finds in the database.
type Calendar struct {
	broker *Broker
	next   *deadline.Queue[struct{}]
}

func newCalendar(b *Broker) *Calendar {
	c := &Calendar{broker: b}
	c.next = deadline.NewCalendar(b.clock, func([]struct{}) { c.tick() })
	return c
}

// run works until the context ends.
func (c *Calendar) run(ctx context.Context) {
	c.next.Set(struct{}{}, c.broker.clock.Now())
	c.next.Run(ctx)
}

// Expect makes the calendar wake no later than at, once the transaction is committed; zero is never.
func (c *Calendar) Expect(tx *store.Tx, at time.Time) {
	if at.IsZero() {
		return
	}
	tx.OnCommit(func() { c.wakeBy(at) })
}

func (c *Calendar) wakeBy(at time.Time) {
	if planned, ok := c.next.Deadline(struct{}{}); !ok || at.Before(planned) {
		c.next.Set(struct{}{}, at)
	}
}

// tick handles what is due and plans the next tick.
func (c *Calendar) tick() {
	b := c.broker
	var next time.Time
	err := b.store.Write(context.Background(), func(tx *store.Tx) error {
		if err := c.ripen(tx); err != nil {
			return err
		}
		if err := c.expire(tx); err != nil {
			return err
		}
		for _, t := range b.timed {
			if err := t.Due(tx); err != nil {
				return err
			}
		}
		var due, expires time.Time
		if err := tx.QueryRow(selectNextTimes).Scan(&due, &expires); err != nil {
			return err
		}
		next = Earliest(due, expires)
		for _, t := range b.timed {
			at, err := t.Next(tx)
			if err != nil {
				return err
			}
			next = Earliest(next, at)
		}
		return nil
	})
	if err != nil {
		next = b.clock.Now().Add(time.Second)
	}
	if !next.IsZero() {
		c.wakeBy(next)
	}
	if err != nil {
		b.zap.Warn("what is due could not be done; trying again", zap.Error(err))
	}
}

// ripen makes delayed deliveries ready whose time has come.
func (c *Calendar) ripen(tx *store.Tx) error {
	type ripe struct {
		mail.DeliveryID
		session, rank, arrival int64
		queue                  bool
	}
	var found []ripe
	rows := tx.Query(selectDue, tx.Now(), calendarPage)
	for rows.Next() {
		var r ripe
		if err := rows.Scan(&r.Message, &r.Mailbox, &r.session, &r.rank, &r.arrival, &r.queue); err != nil {
			return err
		}
		found = append(found, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, r := range found {
		if r.arrival != 0 { // it was visible before, and comes back to its place
			if _, err := c.isDue(tx, r.session, r.Message); err != nil {
				return err
			}
			tx.Exec(updateState, int(mail.Pending), r.Message, r.Mailbox)
		} else if _, err := c.arrive(tx, r.session, r.DeliveryID, r.queue); err != nil {
			return err
		}
		c.broker.Waiters.ready(tx, r.Mailbox, place{r.rank, r.Message})
	}
	return nil
}

// arrive makes a delivery ready that was never visible before: its arrival is the revision of that.
func (c *Calendar) arrive(tx *store.Tx, session int64, k mail.DeliveryID, queue bool) (int64, error) {
	revision, err := c.isDue(tx, session, k.Message)
	if err != nil {
		return 0, err
	}
	arrival := revision
	if queue {
		arrival = -revision
	}
	tx.Exec(updateArrived, arrival, k.Message, k.Mailbox)
	return revision, nil
}

// isDue appends the event that a delay is over.
func (c *Calendar) isDue(tx *store.Tx, session, message int64) (int64, error) {
	entry := mail.System(session).Event("message.ready")
	entry.Severity = events.Debug
	entry.Summary = "message " + strconv.FormatInt(message, 10) + " is due"
	entry.Related = []string{strconv.FormatInt(message, 10)}
	return c.broker.log.Append(tx, entry)
}

// expire ends deliveries that wait longer than they may. Claimed ones are left to whoever works on them.
func (c *Calendar) expire(tx *store.Tx) error {
	var found []*held
	sessions := map[*held]int64{}
	rows := tx.Query(selectExpired, tx.Now(), calendarPage)
	for rows.Next() {
		h := &held{}
		var session int64
		var state int
		if err := rows.Scan(&h.Message, &h.Mailbox, &session, &state, &h.ordering); err != nil {
			return err
		}
		h.state = mail.State(state)
		found = append(found, h)
		sessions[h] = session
	}
	if err := rows.Err(); err != nil {
		return err
	}
	bySession := map[int64]*SettleTx{}
	for _, h := range found {
		s := bySession[sessions[h]]
		if s == nil {
			s = &SettleTx{Broker: c.broker, tx: tx, actor: mail.System(sessions[h]), left: mail.Tally{}}
			bySession[sessions[h]] = s
		}
		if err := s.finishWaiting(h, mail.Expired, "message.expired"); err != nil {
			return err
		}
	}
	for _, s := range bySession {
		if _, err := s.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// finishWaiting takes a delivery that waits, or an unread notice, to EXPIRED, CANCELLED or DEAD,
// with an event.
func (s *SettleTx) finishWaiting(h *held, state mail.State, kind string) error {
	if h.ordering != "" { // the end of one before it may just have changed its state
		var now int
		if err := s.tx.QueryRow(selectState, h.Message, h.Mailbox).Scan(&now); err != nil {
			return err
		}
		h.state = mail.State(now)
	}
	s.tx.Exec(updateFinish, int(state), s.tx.Now(), h.Message, h.Mailbox)
	if h.state.Waits() {
		s.left[h.Mailbox]--
	}
	if err := s.noteEnd(h, state); err != nil {
		return err
	}
	entry := s.actor.Event(kind)
	entry.Summary = "message " + strconv.FormatInt(h.Message, 10) + " is " + state.String()
	entry.Related = []string{strconv.FormatInt(h.Message, 10)}
	var err error
	if entry.Details, err = mail.MailboxDetails(s.tx, h.Mailbox); err != nil {
		return err
	}
	if s.last, err = s.log.Append(s.tx, entry); err != nil {
		return err
	}
	return s.promote(h)
}

// claimedDelivery returns a delivery if it is claimed, and its session.
func claimedDelivery(q store.Querier, k mail.DeliveryID) (*held, int64, error) {
	h := &held{DeliveryID: k, state: mail.Claimed}
	var session int64
	err := q.QueryRow(selectClaimed, k.Message, k.Mailbox).Scan(&session, &h.rank, &h.claims, &h.attempts, &h.maxAttempts,
		&h.holder, &h.consumer, &h.claimedAt, &h.claimFor, &h.expiresAt, &h.ordering, &h.queue)
	if errors.Is(err, store.ErrNoRows) {
		return nil, 0, nil
	}
	return h, session, err
}

// Earliest returns the earlier of two times, of which a zero one does not count.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
