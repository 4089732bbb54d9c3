package work

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

// A Table keeps the work of one kind, of all sessions. Its methods may be called concurrently, those
// with a Tx by the function of the writer that has it.
//
//	items:      one row per piece of work, with the message of the API and the columns of Columns
//	item_parts: the parts that change alone, or are too large for lists
type Table[T Message] struct {
	*Desk
	reader[T]
	Backlog *Backlog // of the kind's chores

	hub      *Hub[int64] // calls that wait for a change of an item
	calendar *Calendar   // nil = items have no deadlines
}

// NewTable returns the table of a kind. It does nothing by itself before Start.
func NewTable[T Message](d *Desk, k Kind[T]) *Table[T] {
	log := d.Log.Named(k.Noun)
	t := &Table[T]{Desk: d, reader: reader[T]{k, d.Log}, hub: NewHub[int64](d.Clock)}
	t.Backlog = NewBacklog(d.Store, k.Noun, d.Clock, log, k.Chore)
	if k.Due != nil {
		t.calendar = NewItemCalendar(d.Store, d.Clock, log, t.deadlines, t.due)
	}
	return t
}

// Start begins to make the changes that are due, and resumes the chores. Errors: those of the store.
func (t *Table[T]) Start(ctx context.Context) error {
	if t.calendar != nil {
		t.calendar.Start()
	}
	return t.Backlog.Start(ctx)
}

// Stop ends what Start has begun. It may be called more than once, and without Start.
func (t *Table[T]) Stop() {
	if t.calendar != nil {
		t.calendar.Stop()
	}
	t.Backlog.Stop()
}

// Drain ends the calls that wait. It may be called more than once.
func (t *Table[T]) Drain() { t.hub.Drain() }

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (t *Table[T]) AwaitClosed(ctx context.Context, session int64) error {
	return t.Backlog.FinishSession(ctx, session)
}

// A reader reads the rows of one kind and their parts.
type reader[T Message] struct {
	Kind[T]
	log *zap.Logger
}

// A row is one row of the table.
type row[T Message] struct {
	key, session int64
	item         T
	text         []byte // the encoded item
}

// ErrDamaged is the error for an item that cannot be decoded.
var ErrDamaged = errors.New("the item is damaged")

// scan reads a row of a query of id, session and item. If the item is damaged, the row has its key.
func (t *reader[T]) scan(rows interface{ Scan(to ...any) error }, more ...any) (r row[T], err error) {
	if err := rows.Scan(append([]any{&r.key, &r.session, &r.text}, more...)...); err != nil {
		return r, err
	}
	r.item = newItem[T]()
	err = proto.Unmarshal(r.text, r.item)
	if err == nil && r.item.GetId() != ID(t.Letter, r.key) {
		err = fmt.Errorf("it has the id %q", r.item.GetId())
	}
	if err != nil {
		return r, fmt.Errorf("%s %s: %w: %w", t.Noun, ID(t.Letter, r.key), ErrDamaged, err)
	}
	return r, nil
}

// rows reads all rows of a query. It leaves out damaged ones. read is how many rows there are, and last the
// number of the item in the last one.
func (t *reader[T]) rows(rows *store.Rows) (list []row[T], read int, last int64, err error) {
	defer rows.Close()
	for ; rows.Next(); read++ {
		r, err := t.scan(rows)
		last = r.key
		switch {
		case t.leaveOut(err):
		case err != nil:
			return nil, 0, 0, err
		default:
			list = append(list, r)
		}
	}
	return list, read, last, rows.Close()
}

// leaveOut reports whether an error is that of a damaged item, and logs it: the item is left out.
func (t *reader[T]) leaveOut(err error) bool {
	damaged := errors.Is(err, ErrDamaged)
	if damaged {
		t.log.Error("a damaged item is left out and stays as it is", zap.Error(err))
	}
	return damaged
}

// items reads the items of a query, without their parts.
func (t *reader[T]) items(rows *store.Rows) ([]T, error) {
	list, _, _, err := t.rows(rows)
	items := make([]T, len(list))
	for i := range list {
		items[i] = list[i].item
	}
	return items, err
}

