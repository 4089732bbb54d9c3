package broker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// maxSubscriptions is how many channels one agent may subscribe to.
const maxSubscriptions = 1000

// startTTLs are the default times to live that channels of these names begin with.
func startTTL(channel string) time.Duration {
	switch channel {
	case "general":
		return time.Hour
	case "urgent":
		return 5 * time.Minute
	}
	return 0
}

// A Channel is a named topic.
type Channel struct {
	Name        string
	DefaultTTL  time.Duration // 0 = none
	Subscribers []string
	Waiting     int64          // in its own queue
	Kept        *time.Duration // finished messages; 0 = for ever, nil = as the session has it
}

// Subscribe makes the caller get what is sent to the channel from now on.
func (b *Broker) Subscribe(ctx context.Context, c identity.Caller, req idempotency.Request, channel string) (changed bool, revision int64, err error) {
	return b.subscription(ctx, c, req, channel, insertSubscription, "channel.subscribed")
}

// Unsubscribe ends a subscription; what has arrived stays.
func (b *Broker) Unsubscribe(ctx context.Context, c identity.Caller, req idempotency.Request, channel string) (changed bool, revision int64, err error) {
	return b.subscription(ctx, c, req, channel, deleteSubscription, "channel.unsubscribed")
}

func (b *Broker) subscription(ctx context.Context, c identity.Caller, req idempotency.Request, channel, query, kind string) (bool, int64, error) {
	var answer struct {
		Changed  bool
		Revision int64
	}
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		answer.Revision = b.store.Revision()
		if query == insertSubscription {
			if err := b.ensureChannel(tx, a, channel); err != nil {
				return err
			}
		}
		id, err := b.FindMailbox(tx, a.Session.ID, MailboxRef{ChannelMailbox, channel})
		if err != nil {
			return err
		}
		n, err := tx.ExecCount(query, id, a.Mailbox)
		if err != nil || n == 0 {
			return err
		}
		b.audience.Clear(tx)
		b.vacancies.Clear(tx)
		if query == insertSubscription {
			var n int
			if err := tx.QueryRow(countSubscriptions, a.Mailbox).Scan(&n); err != nil {
				return err
			}
			if n > maxSubscriptions {
				return fault.New(fault.Exhausted, "TOO_MANY_SUBSCRIPTIONS",
					"agent %q subscribes to %d channels, which is the limit: unsubscribe from one first", a.Name, maxSubscriptions).
					With("limit", "subscriptions").With("subscriptions", strconv.Itoa(maxSubscriptions))
			}
		}
		answer.Changed = true
		entry := a.Event(kind)
		entry.Summary = a.Name + " " + kind[len("channel."):] + " " + channel
		entry.Related = []string{channel}
		if answer.Revision, err = b.log.Append(tx, entry); err != nil {
			return err
		}
		return b.rebox(tx, a)
	})
	return answer.Changed, answer.Revision, err
}

// rebox lets the actor's consumers that take from all they may follow a change of what that is.
func (b *Broker) rebox(tx *store.Tx, a Actor) error {
	boxes, err := b.boxes(tx, a, nil)
	if err != nil {
		return err
	}
	tx.OnCommit(func() {
		h := b.hub
		h.mu.Lock()
		var moved []*consumer
		for k, c := range h.named {
			if k.agent == a.Mailbox && c.implicit {
				moved = append(moved, c)
			}
		}
		h.mu.Unlock()
		for _, c := range moved {
			b.move(c, a, boxes)
		}
	})
	return nil
}

// Channels lists channels by name, with their subscribers: those after a name, or of one subscriber alone.
func (b *Broker) Channels(ctx context.Context, c identity.Caller, subscriber, after string, size int) (channels []Channel, more bool, revision int64, err error) {
	err = b.store.Read(ctx, func(s *store.Snapshot) error {
		channels, more, revision = nil, false, s.Revision()
		a, err := b.Acting(s, c)
		if err != nil {
			return err
		}
		channels, more, err = ChannelsOf(s, a.Session.ID, subscriber, after, size)
		return err
	})
	return channels, more, revision, err
}

