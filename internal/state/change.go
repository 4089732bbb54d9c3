package state

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Compare is a condition: the key has this revision; 0 = it is not there.
type Compare struct {
	Name
	Revision int64
}

// A Change is what is to become of one key.
type Change struct {
	Name
	Compare *int64 // the revision that it must have; nil = any
	Delete  bool
	Value   Value
	TTL     time.Duration // 0 = for ever
	Own     *bool         // whether it is the author's from now on; nil = as it is
	Task    *string       // the task that it belongs to from now on; nil = as it is
}

// An Outcome is what has become of changes.
type Outcome struct {
	Entries  []Entry // in the order of the changes, without values; deletions of what was not there have no version
	Revision int64   // of them all; 0 if nothing has changed
}

// Change makes changes, of different keys, all or none of them, if all conditions hold. kind is the type of their event.
//
// fault.Conflict (STATE_CHANGED) if a condition does not hold; fault.Denied (NOT_THE_OWNER) for what somebody else owns;
// fault.Precondition (IS_A_DOCUMENT) for a value in place of a document, and as Directory has it; fault.Exhausted if the disk is full.
func (k *Keys) Change(ctx context.Context, c identity.Caller, req idempotency.Request, kind string, compares []Compare, changes []Change) (Outcome, error) {
	var out Outcome
	err := k.checkDisk(changes)
	if err == nil {
		err = k.store.Write(ctx, func(tx *store.Tx) error {
			_, err := req.Do(tx, &out, func() (err error) {
				out = Outcome{}
				a, err := k.author(tx, c)
				if err != nil {
					return err
				}
				t := turn{Keys: k, tx: tx, author: a, kind: kind}
				out, err = t.run(compares, changes)
				return err
			})
			return err
		})
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("change state: %w", err)
	}
	return out, nil
}

// checkDisk returns an error if the disk is too full and a change is not a deletion.
func (k *Keys) checkDisk(changes []Change) error {
	if k.disk == nil {
		return nil
	}
	for i := range changes {
		if !changes[i].Delete {
			return k.disk.Check()
		}
	}
	return nil
}

// author returns who is calling. In a closed session nobody is.
func (k *Keys) author(tx *store.Tx, c identity.Caller) (Author, error) {
	session, err := k.dir.SessionID(tx, c.Session)
	if err != nil {
		return Author{}, err
	}
	agent, err := k.dir.Acting(tx, session, c)
	return Author{Session: session, Name: c.Name(), Role: agent.Role, Agent: c.Agent != "", All: c.Access == identity.Operator}, err
}

// A turn is one transaction of changes.
type turn struct {
	*Keys
	tx     *store.Tx
	author Author
	kind   string
}

// run looks at everything first, and then changes.
func (t *turn) run(compares []Compare, changes []Change) (Outcome, error) {
	for i := range compares {
		r, err := find(t.tx, scopeOf(t.author.Session, compares[i].Namespace), compares[i].Name)
		if err == nil {
			err = t.compare(&r, &compares[i].Revision)
		}
		if err != nil {
			return Outcome{}, err
		}
	}
	rows := make([]row, len(changes))
	some := false
	for i := range changes {
		var err error
		if rows[i], err = find(t.tx, scopeOf(t.author.Session, changes[i].Namespace), changes[i].Name); err == nil {
			err = t.admit(&rows[i], &changes[i])
		}
		if err != nil {
			return Outcome{}, err
		}
		some = some || !changes[i].Delete || rows[i].present(t.tx.Now()) != 0
	}
	for i := range rows {
		if err := t.lapse(&rows[i]); err != nil {
			return Outcome{}, err
		}
	}
	out := Outcome{Entries: make([]Entry, len(changes))}
	if !some {
		for i := range out.Entries {
			out.Entries[i] = Entry{Name: changes[i].Name, Deleted: true}
		}
		return out, nil
	}
	var err error
	if out.Revision, err = t.append(rows, changes); err != nil {
		return Outcome{}, err
	}
	id := out.Revision
	for i := range changes {
		r, ch := &rows[i], &changes[i]
		if ch.Delete && r.present(t.tx.Now()) == 0 {
			out.Entries[i] = Entry{Name: ch.Name, Deleted: true}
			continue
		}
		if id == 0 {
			id = t.tx.NextRevision()
		}
		t.alter(r, ch, id)
		out.Entries[i] = t.put(r, id, out.Revision, ch.Value.Text, 0)
		id = 0
	}
	return out, nil
}

