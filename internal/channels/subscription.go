package channels

import (
	"context"
	"strconv"
	"strings"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// maxSubscriptions is how many channels one agent may subscribe to.
const maxSubscriptions = 1000

// Subscribe has the caller receive what is sent to the channel from now on. The channel is made if it does not exist
// yet.
func (r *Registry) Subscribe(
	ctx context.Context, c identity.Caller, req idempotency.Request, channel string,
) (changed bool, revision int64, err error) {
	return r.change(ctx, c, req, "channel.subscribed", channel, func(tx *store.Tx, a mail.Actor) (bool, error) {
		id, err := r.broker.Mailboxes.OpenChannel(tx, a, channel)
		if err != nil {
			return false, err
		}
		n, err := tx.ExecCount(insertSubscription, id, a.Mailbox)
		if err != nil || n == 0 {
			return false, err
		}
		var all int
		if err := tx.QueryRow(countSubscriptions, a.Mailbox).Scan(&all); err != nil {
			return false, err
		}
		if all > maxSubscriptions {
			return false, fault.New(fault.Exhausted, "TOO_MANY_SUBSCRIPTIONS",
				"agent %q subscribes to %d channels, which is the limit: unsubscribe from one first",
				a.Name, maxSubscriptions).
				With("limit", "subscriptions").With("subscriptions", strconv.Itoa(maxSubscriptions))
		}
		return true, nil
	})
}

// Unsubscribe ends a subscription; the messages that have arrived stay.
func (r *Registry) Unsubscribe(
	ctx context.Context, c identity.Caller, req idempotency.Request, channel string,
) (changed bool, revision int64, err error) {
	return r.change(ctx, c, req, "channel.unsubscribed", channel, func(tx *store.Tx, a mail.Actor) (bool, error) {
		ref := mail.ChannelRef(channel)
		id, err := r.broker.Mailboxes.Find(tx, a.Session.ID, ref)
		if err != nil {
			return false, err
		}
		n, err := tx.ExecCount(deleteSubscription, id, a.Mailbox)
		return n > 0, err
	})
}

// change runs a function that changes a subscription of the calling agent, and appends the event unless the function
// has changed nothing.
func (r *Registry) change(
	ctx context.Context, c identity.Caller, req idempotency.Request, event, channel string,
	apply func(*store.Tx, mail.Actor) (bool, error),
) (bool, int64, error) {
	var answer struct {
		Changed  bool
		Revision int64
	}
	err := req.Drain(ctx, r.store, &answer, func(tx *store.Tx) error {
		a, err := r.broker.Mailboxes.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		answer.Revision = r.store.Revision()
		if answer.Changed, err = apply(tx, a); err != nil || !answer.Changed {
			return err
		}
		if err := r.broker.SubscriptionsChanged(tx, a); err != nil {
			return err
		}
		entry := a.Event(event)
		entry.Summary = a.Name + " " + strings.TrimPrefix(event, "channel.") + " " + channel
		entry.Related = []string{channel}
		answer.Revision, err = r.log.Append(tx, entry)
		return err
	})
	return answer.Changed, answer.Revision, err
}

// UnknownEvents warns of a subscription to the events of a type of which the broker sends none to channels, which the
// session's catalog does not have and which none of the newest events has.
func (r *Registry) UnknownEvents(ctx context.Context, c identity.Caller, channel string) ([]string, error) {
	eventType, ofEvents := strings.CutPrefix(channel, mail.EventChannel)
	if !ofEvents || eventType == "*" {
		return nil, nil
	}
	set, err := r.catalog.Types(ctx, c.Session)
	if err != nil || mail.KnownEvent(set, eventType) {
		return nil, err
	}
	published := false
	err = r.store.Read(ctx, func(s *store.Snapshot) error {
		session, err := r.dir.Session(s, c.Session)
		if err == nil {
			published, err = r.log.Published(s, session.ID, eventType)
		}
		return err
	})
	if err != nil || published {
		return nil, err
	}
	text := "no event of the type " + eventType +
		" is known so far: it is no type of the broker or of the catalog, and no newer event has it"
	if hint := mail.MeantEvent(set, eventType); hint != "" {
		text += "; " + hint
	}
	return []string{text}, nil
}
