package broker

import (
	"fmt"
	"math"
	"time"

	"brokerd/internal/content"
	"brokerd/internal/events"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// MostNotices is how many notices one answer has at most.
const MostNotices = 100

// A Notice is a message with which the broker informs an agent, or all agents of a role.
type Notice struct {
	Agent   string // or
	Role    string
	Type    string
	Subject string // clipped to one line
	Payload string // JSON
	Task    string
	About   int64 // the revision of the grant or question that the notice is about, for Withdraw; 0 = none
}

// An UnreadNotice is a notice as an agent reads it.
type UnreadNotice struct {
	Revision  int64
	Type      string
	Subject   string
	Payload   string
	CreatedAt time.Time
}

// OfRole returns the names of the first agents of a role, up to limit, behind a name.
func (b *Broker) OfRole(tx *store.Tx, session int64, role, after string, limit int) ([]string, error) {
	agents, err := b.dir.Matching(tx, session, Selection{Role: role, After: after, Most: limit})
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, err
}

// Moot selects messages that are no longer true, or need no answer any more.
type Moot struct {
	About int64  // as in the Notice or Letter
	Type  string // empty = of any type
	Agent string // whose delivery; empty = all
}

// Withdraw ends the deliveries of messages that have become moot: it withdraws unread notices and
// unclaimed letters, and acknowledges letters in the name of the agents that have claimed them. If
// these are more than withdrawPage, the backlog ends the rest. Copies that have not followed their
// message yet do not follow.
func (b *Broker) Withdraw(tx *store.Tx, session int64, m Moot) error {
	m.Type = msgtype.Canonical(m.Type)
	if m.Agent == "" {
		if err := b.copyNoMore(tx, m); err != nil {
			return err
		}
	}
	c := work.Chore{Kind: withdrawChore, Session: session, Item: m.About, Name: m.Agent, Text: m.Type}
	_, err := b.chores.Do(tx, c)
	return err
}

// withdrawFurther ends the next deliveries of moot messages that are not newer than the withdrawal.
func (b *Broker) withdrawFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	m := Moot{About: c.Item, Type: c.Text, Agent: c.Name}
	if more, err = b.withdraw(tx, c.Session, m, c.Newest(), withdrawPage); err != nil || !more {
		return false, err
	}
	return c.Rest(tx)
}

// WithdrawSome ends up to limit deliveries as Withdraw does, and leaves the others. It reports whether
// there may be more.
func (b *Broker) WithdrawSome(tx *store.Tx, session int64, m Moot, limit int) (more bool, err error) {
	m.Type = msgtype.Canonical(m.Type)
	return b.withdraw(tx, session, m, math.MaxInt64, limit)
}

// withdraw ends up to limit deliveries of moot messages up to a revision.
func (b *Broker) withdraw(tx *store.Tx, session int64, m Moot, newest int64, limit int) (more bool, err error) {
	var found []*held
	rows := tx.Query(selectAbout, m.About, newest, m.Type, m.Type, m.Agent, m.Agent, m.Agent, limit)
	defer rows.Close()
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.message, &h.mailbox, &state, &h.ordering); err != nil {
			return false, err
		}
		h.state = State(state)
		found = append(found, h)
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	for _, h := range found {
		if err := b.end(tx, session, h); err != nil {
			return false, fmt.Errorf("withdraw message %d: %w", h.message, err)
		}
	}
	return len(found) == limit, nil
}

// end ends one delivery of a message that has become moot.
func (b *Broker) end(tx *store.Tx, session int64, h *held) error {
	s := b.NewSettleTx(tx, system(session))
	if h.state != Claimed {
		if err := s.finishWaiting(h, Cancelled, "message.cancelled"); err != nil {
			return err
		}
		_, err := s.Finish()
		return err
	}
	claimed, _, err := claimedDelivery(tx, h.key)
	if err != nil {
		return err
	}
	s.actor.Mailbox = claimed.holder
	if _, err := s.ack(claimed); err != nil {
		return err
	}
	_, err = s.Finish()
	return err
}

// EndDelivery ends an unfinished delivery in the given state: one that waits is cancelled, and a claim is acknowledged in
// the name of its holder.
func (b *Broker) EndDelivery(tx *store.Tx, session int64, d DeliveryID, state State) error {
	return b.end(tx, session, &held{key: key{d.Message, d.Mailbox}, state: state})
}

// HasNotices reports whether an agent has unread notices.
func (b *Broker) HasNotices(q store.Querier, session int64, agent string) (bool, error) {
	mailbox, err := b.Mailboxes.Find(q, session, MailboxRef{AgentMailbox, agent})
	if err != nil {
		return false, err
	}
	n, err := CountNotices(q, mailbox, "", 1)
	return n > 0, err
}

// CountNotices returns the number of unread notices in an agent's mailbox, at most most; with a mark, of those that are
// not offered with another one.
func CountNotices(q store.Querier, mailbox int64, mark string, most int) (n int64, err error) {
	row := q.QueryRow(countUnreadNotices, mailbox, most)
	if mark != "" {
		row = q.QueryRow(countUnofferedNotices, mailbox, mark, most)
	}
	err = row.Scan(&n)
	return n, err
}

// receiveNotices returns the oldest unread notices of an agent, at most MostNotices. It marks them read, or offers those
// that are not offered.
func (b *Broker) receiveNotices(tx *store.Tx, a Actor, to *Offering) ([]UnreadNotice, error) {
	if to == nil {
		return b.readNotices(tx, a)
	}
	return b.offers.OfferNotices(tx, a, *to)
}

// ReadNotices returns the oldest unread notices of an agent, at most MostNotices, and marks them read.
func (b *Broker) ReadNotices(tx *store.Tx, session int64, agent Agent) ([]UnreadNotice, error) {
	a := Actor{Agent: agent, Session: Session{ID: session}}
	var err error
	if a.Mailbox, err = b.Mailboxes.Find(tx, session, MailboxRef{AgentMailbox, agent.Name}); err != nil || a.Mailbox == 0 {
		return nil, err
	}
	return b.readNotices(tx, a)
}

func (b *Broker) readNotices(tx *store.Tx, a Actor) ([]UnreadNotice, error) {
	unread, revisions, err := ScanNotices(tx.Query(selectNotices, a.Mailbox, MostNotices))
	if err != nil || len(unread) == 0 {
		return nil, err
	}
	FinishNotices(tx, a.Mailbox, revisions)
	entry := a.Event("message.read")
	entry.Severity = events.Debug
	entry.Summary = counted(len(unread), "notice") + " read"
	entry.Details = RevisionsJSON("messages", revisions)
	_, err = b.log.Append(tx, entry)
	return unread, err
}

// ScanNotices returns notices and their revisions, from rows of revision, type, time and content.
func ScanNotices(rows *store.Rows) (unread []UnreadNotice, revisions []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var n UnreadNotice
		var stored []byte
		if err := rows.Scan(&n.Revision, &n.Type, &n.CreatedAt, &stored); err != nil {
			return nil, nil, err
		}
		n.Subject, n.Payload = content.Text(stored, content.Subject), content.Text(stored, content.Payload)
		unread, revisions = append(unread, n), append(revisions, n.Revision)
	}
	return unread, revisions, rows.Err()
}

// FinishNotices finishes those of the messages in an agent's mailbox that are unread notices.
func FinishNotices(tx *store.Tx, mailbox int64, messages []int64) {
	for _, message := range messages {
		tx.Exec(updateNoticeRead, mailbox, tx.Now(), message)
	}
}
