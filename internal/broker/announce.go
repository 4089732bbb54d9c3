package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/content"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// EventChannel begins the names of the channels that events go to: event/TYPE, and event/* for all of them. Names that
// clients choose for channels have no slash, so that only the broker sends to these.
const EventChannel = "event/"

// audienceKey names the events of one type in a session.
type audienceKey struct {
	session int64
	kind    string
}

// ChannelName returns the name of a channel for any spelling of it: channels of events have the
// canonical names of the types, and those of the broker's own types an underscore for the dot.
func ChannelName(spelling string) string {
	eventType, ok := strings.CutPrefix(spelling, EventChannel)
	if !ok || eventType == "*" {
		return spelling
	}
	return EventChannel + msgtype.Canonical(eventType)
}

// An audience has the agents that receive the events of one type.
type audience struct {
	channel string
	names   []string      // agents, sorted, the first copiesPage and one
	ttl     time.Duration // of the messages; 0 = none
}

// Announce sends an event as a message to those who subscribe to the channel of its type or to that
// of all events, in the event's own transaction: one copy each, except to the agent that caused it. An
// event of the broker itself goes to the subscribers of every session. The message's priority
// follows the event's severity. If more agents subscribe than one function sends copies to, the
// backlog sends the others. Announce returns the number of mailboxes that accept the message; those
// whose copies follow count as accepting it. It is a hook of the log.
//
// An event about such a message is never sent on, or a subscriber that fails would receive the news of its failures
// without end: the log does not announce message.sent, and fail keeps message.dead quiet.
func (b *Broker) Announce(tx *store.Tx, e events.Event) (int, error) {
	sessions := []int64{e.Session}
	if e.Session == 0 {
		var err error
		if sessions, err = listening(tx, e.Type); err != nil {
			return 0, err
		}
	}
	reached := 0
	for _, id := range sessions {
		n, err := b.announce(tx, e, id)
		if err != nil {
			return 0, fmt.Errorf("announce event %d: %w", e.Revision, err)
		}
		reached += n
	}
	return reached, nil
}

// priorities are those of the messages of events, by the severity of the event.
var priorities = [...]int{events.Debug: 3, events.Info: 5, events.Warning: 6, events.Error: 7, events.Critical: 10}

func (b *Broker) announce(tx *store.Tx, e events.Event, id int64) (int, error) {
	to, err := b.listeners(tx, id, e.Type)
	if err != nil || len(to.names) == 0 {
		return 0, err
	}
	first := to.names[:min(len(to.names), copiesAtOnce(tx))]
	more := len(first) < len(to.names)
	names := without(first, e.Source)
	if len(names) == 0 && !more {
		return 0, nil
	}
	session, err := b.dir.ByID(tx, id)
	if err != nil || session.Closed { // no agent could finish it there
		return 0, err
	}
	d := Draft{
		Target: Target{ToChannel, to.channel}, Type: "event",
		Subject:  clip(cmp.Or(e.Summary, e.Type+" from "+e.Source), validate.MaxLine),
		Priority: priorities[e.Severity], Task: e.TaskID, TTL: to.ttl,
	}
	says := content.Message{
		Channel: d.Target.Name, Type: d.Type, TypeAsSent: e.TypeAsSent, Priority: d.Priority, Subject: d.Subject,
		Payload: eventPayload(&e), Task: d.Task,
	}
	if d.Content, err = says.Marshal(); err != nil {
		return 0, err
	}
	s := &sending{
		Broker: b, tx: tx, actor: Actor{Agent: Agent{Name: identity.System}, Session: session},
		rooms: map[MailboxRef]*room{}, audience: names, more: more, part: true,
	}
	out, err := s.send(&d, 0, 0)
	if err != nil {
		return 0, err
	}
	reached := out.Count - out.Refused
	if more {
		b.copyLater(tx, id, work.Chore{Kind: eventChore, Item: out.Revision, Name: e.Source}, first)
		var all int
		if err := tx.QueryRow(countAudience, id, to.channel, e.Source).Scan(&all); err != nil {
			return 0, err
		}
		reached = all - out.Refused
	}
	return reached, s.finish()
}

// eventPayload is an event as brokerctl writes it in JSON. The details are nested as they are.
func eventPayload(e *events.Event) string {
	var b strings.Builder
	text := func(field, s string) {
		b.WriteString(`,"` + field + `":`)
		writeJSON(&b, s)
	}
	b.WriteString(`{"revision":` + strconv.FormatInt(e.Revision, 10))
	text("time", e.Time.UTC().Format(time.RFC3339Nano))
	text("category", strings.ToLower(e.Category.String()))
	text("type", e.Type)
	text("type_as_sent", e.OtherSpelling())
	text("severity", strings.ToLower(e.Severity.String()))
	text("source", e.Source)
	text("source_role", e.SourceRole)
	text("summary", e.Summary)
	b.WriteString(`,"details":`)
	if e.Details == "" {
		b.WriteString("null")
	} else {
		b.WriteString(e.Details)
	}
	b.WriteString(`,"related":[`)
	for i, about := range e.Related {
		if i > 0 {
			b.WriteByte(',')
		}
		writeJSON(&b, about)
	}
	b.WriteByte(']')
	text("task_id", e.TaskID)
	b.WriteByte('}')
	return b.String()
}

// without returns a copy of names that lacks one.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
}

// Admit returns when the caller may publish an event, which counts as sending one message. Errors: fault.Exhausted, as
// for a send.
func (b *Broker) Admit(ctx context.Context, c identity.Caller) error { return b.admit(ctx, c, 1) }

// listeners returns who gets the events of a type, from memory unless a subscription has changed.
func (b *Broker) listeners(tx *store.Tx, session int64, kind string) (audience, error) {
	return b.audience.Get(tx, audienceKey{session, kind}, func() (to audience, err error) {
		to.channel = ChannelName(EventChannel + kind)
		if to.names, err = EventSubscribers(tx, session, to.channel, "", copiesPage+1); err != nil || len(to.names) == 0 {
			return to, err
		}
		err = tx.QueryRow(selectAudienceTTL, session, to.channel).Scan(&to.ttl)
		if errors.Is(err, store.ErrNoRows) {
			err = nil
		}
		return to, err
	})
}

// EventSubscribers returns the names of the first agents, up to limit, behind a name that receive the
// events of a channel.
func EventSubscribers(q store.Querier, session int64, channel, after string, limit int) ([]string, error) {
	return store.Collect(q.Query(selectAudience, session, channel, after, limit), func(r *store.Rows) (name string, err error) {
		return name, r.Scan(&name)
	})
}

// listening returns the sessions in which an agent receives the events of a type.
func listening(tx *store.Tx, kind string) ([]int64, error) {
	rows := tx.Query(selectListening, ChannelName(EventChannel+kind))
	var sessions []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		sessions = append(sessions, id)
	}
	return sessions, rows.Err()
}

// ofEvent reports whether a message is that of an event.
func (s *SettleTx) ofEvent(message int64) (is bool, err error) {
	err = s.tx.QueryRow(selectIsEvent, message).Scan(&is)
	return is, err
}

// clip shortens a text to at most most bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}