// ChannelsOf returns the first channels of a session after a name, and whether there are more. With a subscriber, it
// returns only the channels to which that agent subscribes.
func ChannelsOf(q store.Querier, session int64, subscriber, after string, size int) (channels []Channel, more bool, err error) {
	rows := q.Query(selectChannels, session, after, subscriber, session, subscriber, size+1)
	var ids []int64
	for rows.Next() {
		var ch Channel
		var id int64
		var own bool
		var kept time.Duration
		if err := rows.Scan(&id, &ch.Name, &ch.DefaultTTL, &ch.Waiting, &own, &kept); err != nil {
			return nil, false, err
		}
		if own {
			ch.Kept = &kept
		}
		if len(channels) == size {
			more = true
			break
		}
		channels, ids = append(channels, ch), append(ids, id)
	}
	if err := rows.Close(); err != nil {
		return nil, false, err
	}
	for i, id := range ids {
		if channels[i].Subscribers, err = SubscribersOf(q, id); err != nil {
			return nil, false, err
		}
	}
	return channels, more, nil
}

// Configure changes a channel's default TTL and how long its finished messages are kept, if they are given; nil
// leaves them.
func (b *Broker) Configure(ctx context.Context, c identity.Caller, req idempotency.Request, channel string, ttl, kept *time.Duration) (Channel, int64, error) {
	var answer struct {
		Channel  Channel
		Revision int64
	}
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		if err := b.ensureChannel(tx, a, channel); err != nil {
			return err
		}
		id, err := b.FindMailbox(tx, a.Session.ID, MailboxRef{ChannelMailbox, channel})
		if err != nil {
			return err
		}
		waiting, err := WaitingIn(tx, id)
		if err != nil {
			return err
		}
		answer.Channel = Channel{Name: channel, Waiting: waiting}
		if answer.Channel.Subscribers, err = SubscribersOf(tx, id); err != nil {
			return err
		}
		if ttl != nil {
			tx.Exec(updateChannel, *ttl, id)
			b.audience.Clear(tx)
		}
		if answer.Channel.Kept, err = b.keep(tx, id, kept); err != nil {
			return err
		}
		if answer.Channel.DefaultTTL, err = defaultTTL(tx, a.Session.ID, channel); err != nil {
			return err
		}
		entry := a.Event("channel.configured")
		entry.Summary = "channel " + channel + " configured"
		entry.Related = []string{channel}
		answer.Revision, err = b.log.Append(tx, entry)
		return err
	})
	return answer.Channel, answer.Revision, err
}

// keep sets how long finished messages of a channel are kept, unless it is nil, and returns how long they are.
func (b *Broker) keep(tx *store.Tx, channel int64, kept *time.Duration) (*time.Duration, error) {
	if kept != nil {
		tx.Exec(updateChannelKept, *kept, channel)
		for _, hook := range b.rekept {
			hook(tx)
		}
		return kept, nil
	}
	var own bool
	var now time.Duration
	if err := tx.QueryRow(selectChannelKept, channel).Scan(&own, &now); err != nil || !own {
		return nil, err
	}
	return &now, nil
}

// ensureChannel makes a channel that does not exist yet.
func (b *Broker) ensureChannel(tx *store.Tx, a Actor, name string) error {
	id, err := b.OpenMailbox(tx, a.Session.ID, MailboxRef{ChannelMailbox, name})
	if err != nil {
		return err
	}
	tx.Exec(insertChannel, id, startTTL(name))
	return nil
}

// defaultTTL returns a channel's, 0 for none. A channel that does not exist yet has the one it would begin with.
func defaultTTL(q store.Querier, session int64, channel string) (time.Duration, error) {
	var ttl time.Duration
	err := q.QueryRow(selectChannelTTL, session, channel).Scan(&ttl)
	if errors.Is(err, store.ErrNoRows) {
		return startTTL(channel), nil
	}
	return ttl, err
}

// SubscribersOf returns the names of a channel's subscribers, sorted.
func SubscribersOf(q store.Querier, channel int64) ([]string, error) {
	rows := q.Query(selectSubscribers, channel)
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// AgentRegistered moves an agent's open streams to the mailboxes of its new role and closes its
// circuit breaker. It is a hook of the registration.
func (b *Broker) AgentRegistered(tx *store.Tx, session Session, agent Agent) error {
	a := Actor{Agent: agent, Session: session}
	b.vacancies.Clear(tx)
	var err error
	if a.Mailbox, err = b.OpenMailbox(tx, session.ID, MailboxRef{AgentMailbox, agent.Name}); err != nil {
		return err
	}
	if err := b.closeBreaker(tx, session.ID, a.Mailbox); err != nil {
		return err
	}
	return b.rebox(tx, a)
}