// Key returns the number in the id of an item.
func (t *reader[T]) Key(item T) int64 {
	key, err := ParseID(t.Noun, t.Letter, item.GetId())
	if err != nil {
		panic(fmt.Sprintf("a %s has the id %q", t.Noun, item.GetId())) // which the feature has made
	}
	return key
}

// Get returns an item of a session by the id that a caller gives, with its PartFields. Errors:
// fault.NotFound.
func (t *reader[T]) Get(q store.Querier, session int64, id string) (item T, err error) {
	if item, err = t.Head(q, session, id); err == nil {
		err = t.Fill(q, item)
	}
	return item, err
}

// Head is Get without the PartFields.
func (t *reader[T]) Head(q store.Querier, session int64, id string) (item T, err error) {
	key, err := ParseID(t.Noun, t.Letter, id)
	if err != nil {
		return item, err
	}
	r, err := t.scan(q.QueryRow(selectItem, key, t.Number))
	if errors.Is(err, store.ErrNoRows) || err == nil && r.session != session {
		return item, Missing(t.Noun, id)
	}
	if err != nil {
		return item, fmt.Errorf("look up %s %s: %w", t.Noun, id, err)
	}
	return r.item, nil
}

// ByKey returns an item of any session by its number, with its PartFields.
func (t *reader[T]) ByKey(q store.Querier, key int64) (item T, session int64, found bool, err error) {
	r, err := t.scan(q.QueryRow(selectItem, key, t.Number))
	if errors.Is(err, store.ErrNoRows) {
		return item, 0, false, nil
	}
	if err == nil {
		_, err = t.merge(q, r, math.MaxInt64)
	}
	return r.item, r.session, err == nil, err
}

// merge adds the PartFields as they were at a revision to an item, and returns how many bytes they have.
func (t *reader[T]) merge(q store.Querier, r row[T], revision int64) (size int, err error) {
	for _, field := range t.PartFields {
		parts, err := t.Parts(q, r.key, string(field), "", MostRead)
		if err != nil {
			return size, err
		}
		for _, p := range parts {
			if p.Revision > revision {
				continue
			}
			size += len(p.Body)
			if err := t.Merge(r.item, p); err != nil {
				return size, err
			}
		}
	}
	if t.Join != nil && size > 0 {
		t.Join(r.item)
	}
	return size, nil
}

// Await returns an item of the caller's session, and waits up to wait until a condition holds for it.
// Errors: fault.NotFound, and as directory.Directory has them.
func (t *Table[T]) Await(ctx context.Context, id string, wait time.Duration, until func(T) bool) (item T, err error) {
	err = t.AwaitIn(ctx, id, wait, func(_ *store.Snapshot, found T) (bool, error) {
		item = found
		return until(item), nil
	})
	return item, err
}

// AwaitIn is Await with a function that reads more in the snapshot of the item.
func (t *Table[T]) AwaitIn(
	ctx context.Context, id string, wait time.Duration, until func(snap *store.Snapshot, item T) (bool, error),
) error {
	key, err := ParseID(t.Noun, t.Letter, id)
	if err != nil {
		return err
	}
	return t.hub.Await(ctx, wait, []int64{key}, func() (done bool, err error) {
		err = t.Read(ctx, func(snap *store.Snapshot, s directory.Session) error {
			item, err := t.Get(snap, s.ID, id)
			if err == nil {
				done, err = until(snap, item)
			}
			return err
		})
		return done, err
	})
}

// Fill adds the PartFields to an item that lacks them.
func (t *reader[T]) Fill(q store.Querier, item T) error {
	_, err := t.merge(q, row[T]{key: t.Key(item), item: item}, math.MaxInt64)
	return err
}

// Add stores a new item without its PartFields.
func (t *Table[T]) Add(tx *Tx, item T) error {
	c := t.Columns(item)
	text, err := proto.Marshal(t.head(item))
	if err != nil {
		return fmt.Errorf("store %s %s: %w", t.Noun, item.GetId(), err)
	}
	tx.Exec(insertItem, t.Key(item), tx.Session.ID, t.Number, int32(c.State), c.Opener, orNull(c.Agent), orNull(c.Role),
		orNull(c.Task), orNull(c.Scope), c.Due, c.Finished, item.GetRevision(), text)
	t.expect(tx, c.Due)
	return nil
}

