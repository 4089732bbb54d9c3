package work

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/directory"
	"brokerd/internal/page"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// A Filter says which items to list; an empty field does not restrict.
type Filter[T Message] struct {
	States []protoreflect.EnumNumber
	Opener string
	Agent  string // that owes the next step
	Role   string
	Task   string
	Scope  string
	Part   string       // that an item has
	Match  func(T) bool // what the columns do not say; nil = every item matches

	Unfinished bool // alone; List sets it if States has no final state
	Whole      bool // with the PartFields
	// Complete adds what the row lacks to each item that is returned, in place of all PartFields; nil =
	// nothing.
	Complete func(q store.Querier, item T) error
}

// args returns the arguments of itemFilter.
func (f *Filter[T]) args() []any {
	states := 0
	for _, s := range f.States {
		states |= 1 << s
	}
	return []any{
		states, states, f.Opener, f.Opener, f.Agent, f.Agent, f.Role, f.Role, f.Task, f.Task, f.Scope, f.Scope, f.Part, f.Part,
	}
}

// A ListRequest asks for a page of a list.
type ListRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
	GetOldestFirst() bool
}

// A List is a page of a list.
type List[T Message] struct {
	Items    []T
	Next     string // the token of the next page; empty = there is none
	Revision int64  // at which it is true
}

// mostOpen is more than a feature permits of unfinished items in a session.
const mostOpen = MostRead

// pageBytes is about how many bytes the items of a page have at most: a client accepts 4 MiB.
const pageBytes = 2 << 20

// List returns a page of the caller's session: at most as many items as the request permits, about
// pageBytes, of MostRead that it reads. filter makes the filter in the snapshot. Errors: fault.Invalid for a
// page token of another list; those of filter, and as directory.Directory has them.
func (t *Table[T]) List(
	ctx context.Context, in ListRequest, filter func(q store.Querier, s directory.Session) (Filter[T], error),
) (l List[T], err error) {
	name := callName(in)
	var after int64
	if err := page.Parse(name, in.GetPageToken(), &after); err != nil {
		return l, err
	}
	if err := t.Store.CheckResume(after); err != nil {
		return l, err
	}
	size := int(in.GetPageSize())
	if size == 0 {
		size = validate.DefaultPage
	}
	var next int64
	err = t.Read(ctx, func(snap *store.Snapshot, s directory.Session) error {
		l, next = List[T]{Revision: snap.Revision()}, 0
		f, err := filter(snap, s)
		if err == nil {
			f.Unfinished = f.Unfinished || t.unfinished(f.States)
			l.Items, next, err = t.page(snap, s.ID, &f, in.GetOldestFirst(), after, size)
		}
		return err
	})
	if err != nil {
		return l, fmt.Errorf("list %ss: %w", t.Noun, err)
	}
	if next != 0 {
		l.Next = page.Token(name, next)
	}
	return l, nil
}

// unfinished reports whether items in these states are unfinished.
func (t *Table[T]) unfinished(states []protoreflect.EnumNumber) bool {
	final := func(s protoreflect.EnumNumber) bool { return slices.Contains(t.Final, s) }
	return len(states) > 0 && !slices.ContainsFunc(states, final)
}

// page reads up to size items after a number. next is the number after which the next page begins; 0 =
// there is none.
func (t *Table[T]) page(
	q store.Querier, session int64, f *Filter[T], oldestFirst bool, after int64, size int,
) (items []T, next int64, err error) {
	query, edgeQuery, edge := listNewest, edgeNewest, int64(0)
	var column []any // the value of the column by whose index the statement goes
	switch {
	case f.Unfinished && oldestFirst: // a limit of the feature bounds the unfinished ones
		query, edgeQuery, edge = selectOpen, "", math.MaxInt64
	case oldestFirst:
		query, edgeQuery, edge = listOldest, edgeOldest, math.MaxInt64
	case f.Unfinished:
		query, edgeQuery = listNewestOpen, ""
	case f.Scope != "":
		query, edgeQuery, column = listNewestOfScope, edgeNewestOfScope, []any{f.Scope}
	case f.Task != "":
		query, edgeQuery, column = listNewestOfTask, edgeNewestOfTask, []any{f.Task}
	}
	if !oldestFirst && after == 0 {
		after = math.MaxInt64
	}
	if edgeQuery != "" {
		args := slices.Concat([]any{session, t.Number, after}, column, []any{MostRead - 1})
		err := q.QueryRow(edgeQuery, args...).Scan(&edge)
		if err == nil {
			next = edge
		} else if !errors.Is(err, store.ErrNoRows) {
			return nil, 0, err
		}
	}
	args := slices.Concat([]any{session, t.Number, after, edge}, f.args(), column)
	if query == selectOpen {
		args = append(args, mostOpen)
	}
	rows := q.Query(query, args...)
	defer rows.Close()
	last := int64(0)
	for bytes := 0; rows.Next(); {
		r, err := t.scan(rows)
		if t.leaveOut(err) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		if f.Match != nil && !f.Match(r.item) {
			continue
		}
		if len(items) == size || bytes > pageBytes {
			return items, last, nil
		}
		if ok, err := t.take(q, f, r.item); err != nil {
			return nil, 0, err
		} else if !ok {
			continue
		}
		bytes += proto.Size(r.item)
		items, last = append(items, r.item), r.key
	}
	return items, next, rows.Close()
}