// compare refuses a key that has another revision.
func (t *turn) compare(r *row, want *int64) error {
	if want == nil {
		return nil
	}
	has := r.present(t.tx.Now())
	if has == *want {
		return nil
	}
	says := fmt.Sprintf("has revision %d, not %d", has, *want)
	switch {
	case has == 0:
		says = "is not there (revision 0)"
	case *want == 0:
		says = fmt.Sprintf("is there already, at revision %d", has)
	}
	return fault.New(fault.Conflict, "STATE_CHANGED", "%s %s: read it again, and decide again", r.Name, says).
		With("revision", strconv.FormatInt(has, 10)).With("namespace", r.Namespace).With("key", r.Key)
}

// admit refuses a change that the author may not make, or of which the condition does not hold.
func (t *turn) admit(r *row, ch *Change) error {
	there := r.present(t.tx.Now()) != 0
	if there && r.owner != "" && !t.author.All && (r.owner != t.author.Name || r.ownerSession != t.author.Session) {
		return fault.New(fault.Denied, "NOT_THE_OWNER",
			"%s belongs to the agent %s: until it deregisters, only it and operators may write or delete it", r.Name, r.owner).With("owner", r.owner)
	}
	if err := t.compare(r, ch.Compare); err != nil {
		return err
	}
	switch {
	case ch.Delete:
		return nil
	case there && r.kind == Document:
		return fault.New(fault.Precondition, "IS_A_DOCUMENT", "%s is a document: append to it, or delete it first", r.Name)
	case ch.Own != nil && *ch.Own && !t.author.Agent:
		return fault.Field("own", "only an agent can own a key, and this call names none")
	}
	return nil
}

// alter makes the row what it is after a change.
func (t *turn) alter(r *row, ch *Change, id int64) {
	if ch.Delete {
		r.bury()
		return
	}
	r.open(id, t.tx.Now())
	r.kind, r.expiresAt = ch.Value.Type, time.Time{}
	if ch.TTL > 0 {
		r.expiresAt = t.tx.Now().Add(ch.TTL)
		t.expect(t.tx, r.expiresAt)
	}
	if ch.Own != nil {
		r.owner, r.ownerSession = "", 0
		if *ch.Own {
			r.owner, r.ownerSession = t.author.Name, t.author.Session
		}
	}
	if ch.Task != nil {
		r.task = *ch.Task
	}
}

// put stores the next version of a key, as the row has it now, under an id that is its own.
func (t *turn) put(r *row, id, revision int64, value string, number int) Entry {
	e := Entry{
		Name: r.Name, Type: r.kind, Version: r.version + 1, Revision: revision, Author: t.author.Name, ChangedAt: t.tx.Now(),
		CreatedAt: r.createdAt, ExpiresAt: r.expiresAt, Owner: r.owner, TaskID: r.task, Deleted: r.deleted, Entries: r.entries,
	}
	key := r.id
	if key == 0 {
		key = id
	}
	t.tx.Exec(insertVersion, id, r.scope, key, e.Version, revision, int(r.kind), len(value), e.Author,
		e.ChangedAt, e.CreatedAt, e.ExpiresAt, textOrNull(e.Owner), e.Deleted, number, textOrNull(e.TaskID), value)
	r.version, r.revision, r.current = e.Version, revision, id
	t.save(r, id)
	scope := r.scope
	t.tx.OnCommit(func() {
		t.hub.wake(scope)
		t.pruner.added(scope, len(value))
	})
	return e
}

// save stores the row of a key, under the given id if it is new.
func (t *turn) save(r *row, id int64) {
	switch {
	case r.id == 0:
		r.id = id
		t.tx.Exec(insertKey, r.scope, r.Namespace, r.Key, r.id, int(r.kind), r.version, r.revision, r.current, r.first, r.createdAt,
			r.expiresAt, textOrNull(r.owner), numberOrNull(r.ownerSession), r.deleted, r.entries, r.bytes, textOrNull(r.contributors), textOrNull(r.task))
	case r.plain && r.isPlain():
		t.tx.Exec(updateValue, int(r.kind), r.version, r.revision, r.current, r.id)
	default:
		t.tx.Exec(updateKey, int(r.kind), r.version, r.revision, r.current, r.first, r.createdAt,
			r.expiresAt, textOrNull(r.owner), numberOrNull(r.ownerSession), r.deleted, r.entries, r.bytes, textOrNull(r.contributors), textOrNull(r.task), r.id)
	}
	r.plain = r.isPlain()
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func numberOrNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}
