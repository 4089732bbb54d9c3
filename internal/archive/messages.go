package archive

import (
	"fmt"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/events"
	"brokerd/internal/producers"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// An Append appends a record to a line of JSON.
type Append func(line []byte, r *Record) ([]byte, error)

// Messages reads messages for the archive and removes them. Its methods may be called concurrently.
type Messages struct {
	broker    *broker.Broker
	producers *producers.Producers
	log       *events.Log
	append    Append
}

// New returns the messages of a broker, and of these producers.
func New(core *broker.Broker, from *producers.Producers, log *events.Log, line Append) *Messages {
	return &Messages{core, from, log, line}
}

// Standings returns the state of messages after a revision, in the order of their revisions, of one session or, for 0,
// of all. It reads at most limit messages. If all of these are finished, in one session and channel, and none is a
// dead letter, it may return them as one, unless each is asked for.
func (m *Messages) Standings(q store.Querier, session, after int64, limit int, each bool) ([]work.Standing, error) {
	if each {
		return eachStanding(q, session, after, limit)
	}
	one, alike, err := alike(q, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the state of messages: %w", err)
	}
	if alike && (session == 0 || session == one.Session) {
		return []work.Standing{one}, nil
	}
	return eachStanding(q, session, after, limit)
}

// alike returns the common standing of some messages, and reports whether it is that of each of them, apart from
// times.
func alike(q store.Querier, after int64, limit int) (s work.Standing, alike bool, err error) {
	var another int64
	var first, last int64
	err = q.QueryRow(selectAlike, after, limit).
		Scan(&s.Messages, &first, &last, &s.Session, &another, &s.CreatedAt, &s.Channel, &alike)
	if err != nil || !alike || s.Messages == 0 || s.Session != another {
		return s, false, err
	}
	s.First, s.Last = first, last
	err = q.QueryRow(selectAlikeDeliveries, first, last).Scan(&s.Deliveries, &s.Finished, &s.FinishedAt)
	return s, s.Finished, err
}

// eachStanding returns the state of each message by itself.
func eachStanding(q store.Querier, session, after int64, limit int) ([]work.Standing, error) {
	rows := q.Query(selectStandings, after, session, session, limit)
	defer rows.Close()
	found := make([]work.Standing, 0, limit)
	for rows.Next() {
		s := work.Standing{Messages: 1, Follows: session == 0 && len(found) > 0}
		err := rows.Scan(
			&s.First, &s.Session, &s.CreatedAt, &s.Channel, &s.Deliveries, &s.Finished, &s.FinishedAt, &s.DeadAt)
		if err != nil {
			return nil, err
		}
		s.Last = s.First
		found = append(found, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the state of messages: %w", err)
	}
	return found, nil
}

// ChannelsKept returns the channels that have their own time for which messages are kept, by session and name.
func (m *Messages) ChannelsKept(q store.Querier) (map[int64]map[string]time.Duration, error) {
	rows := q.Query(selectChannelsKept)
	defer rows.Close()
	kept := map[int64]map[string]time.Duration{}
	for rows.Next() {
		var session int64
		var name string
		var d time.Duration
		if err := rows.Scan(&session, &name, &d); err != nil {
			return nil, err
		}
		if kept[session] == nil {
			kept[session] = map[string]time.Duration{}
		}
		kept[session][name] = d
	}
	return kept, rows.Err()
}
