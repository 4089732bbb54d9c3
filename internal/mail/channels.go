package mail

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

// KnownEvent reports whether the broker sends events of a canonical type to channels, or a catalog knows the type.
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

// EventChannel begins the names of the channels that events go to: event/TYPE, and event/* for all of them. Names that
// clients choose for channels have no slash, so that only the broker sends to these.
const EventChannel = "event/"

// ChannelName returns the name of a channel for any spelling of it: channels of events have the canonical names of the
// types, and those of the broker's own types an underscore for the dot.
func ChannelName(spelling string) string {
	eventType, ok := strings.CutPrefix(spelling, EventChannel)
	if !ok || eventType == "*" {
		return spelling
	}
	return EventChannel + msgtype.Canonical(eventType)
}

// CopiesPage is how many copies of a message that reports a change the change itself sends.
const CopiesPage = 1000

// audienceKey names the events of one type in a session.
type audienceKey struct {
	session int64
	kind    string
}

// An Audience has the agents that receive the events of one type.
type Audience struct {
	Channel string
	Names   []string      // agents, sorted; one more than the change of the event sends copies to, if there are more
	TTL     time.Duration // of the messages; 0 = none
}

// Audiences keeps in memory who receives the events of a type. Its methods belong to the writer.
type Audiences struct {
	kept  store.Cache[audienceKey, Audience]
	hooks []func(tx *store.Tx)
}

// OnChange adds a function that clears from memory what depends on subscriptions. Call it before the broker is used.
func (a *Audiences) OnChange(hook func(tx *store.Tx)) { a.hooks = append(a.hooks, hook) }

// Forget clears the memory after a change of a subscription, or of the default time to live of a channel.
func (a *Audiences) Forget(tx *store.Tx) {
	a.kept.Clear(tx)
	for _, hook := range a.hooks {
		hook(tx)
	}
}

// Of returns who receives the events of a type, from memory unless a subscription has changed.
func (a *Audiences) Of(tx *store.Tx, session int64, kind string) (Audience, error) {
	return a.kept.Get(tx, audienceKey{session, kind}, func() (to Audience, err error) {
		to.Channel = ChannelName(EventChannel + kind)
		to.Names, err = EventSubscribers(tx, session, to.Channel, "", CopiesPage+1)
		if err != nil || len(to.Names) == 0 {
			return to, err
		}
		err = tx.QueryRow(selectAudienceTTL, session, to.Channel).Scan(&to.TTL)
		if errors.Is(err, store.ErrNoRows) {
			err = nil
		}
		return to, err
	})
}

// EventSubscribers returns the names of the first agents, up to limit, behind a name that receive the events of a
// channel.
func EventSubscribers(q store.Querier, session int64, channel, after string, limit int) ([]string, error) {
	rows := q.Query(selectAudience, session, channel, after, limit)
	return store.Collect(rows, func(r *store.Rows) (name string, err error) { return name, r.Scan(&name) })
}
