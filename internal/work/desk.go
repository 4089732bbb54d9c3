package work

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Desk has what all kinds of work need. Its fields are set before it is used.
type Desk struct {
	Store     *store.Store
	Events    *events.Log
	Directory *directory.Directory
	Post      Post
	Clock     clockwork.Clock
	Log       *zap.Logger
	Observer  Observer // nil = outcomes are not counted
}

// A Tx makes the changes of one function of the writer in one session.
type Tx struct {
	*store.Tx
	Session directory.Session
	Actor   directory.Agent // that makes the change; its name is system for operators and the broker
	Quiet   bool            // the events go to no channels
	Flag    bool            // what the answer says beside the item; Change keeps it for a repeated call
}

// ByBroker returns the Tx for a change that the broker makes by itself because of the change at hand.
func (t *Tx) ByBroker() *Tx {
	u := *t
	u.Actor = Broker
	return &u
}

// Broker is the actor of changes that the broker makes by itself.
var Broker = directory.Agent{Name: identity.System}

// Begin returns a Tx of the caller. Errors: as directory.Directory has them.
func (d *Desk) Begin(tx *store.Tx, who identity.Caller) (*Tx, error) {
	s, err := d.Directory.Session(tx, who.Session)
	if err != nil {
		return nil, err
	}
	a, err := d.Directory.Acting(tx, s.ID, who)
	return &Tx{Tx: tx, Session: s, Actor: a}, err
}

// BeginBroker returns a Tx of the broker itself, in a session that may be closed.
func (d *Desk) BeginBroker(tx *store.Tx, session int64) (*Tx, error) {
	s, err := d.Directory.ByID(tx, session)
	return &Tx{Tx: tx, Session: s, Actor: Broker}, err
}

// Admit waits until the caller may send a message, as Post does. A feature calls it before Change if
// the change sends one.
func (d *Desk) Admit(ctx context.Context) error {
	return d.Post.Admit(ctx, identity.FromContext(ctx), 1)
}

// Read reads in a snapshot of the caller's session. Errors: those of fn, and as directory.Directory has
// them.
func (d *Desk) Read(ctx context.Context, fn func(snap *store.Snapshot, s directory.Session) error) error {
	return d.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := d.Directory.Session(snap, identity.FromContext(ctx).Session)
		if err != nil {
			return err
		}
		return fn(snap, s)
	})
}

// Known refuses the name of an agent that is not registered. The error is UnknownAgent.
func (d *Desk) Known(q store.Querier, session int64, name string) error {
	_, found, err := d.Directory.Find(q, session, name)
	if err == nil && !found {
		err = UnknownAgent(q, d.Directory, session, name)
	}
	return err
}

// An Event is what a change adds to the log.
type Event struct {
	Type     string // such as vote.cast
	Severity events.Severity
	Summary  string // its first line counts, and about mostSummary bytes of it
	Details  map[string]any
	Related  []string // beside the item, at most 15
}

// A Subject is what an event is about.
type Subject struct {
	Noun string // such as vote
	ID   string // empty = it is new
	Task string // that it names; empty = none
}

// AppendEvent adds the event of a change and returns its revision. The details get the id of the subject, unless
// it is new.
func (d *Desk) AppendEvent(tx *Tx, about Subject, e Event) (revision int64, err error) {
	related := e.Related
	if about.ID != "" {
		related = append([]string{about.ID}, related...)
		e.Details[about.Noun+"_id"] = about.ID
	}
	details, err := json.Marshal(e.Details)
	if err != nil {
		return 0, fmt.Errorf("write details of %s: %w", e.Type, err)
	}
	return d.Events.Append(tx.Tx, events.Entry{
		Session: tx.Session.ID, Category: events.Work, Type: e.Type, Severity: e.Severity, Source: tx.Actor.Name,
		SourceRole: tx.Actor.Role, Summary: Headline(e.Summary, mostSummary), Details: string(details), Related: related,
		TaskID: about.Task, Quiet: tx.Quiet,
	})
}

// Append is AppendEvent for an item.
func (t *Table[T]) Append(tx *Tx, item T, e Event) (revision int64, err error) {
	return t.AppendEvent(tx, Subject{t.Noun, item.GetId(), t.Columns(item).Task}, e)
}

// mostSummary is about how many bytes the summary of an event has.
const mostSummary = 1 << 10

// Headline returns the first line of a text, clipped to about most bytes.
func Headline(text string, most int) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return Clip(strings.TrimSpace(line), most)
}