// Put stores an item that has changed, without its PartFields, and wakes the calls that wait for it.
func (t *Table[T]) Put(tx *Tx, item T) error {
	tx.OnCommit(func() { t.hub.Wake(t.Key(item)) })
	return t.Update(tx, item)
}

// Update is Put for a change for which no call waits.
func (t *Table[T]) Update(tx *Tx, item T) error {
	c := t.Columns(item)
	text, err := proto.Marshal(t.head(item))
	if err != nil {
		return fmt.Errorf("store %s %s: %w", t.Noun, item.GetId(), err)
	}
	tx.Exec(updateItem, int32(c.State), orNull(c.Agent), orNull(c.Role), orNull(c.Task), orNull(c.Scope), c.Due,
		c.Finished, item.GetRevision(), text, t.Key(item))
	t.expect(tx, c.Due)
	return nil
}

func (t *Table[T]) expect(tx *Tx, at time.Time) {
	if t.calendar != nil {
		t.calendar.Expect(tx.Tx, at)
	}
}

// orNull returns what a column has for an empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// PutPart stores a part of an item, with the revision of the item.
func (t *Table[T]) PutPart(tx *Tx, item T, name string, body proto.Message) error {
	text, err := proto.Marshal(body)
	if err != nil {
		return fmt.Errorf("store the part %s of %s %s: %w", name, t.Noun, item.GetId(), err)
	}
	tx.Exec(upsertPart, t.Key(item), name, item.GetRevision(), text)
	return nil
}

// DropPart removes a part of an item, if it has that part.
func (t *Table[T]) DropPart(tx *Tx, item T, name string) { tx.Exec(deletePart, t.Key(item), name) }

// Merge adds the fields of a part to an item. The error is ErrDamaged.
func (t *reader[T]) Merge(item T, p Part) error {
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(p.Body, item); err != nil {
		return fmt.Errorf("%s %s, part %s: %w: %w", t.Noun, item.GetId(), p.Name, ErrDamaged, err)
	}
	return nil
}

// Part returns a part of an item.
func (t *reader[T]) Part(q store.Querier, key int64, name string) (p Part, found bool, err error) {
	err = q.QueryRow(selectPart, key, name).Scan(&p.Name, &p.Revision, &p.Body)
	if errors.Is(err, store.ErrNoRows) {
		return p, false, nil
	}
	return p, err == nil, err
}

// LastPart returns the part that Parts would return last.
func (t *reader[T]) LastPart(q store.Querier, key int64, field string) (p Part, found bool, err error) {
	err = q.QueryRow(selectLastPart, key, field, field+".").Scan(&p.Name, &p.Revision, &p.Body)
	if errors.Is(err, store.ErrNoRows) {
		return p, false, nil
	}
	return p, err == nil, err
}

// Parts returns the parts of an item whose name is a field, or begins with it and a dash, after a name, in
// the order of their names, at most limit.
func (t *reader[T]) Parts(q store.Querier, key int64, field, after string, limit int) ([]Part, error) {
	rows := q.Query(selectParts, key, max(field, after), field+".", after, limit) // '.' follows '-'
	return store.Collect(rows, func(r *store.Rows) (p Part, err error) { return p, r.Scan(&p.Name, &p.Revision, &p.Body) })
}

// allParts returns all parts of an item.
func (t *reader[T]) allParts(q store.Querier, key int64) ([]Part, error) {
	return store.Collect(q.Query(selectAllParts, key), func(r *store.Rows) (p Part, err error) {
		return p, r.Scan(&p.Name, &p.Revision, &p.Body)
	})
}

// deadlines returns the items that are due next.
func (t *Table[T]) deadlines(q store.Querier, limit int) ([]Entry[int64], error) {
	return store.Collect(q.Query(selectItemsDue, t.Number, limit), func(r *store.Rows) (e Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// due makes the change of an item if its time has come.
func (t *Table[T]) due(tx *store.Tx, key int64) error {
	item, session, found, err := t.ByKey(tx, key)
	if err != nil || !found {
		return err
	}
	if at := t.Columns(item).Due; at.IsZero() || at.After(tx.Now()) {
		return nil
	}
	u, err := t.BeginBroker(tx, session)
	if err == nil {
		err = t.Due(u, item)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", t.Noun, item.GetId(), err)
	}
	return nil
}
