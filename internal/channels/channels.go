package channels

import (
	"context"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// A Registry has the channels of all sessions. Its methods may be called concurrently.
type Registry struct {
	store   *store.Store
	log     *events.Log
	dir     *directory.Directory
	catalog msgtype.Catalog
	broker  *broker.Broker
	rekept  []func(*store.Tx) // see OnRekept
}

// New returns the registry of the core's channels.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, catalog msgtype.Catalog, core *broker.Broker,
) *Registry {
	return &Registry{store: st, log: log, dir: dir, catalog: catalog, broker: core}
}

// OnRekept adds what is to happen in the same transaction when a call changes how long a channel's messages are kept.
// It must be called before the registry is used.
func (r *Registry) OnRekept(hook func(tx *store.Tx)) { r.rekept = append(r.rekept, hook) }

// A Channel is a named topic.
type Channel struct {
	Name        string
	DefaultTTL  time.Duration // 0 = none
	Subscribers []string
	Waiting     int64          // deliveries in the channel's own queue
	Kept        *time.Duration // how long its finished messages are kept; 0 = without end, nil = as the session has it
}

// List returns channels by name, with their subscribers: those after a name, or those of one subscriber alone.
func (r *Registry) List(
	ctx context.Context, c identity.Caller, subscriber, after string, size int,
) (list []Channel, more bool, revision int64, err error) {
	err = r.store.Read(ctx, func(s *store.Snapshot) error {
		list, more, revision = nil, false, s.Revision()
		a, err := r.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err
		}
		list, more, err = Of(s, a.Session.ID, subscriber, after, size)
		return err
	})
	return list, more, revision, err
}

// Of returns the first channels of a session after a name, and whether there are more. With a subscriber, it returns
// only the channels to which that agent subscribes.
func Of(
	q store.Querier, session int64, subscriber, after string, size int,
) (list []Channel, more bool, err error) {
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
		if len(list) == size {
			more = true
			break
		}
		list, ids = append(list, ch), append(ids, id)
	}
	if err := rows.Close(); err != nil {
		return nil, false, err
	}
	for i, id := range ids {
		if list[i].Subscribers, err = mail.SubscribersOf(q, id); err != nil {
			return nil, false, err
		}
	}
	return list, more, nil
}

// Configure changes a channel's default time to live and how long its finished messages are kept, if they are given;
// nil leaves them.
func (r *Registry) Configure(
	ctx context.Context, c identity.Caller, req idempotency.Request, channel string, ttl, kept *time.Duration,
) (Channel, int64, error) {
	var answer struct {
		Channel  Channel
		Revision int64
	}
	err := req.Drain(ctx, r.store, &answer, func(tx *store.Tx) error {
		a, err := r.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		id, err := r.broker.Mailboxes.OpenChannel(tx, a, channel)
		if err != nil {
			return err
		}
		waiting, err := mail.WaitingIn(tx, id)
		if err != nil {
			return err
		}
		answer.Channel = Channel{Name: channel, Waiting: waiting}
		if answer.Channel.Subscribers, err = mail.SubscribersOf(tx, id); err != nil {
			return err
		}
		if ttl != nil {
			tx.Exec(updateChannel, *ttl, id)
			r.broker.Audiences.Forget(tx)
		}
		if answer.Channel.Kept, err = r.keep(tx, id, kept); err != nil {
			return err
		}
		if answer.Channel.DefaultTTL, err = mail.DefaultTTL(tx, a.Session.ID, channel); err != nil {
			return err
		}
		entry := a.Event("channel.configured")
		entry.Summary = "channel " + channel + " configured"
		entry.Related = []string{channel}
		answer.Revision, err = r.log.Append(tx, entry)
		return err
	})
	return answer.Channel, answer.Revision, err
}

// keep sets how long finished messages of a channel are kept, unless it is nil, and returns how long they are.
func (r *Registry) keep(tx *store.Tx, channel int64, kept *time.Duration) (*time.Duration, error) {
	if kept != nil {
		tx.Exec(updateChannelKept, *kept, channel)
		for _, hook := range r.rekept {
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
