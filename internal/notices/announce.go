package notices

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/content"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// Announce sends an event as a message to those who subscribe to the channel of its type or to that
// of all events, in the event's own transaction: one copy each, except to the agent that caused it. An
// event of the broker itself goes to the subscribers of every session. The message's priority
// follows the event's severity. If more agents subscribe than one function sends copies to, the
// backlog sends the others. Announce returns the number of mailboxes that accept the message; those
// whose copies follow count as accepting it. It is a hook of the log.
//
// An event about such a message is never sent on, or a subscriber that fails would receive the news of its failures
// without end: the log does not announce message.sent, and fail keeps message.dead quiet.
func (s *Sender) Announce(tx *store.Tx, e events.Event) (int, error) {
	sessions := []int64{e.Session}
	if e.Session == 0 {
		var err error
		if sessions, err = listening(tx, e.Type); err != nil {
			return 0, err
		}
	}
	reached := 0
	for _, id := range sessions {
		n, err := s.announce(tx, e, id)
		if err != nil {
			return 0, fmt.Errorf("announce event %d: %w", e.Revision, err)
		}
		reached += n
	}
	return reached, nil
}

// priorities are those of the messages of events, by the severity of the event.
var priorities = [...]int{events.Debug: 3, events.Info: 5, events.Warning: 6, events.Error: 7, events.Critical: 10}

// announce sends an event to those agents of a session that receive it.
func (s *Sender) announce(tx *store.Tx, e events.Event, id int64) (int, error) {
	to, err := s.broker.Audiences.Of(tx, id, e.Type)
	if err != nil || len(to.Names) == 0 {
		return 0, err
	}
	first := to.Names[:min(len(to.Names), router.CopiesAtOnce(tx))]
	more := len(first) < len(to.Names)
	names := slices.DeleteFunc(slices.Clone(first), func(name string) bool { return name == e.Source })
	if len(names) == 0 && !more {
		return 0, nil
	}
	session, err := s.dir.ByID(tx, id)
	if err != nil || session.Closed() { // no agent could finish it there
		return 0, err
	}
	d := mail.Draft{
		Target: mail.Target{Kind: mail.ToChannel, Name: to.Channel}, Type: "event",
		Subject:  content.Clip(cmp.Or(e.Summary, e.Type+" from "+e.Source), validate.MaxLine),
		Priority: priorities[e.Severity], Task: e.TaskID, TTL: to.TTL,
	}
	says := content.Message{
		Channel: d.Target.Name, Type: d.Type, TypeAsSent: e.TypeAsSent, Priority: d.Priority, Subject: d.Subject,
		Payload: eventPayload(&e), Task: d.Task,
	}
	if d.Content, err = says.Marshal(); err != nil {
		return 0, err
	}
	part := s.router.NewPartTx(tx, system(session), router.Part{Audience: names, More: more})
	out, err := part.Send(&d)
	if err != nil {
		return 0, err
	}
	reached := out.Count - out.Refused
	if more {
		part.CopyLater(out.Revision, e.Source, first)
		var all int
		if err := tx.QueryRow(countAudience, id, to.Channel, e.Source).Scan(&all); err != nil {
			return 0, err
		}
		reached = all - out.Refused
	}
	return reached, part.Finish()
}

// eventPayload is an event as brokerctl writes it in JSON. The details are nested as they are.
func eventPayload(e *events.Event) string {
	var b strings.Builder
	text := func(field, s string) {
		b.WriteString(`,"` + field + `":` + events.Quote(s))
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
		b.WriteString(events.Quote(about))
	}
	b.WriteByte(']')
	text("task_id", e.TaskID)
	b.WriteByte('}')
	return b.String()
}

// listening returns the sessions in which an agent receives the events of a type.
func listening(tx *store.Tx, kind string) ([]int64, error) {
	rows := tx.Query(selectListening, mail.ChannelName(mail.EventChannel+kind))
	return store.Collect(rows, func(r *store.Rows) (session int64, err error) { return session, r.Scan(&session) })
}