// Clip shortens a text to about most bytes.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// CountOutcome counts an outcome of a kind of work once the change is committed.
func (d *Desk) CountOutcome(tx *Tx, noun, outcome string) {
	if d.Observer != nil {
		tx.OnCommit(func() { d.Observer.Work(noun, outcome) })
	}
}

// Count is CountOutcome for the kind of the table.
func (t *Table[T]) Count(tx *Tx, outcome string) { t.CountOutcome(tx, t.Noun, outcome) }

// A Request asks for a change.
type Request interface {
	proto.Message
	GetRequestId() string
}

// RequestOf returns what distinguishes the calls of one request from others. Errors: fault.Invalid for an id that is
// no UUID.
func RequestOf(ctx context.Context, in Request) (idempotency.Request, error) {
	return idempotency.Of(ctx, callName(in), in.GetRequestId(), in)
}

// A Lane runs a function of the writer: Store.Write, or Store.Drain for a change that ends work.
type Lane func(ctx context.Context, fn func(tx *store.Tx) error) error

// Once makes one change of the caller, once for each request id. fn leaves in answer, a pointer, what the broker
// keeps: for a repeated call, Once fills the answer with that, and seen is true. Errors: those of fn, of
// idempotency.Request and of directory.Directory.
func (d *Desk) Once(
	ctx context.Context, lane Lane, in Request, answer any, fn func(tx *Tx) error,
) (seen bool, err error) {
	req, err := RequestOf(ctx, in)
	if err != nil {
		return false, err
	}
	err = lane(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, answer, func() error {
			t, err := d.Begin(tx, identity.FromContext(ctx))
			if err != nil {
				return err
			}
			return fn(t)
		})
		return err
	})
	return seen, err
}

// kept is what the broker keeps of an answer for a repeated call: the row, whose parts never change.
type kept struct {
	ID       int64
	Revision int64
	Flag     bool   `json:",omitempty"`
	Item     []byte // the message of the row; nil = kept by an earlier version of the broker

	// Of an earlier version: the number of a vote, or of one that was closed; whether that was closed before, or
	// a verdict has passed a token.
	Key     int64               `json:",omitempty"`
	Vote    struct{ Key int64 } `json:",omitzero"`
	Already bool                `json:",omitempty"`
	Passed  bool                `json:",omitempty"`
}

// Change makes one change of the caller, once for each request id, and returns the item that fn returns.
// A repeated call gets the same; if the item has been removed since, it lacks the PartFields. flag is the
// Flag that fn has set. Errors: those of fn, of idempotency.Request and of directory.Directory.
func (t *Table[T]) Change(ctx context.Context, in Request, fn func(tx *Tx) (T, error)) (item T, flag bool, err error) {
	dropUnknown(in.ProtoReflect())
	var k kept
	seen, err := t.Once(ctx, t.Store.Write, in, &k, func(tx *Tx) (err error) {
		if item, err = fn(tx); err != nil {
			return err
		}
		k = kept{ID: t.Key(item), Revision: item.GetRevision(), Flag: tx.Flag}
		k.Item, err = proto.Marshal(t.head(item))
		return err
	})
	if err == nil && seen {
		err = t.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			item, flag, err = t.recall(snap, k)
			return err
		})
		return item, flag, err
	}
	return item, k.Flag, err
}

// recall returns what a repeated call gets. Of answers that an earlier version of the broker has kept, it
// returns the item as it is now.
func (t *Table[T]) recall(q store.Querier, k kept) (item T, flag bool, err error) {
	if k.Item == nil {
		key := max(k.ID, k.Key, k.Vote.Key)
		item, _, found, err := t.ByKey(q, key)
		if err == nil && !found {
			err = Missing(t.Noun, ID(t.Letter, key))
		}
		return item, k.Already || k.Passed, err
	}
	r := row[T]{key: k.ID, item: newItem[T]()}
	if err := proto.Unmarshal(k.Item, r.item); err != nil {
		return item, false, fmt.Errorf("read the kept %s %s: %w", t.Noun, ID(t.Letter, k.ID), err)
	}
	_, err = t.merge(q, r, k.Revision)
	return r.item, k.Flag, err
}

// callName returns the name of the RPC that a message is the request of.
func callName(in proto.Message) string {
	return strings.TrimSuffix(string(in.ProtoReflect().Descriptor().Name()), "Request")
}
