package broker

import (
	"errors"
	"strings"
	"time"

	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

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
	kept store.Cache[audienceKey, Audience]
}

// Forget clears the memory after a change of a subscription, or of the default time to live of a channel.
func (a *Audiences) Forget(tx *store.Tx) { a.kept.Clear(tx) }

// Of returns who receives the events of a type, from memory unless a subscription has changed.
func (a *Audiences) Of(tx *store.Tx, session int64, kind string) (Audience, error) {
	return a.kept.Get(tx, audienceKey{session, kind}, func() (to Audience, err error) {
		to.Channel = ChannelName(EventChannel + kind)
		to.Names, err = EventSubscribers(tx, session, to.Channel, "", copiesPage+1)
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

// ofEvent reports whether a message is that of an event.
func (s *SettleTx) ofEvent(message int64) (is bool, err error) {
	err = s.tx.QueryRow(selectIsEvent, message).Scan(&is)
	return is, err
}