// Open returns the unfinished items of a session that match a filter, the oldest first, at most limit. They
// lack their PartFields, but for what the filter asks for. It leaves out damaged ones.
func (t *Table[T]) Open(q store.Querier, session int64, f Filter[T], limit int) (items []T, err error) {
	page := limit
	if f.Match != nil {
		page = MostPaged
	}
	for after := int64(0); limit > 0; {
		list, read, last, err := t.open(q, session, &f, after, math.MaxInt64, page)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if ok, err := t.take(q, &f, r.item); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
			if items = append(items, r.item); len(items) == limit {
				return items, nil
			}
		}
		if after = last; read < page {
			break
		}
	}
	return items, nil
}

// take reports whether an item matches a filter, and adds what the filter asks for beside the row. It leaves
// out damaged items and logs them.
func (t *Table[T]) take(q store.Querier, f *Filter[T], item T) (bool, error) {
	if f.Match != nil && !f.Match(item) {
		return false, nil
	}
	var err error
	switch {
	case f.Whole:
		err = t.Fill(q, item)
	case f.Complete != nil:
		err = f.Complete(q, item)
	}
	if t.leaveOut(err) {
		return false, nil
	}
	return err == nil, err
}

// open reads the unfinished items after a number up to another that match the columns of a filter, at most
// limit. The results are those of rows.
func (t *Table[T]) open(
	q store.Querier, session int64, f *Filter[T], after, newest int64, limit int,
) (list []row[T], read int, last int64, err error) {
	query, args := selectOpen, slices.Concat([]any{session, t.Number, after, newest}, f.args())
	switch { // a statement that goes by the index of the column
	case f.Scope != "":
		query, args = selectOpenOfScope, append(args, f.Scope)
	case f.Task != "":
		query, args = selectOpenOfTask, append(args, f.Task)
	}
	return t.rows(q.Query(query, append(args, limit)...))
}

// Owed returns the unfinished items of which an agent, or one of its role, owes the next step, the
// oldest first, at most limit, without their PartFields. It leaves out damaged ones.
func (t *Table[T]) Owed(q store.Querier, session int64, a directory.Agent, limit int) ([]T, error) {
	return t.items(q.Query(selectOwed, session, t.Number, a.Name, a.Role, limit))
}

// eachRead is about how many items one call of EachOpen reads.
const eachRead = 1000

// EachOpen makes a change of the unfinished items of a chore's session that match a filter: as
// many as one page may have. It reports whether there may be more. Damaged items stay as they are.
func (t *Table[T]) EachOpen(
	tx *store.Tx, c *Chore, f Filter[T], change func(u *Tx, item T) error,
) (more bool, err error) {
	var u *Tx
	page := NewPage(tx)
	for total := 0; total < eachRead; {
		list, read, last, err := t.open(tx, c.Session, &f, c.After, c.Newest(), MostPaged)
		if err != nil || read == 0 {
			return false, err
		}
		if u == nil {
			if u, err = t.BeginBroker(tx, c.Session); err != nil {
				return false, err
			}
		}
		for _, r := range list {
			if page.Full() {
				return c.Rest(tx)
			}
			c.After = r.key
			if ok, err := t.take(tx, &f, r.item); err != nil {
				return false, err
			} else if !ok {
				continue
			}
			if err := change(u, r.item); err != nil {
				return false, fmt.Errorf("%s %s: %w", t.Noun, r.item.GetId(), err)
			}
		}
		c.After = last
		if total += read; read < MostPaged {
			return false, nil
		}
	}
	return c.Rest(tx)
}

// Counts counts the unfinished items of a session by state.
func (t *Table[T]) Counts(q store.Querier, session int64) (counts []Count, err error) {
	return store.Collect(q.Query(countOpen, session, t.Number), func(r *store.Rows) (n Count, err error) {
		var state int32
		err = r.Scan(&state, &n.N)
		n.Kind, n.State = t.Noun, stateName(newItem[T](), protoreflect.EnumNumber(state))
		return n, err
	})
}

// CountOpen counts the unfinished items of a session.
func (t *Table[T]) CountOpen(q store.Querier, session int64) (n int64, err error) {
	counts, err := t.Counts(q, session)
	for _, c := range counts {
		n += c.N
	}
	return n, err
}

// OfTask returns the items that name a task, the newest first, at most limit.
func (t *Table[T]) OfTask(q store.Querier, session int64, task string, limit int) ([]Item, error) {
	found, err := t.items(q.Query(selectOfTask, session, task, t.Number, limit))
	items := make([]Item, len(found))
	for i, item := range found {
		items[i] = t.Item(item, 0)
	}
	return items, err
}

// Item describes an item in a relation to an agent; 0 = none.
func (t *reader[T]) Item(item T, relation Relation) Item {
	c := t.Columns(item)
	return Item{
		Kind: t.Noun, ID: item.GetId(), Revision: item.GetRevision(), Title: t.Title(item), State: stateName(item, c.State),
		Relation: relation, Due: c.Due,
	}
}
