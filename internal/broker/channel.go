package broker

import (
	"errors"
	"slices"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// startTTL returns the default time to live that a channel of this name begins with.
func startTTL(channel string) time.Duration {
	switch channel {
	case "general":
		return time.Hour
	case "urgent":
		return 5 * time.Minute
	}
	return 0
}

// DefaultTTL returns the default time to live of a channel, 0 for none. A channel that does not exist yet has the one
// that it would begin with.
func DefaultTTL(q store.Querier, session int64, channel string) (time.Duration, error) {
	var ttl time.Duration
	err := q.QueryRow(selectChannelTTL, session, channel).Scan(&ttl)
	if errors.Is(err, store.ErrNoRows) {
		return startTTL(channel), nil
	}
	return ttl, err
}

// SubscribersOf returns the names of a channel's subscribers, sorted.
func SubscribersOf(q store.Querier, channel int64) ([]string, error) {
	return store.Collect(q.Query(selectSubscribers, channel), func(r *store.Rows) (name string, err error) {
		return name, r.Scan(&name)
	})
}

// SubscriptionsChanged clears from memory what depends on subscriptions, of which the caller has changed the actor's,
// and has the actor's consumers take from the channels to which it subscribes now.
func (b *Broker) SubscriptionsChanged(tx *store.Tx, a Actor) error {
	b.Audiences.Forget(tx)
	b.advisor.AudienceChanged(tx)
	return b.rebox(tx, a)
}

// rebox moves those of the actor's consumers that take from all mailboxes that they may take from: the set of these
// mailboxes has changed.
func (b *Broker) rebox(tx *store.Tx, a Actor) error {
	boxes, err := b.Mailboxes.Choose(tx, a, nil)
	if err != nil {
		return err
	}
	tx.OnCommit(func() { b.Streams.move(a, boxes) })
	return nil
}

// AgentRegistered moves an agent's open streams to the mailboxes of its new role. It is a hook of the registration.
func (b *Broker) AgentRegistered(tx *store.Tx, session Session, agent Agent) error {
	a := Actor{Agent: agent, Session: session}
	var err error
	if a.Mailbox, err = b.Mailboxes.Open(tx, session.ID, MailboxRef{AgentMailbox, agent.Name}); err != nil {
		return err
	}
	return b.rebox(tx, a)
}

// SubscribedChannels returns names of channels that agents subscribe to.
func SubscribedChannels(q store.Querier, session int64) (names []string, err error) {
	rows := q.Query(selectSubscribedChannels, session, nearest.Limit)
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, EventChannel) {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}

// KnownEvent reports whether the broker sends events of a canonical type to channels, or a catalog has it.
func KnownEvent(set *msgtype.Set, eventType string) bool {
	_, known := set.Lookup(eventType)
	return known != nil || slices.ContainsFunc(events.AnnouncedTypes(), func(t string) bool {
		return msgtype.Canonical(t) == eventType
	})
}

// MeantEvent asks whether the channel of a known type of events is meant; it is empty if the type is
// known, or if no known one is like it.
func MeantEvent(set *msgtype.Set, eventType string) string {
	if eventType == "*" || KnownEvent(set, eventType) {
		return ""
	}
	names := set.Names()
	for _, t := range events.AnnouncedTypes() {
		names = append(names, msgtype.Canonical(t))
	}
	near := nearest.Names(eventType, names[:min(len(names), nearest.Limit)])
	if len(near) == 0 || !nearest.Like(eventType, near[0]) {
		return ""
	}
	meant, _ := set.Lookup(near[0])
	return "did you mean " + EventChannel + meant + "?"
}
