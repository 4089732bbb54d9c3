package app

import (
	"context"
	"encoding/json"

	"brokerd/internal/agents"
	"brokerd/internal/archive"
	"brokerd/internal/auth"
	"brokerd/internal/catalog"
	"brokerd/internal/events"
	"brokerd/internal/locks"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/retention"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// wake makes the keeper run again when a setting changes on which it depends.
func wake(p *parts) {
	changed := func(tx *store.Tx) error {
		tx.OnCommit(p.retention.Wake)
		return nil
	}
	p.sessions.OnCreated(func(tx *store.Tx, _ sessions.Session) error { return changed(tx) })
	p.sessions.OnConfigured(func(tx *store.Tx, _, _ sessions.Session) error { return changed(tx) })
	p.channels.OnRekept(func(tx *store.Tx) { tx.OnCommit(p.retention.Wake) })
}

// kept gives the keeper sessions.
type kept struct {
	sessions *sessions.Registry
	auth     *auth.Registry
}

// All implements retention.Sessions.
func (k kept) All(q store.Querier) ([]retention.Session, error) {
	all, err := k.sessions.All(q)
	list := make([]retention.Session, len(all))
	for i, s := range all {
		list[i] = retention.Session{
			ID: s.ID, Name: s.Name,
			KeepMessages: s.Settings.GetMessageRetention().AsDuration(),
			KeepEvents:   s.Settings.GetEventRetention().AsDuration(),
			KeepDead:     s.Settings.GetDeadLetterRetention().AsDuration(),
			Closed:       s.Closed(), Revision: s.Revision, Record: s.Record,
		}
	}
	return list, err
}

// Erase implements retention.Sessions. The session's credentials end with it.
func (k kept) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	return k.auth.EndSession(tx, session, limit)
}

// Delete implements retention.Sessions.
func (k kept) Delete(tx *store.Tx, session int64, source, archive string) (int64, error) {
	return k.sessions.Delete(tx, session, source, archive)
}

// keptMessages gives the keeper messages.
type keptMessages struct {
	*archive.Messages
	closers []closer // that close their part of a session, the backlog last, since the others withdraw mail
}

// A closer does the rest of the closing of a session.
type closer interface {
	AwaitClosed(ctx context.Context, session int64) error
}

// AwaitClosed implements retention.Messages.
func (k keptMessages) AwaitClosed(ctx context.Context, session int64) error {
	for _, c := range k.closers {
		if err := c.AwaitClosed(ctx, session); err != nil {
			return err
		}
	}
	return nil
}

// Standings implements retention.Messages.
func (k keptMessages) Standings(
	q store.Querier, session, after int64, limit int, each bool,
) ([]retention.Message, error) {
	found, err := k.Messages.Standings(q, session, after, limit, each)
	list := make([]retention.Message, len(found))
	for i, s := range found {
		list[i] = retention.Message(s)
	}
	return list, err
}

// Records implements retention.Messages.
func (k keptMessages) Records(
	q store.Querier, messages []retention.Message, to func(*retention.Message, []byte) bool,
) error {
	return k.Messages.Records(q, standings(messages), func(s *archive.Standing, line []byte) bool {
		return to((*retention.Message)(s), line)
	})
}

// Remove implements retention.Messages.
func (k keptMessages) Remove(tx *store.Tx, messages []retention.Message) error {
	return k.Messages.Remove(tx, standings(messages))
}

// Erase implements retention.Messages.
func (k keptMessages) Erase(tx *store.Tx, messages []retention.Message, limit int) (int, error) {
	return k.Messages.Erase(tx, standings(messages), limit)
}

func standings(messages []retention.Message) []archive.Standing {
	list := make([]archive.Standing, len(messages))
	for i, m := range messages {
		list[i] = archive.Standing(m)
	}
	return list
}

// keptEvents gives the keeper the log.
type keptEvents struct{ *events.Log }

// After implements retention.Log.
func (k keptEvents) After(
	snap *store.Snapshot, session, after int64, limit, bytes int,
) ([]retention.Event, int64, error) {
	found, looked, err := k.Log.After(snap, session, after, limit, bytes)
	list := make([]retention.Event, len(found))
	for i := range found {
		e := &found[i]
		list[i] = retention.Event{Revision: e.Revision, Session: e.Session, At: e.Time(), Line: e}
	}
	return list, looked, err
}

// Pruned implements retention.Log.
func (k keptEvents) Pruned(tx *store.Tx, session int64, source string, s retention.Selection, c retention.Counts) (int64, error) {
	details, err := json.Marshal(struct {
		OlderThan float64 `json:"older_than_seconds"`
		retention.Counts
	}{s.OlderThan.Seconds(), c})
	if err != nil {
		return 0, err
	}
	return k.Append(tx, events.Entry{
		Session: session, Category: events.System, Type: "data.pruned", Source: source,
		Summary: "finished data older than " + validate.Short(s.OlderThan) + " was archived and removed", Details: string(details),
	})
}

// partsOfSession are the parts of a session beside messages and events.
func partsOfSession(p *parts) []retention.Part {
	return []retention.Part{
		{
			File:     "agents.jsonl",
			Kind:     "agents",
			Lines:    p.agents.Records,
			Finished: p.agents.Deregistered,
			Remove:   byKey(p.agents.Remove),
			Erase:    eraseAgents(p.agents),
			Forget:   p.agents.Forget,
		},
		{File: "checkpoints.jsonl", Lines: p.agents.CheckpointRecords},
		{File: "channels.jsonl", Lines: messagesrpc.ChannelRecords, Erase: p.archive.EraseMailboxes},
		{File: "state.jsonl", Lines: p.state.Records, Erase: p.state.Erase, Forget: p.state.Forget},
		{File: "locks.jsonl", Lines: locks.Records, Erase: p.locks.Erase},
	}
}

// eraseAgents removes the agents of a session that is being deleted, after the cursors that the broker
// keeps for them.
func eraseAgents(registry *agents.Registry) func(*store.Tx, int64, int) (bool, error) {
	return func(tx *store.Tx, session int64, limit int) (bool, error) {
		if more, err := events.EraseCursors(tx, session, limit); more || err != nil {
			return more, err
		}
		return registry.Erase(tx, session, limit)
	}
}

// typePart is the message types that a session has registered.
func typePart(c *catalog.Service) retention.Part {
	return retention.Part{File: "types.jsonl", Lines: c.Records, Erase: c.Erase}
}
