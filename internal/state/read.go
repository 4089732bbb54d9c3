package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	pageBytes     = 3 << 20 // of one answer, below the 4 MiB that a client takes
	overheadBytes = 256     // of an entry beside its texts
)

// A Found is a key as it was asked for.
type Found struct {
	Entry    Entry
	Sections []Section // of a document
	Revision int64     // what the answer is true at
}

// Get returns a key as it is, or for at > 0 as it was at that revision, and of a document its entries after a number, about 3 MiB
// of them. fault.NotFound if it is not there, or was not; fault.OutOfRange (STATE_COMPACTED) if that version is not
// kept any more; fault.Invalid for a revision in the future.
func (k *Keys) Get(ctx context.Context, c identity.Caller, n Name, at int64, afterEntry int) (Found, error) {
	var f Found
	err := k.store.Read(ctx, func(snap *store.Snapshot) error {
		f = Found{Revision: snap.Revision()}
		session, err := k.dir.SessionID(snap, c.Session)
		if err != nil {
			return err
		}
		r, err := find(snap, scopeOf(session, n.Namespace), n)
		if err != nil {
			return err
		}
		id, err := k.versionAt(snap, &r, at)
		if err != nil {
			return err
		}
		if f.Entry, err = versionOf(snap, id); err != nil {
			return err
		}
		if f.Entry.Deleted {
			return r.missing()
		}
		if id == r.current {
			if err := r.complete(&f.Entry); err != nil {
				return err
			}
		}
		f.Entry.Appended = nil
		if f.Entry.Type != Document {
			return nil
		}
		f.Sections, err = sections(snap, &r, id, afterEntry)
		return err
	})
	if err != nil {
		return Found{}, fmt.Errorf("get state: %w", err)
	}
	return f, nil
}

// versionAt returns the id of the version of a key that was current at a revision; 0 = the newest.
func (k *Keys) versionAt(snap *store.Snapshot, r *row, at int64) (int64, error) {
	if err := k.store.CheckResume(at); err != nil {
		return 0, err
	}
	switch {
	case at > snap.Revision():
		return 0, future("at_revision", at, snap.Revision())
	case r.id == 0 && at == 0, r.id != 0 && r.lapsed(k.clock.Now()) && (at == 0 || at >= r.revision):
		return 0, r.missing()
	case r.id != 0 && (at == 0 || at >= r.revision):
		return r.current, nil
	}
	var id int64
	err := snap.QueryRow(versionAt, r.id, at).Scan(&id)
	if !errors.Is(err, store.ErrNoRows) {
		return id, err
	}
	oldest := int64(1)
	if err := snap.QueryRow(oldestVersion, r.id).Scan(&oldest); err != nil && !errors.Is(err, store.ErrNoRows) {
		return 0, err
	}
	floor, err := floorOf(snap, r.scope)
	if err != nil {
		return 0, err
	}
	if oldest > 1 || r.id == 0 && at < floor {
		return 0, compacted(at, floor)
	}
	return 0, r.missing()
}

func versionOf(q store.Querier, id int64) (Entry, error) {
	rows := q.Query(selectVersion, id)
	defer rows.Close()
	if !rows.Next() {
		return Entry{}, errors.Join(rows.Err(), fmt.Errorf("there is no version %d", id))
	}
	_, e, err := scanVersion(rows)
	return e, err
}

// sections returns the entries after a number of a document as it was at a version, until no more fits.
func sections(q store.Querier, r *row, version int64, after int) ([]Section, error) {
	first := r.first
	if version < first {
		err := q.QueryRow(firstEntry, r.id, version).Scan(&first)
		if errors.Is(err, store.ErrNoRows) {
			return nil, fault.New(fault.OutOfRange, "STATE_COMPACTED", "the document %s was deleted since, and its first entries are not kept any more", r.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	rows := q.Query(selectEntries, r.id, first, version, after)
	defer rows.Close()
	var list []Section
	for bytes := 0; bytes < pageBytes && rows.Next(); {
		var s Section
		if err := rows.Scan(&s.Number, &s.Author, &s.At, &s.Revision, &s.TaskID, &s.Text); err != nil {
			return nil, err
		}
		list = append(list, s)
		bytes += len(s.Text) + overheadBytes
	}
	return list, rows.Err()
}

// A Selection says which keys to list. What is empty does not restrict.
type Selection struct {
	Namespace string // empty = all but Global
	Prefix    string
	Owner     string
	TaskID    string
	Values    bool // read them, too
	From      Name // the first that may be listed
	Limit     int
}

// A Page is a part of a list.
type Page struct {
	Entries  []Entry
	Next     int64 // of a history: the version to go on before
	More     bool
	Revision int64 // what the page is true at
}

// List returns keys in the order of their names.
func (k *Keys) List(ctx context.Context, c identity.Caller, s Selection) (Page, error) {
	var p Page
	low, high := Name{s.Namespace, s.Prefix}, Name{above, ""}
	if s.Namespace != "" {
		high = Name{s.Namespace, s.Prefix + above}
	}
	if s.From != (Name{}) {
		low = s.From
	}
	err := k.store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		session, err := k.dir.SessionID(snap, c.Session)
		if err != nil {
			return err
		}
		query := listKeys
		args := []any{s.Values, scopeOf(session, s.Namespace), low.Namespace, low.Key, high.Namespace, high.Key,
			k.clock.Now(), s.Prefix, s.Prefix, s.Prefix, s.Owner, s.Owner}
		if s.TaskID != "" {
			query, args = listTaskKeys, append(args, s.TaskID)
		}
		rows := snap.Query(query+byName, append(args, s.Limit+1)...)
		defer rows.Close()
		for bytes := 0; rows.Next(); {
			if len(p.Entries) == s.Limit || bytes >= pageBytes {
				p.More = true
				return nil
			}
			var owner string
			var entries int
			var contributors []byte
			_, e, err := scanVersion(rows, &owner, &entries, &contributors)
			if err != nil {
				return err
			}
			e.Owner, e.Entries, e.Appended = owner, entries, nil
			if e.Type == Document {
				if err := json.Unmarshal(contributors, &e.Contributors); err != nil {
					return err
				}
			}
			if size := e.size(); bytes > 0 && bytes+size > pageBytes {
				p.More = true
				return nil
			}
			p.Entries = append(p.Entries, e)
			bytes += e.size()
		}
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("list state: %w", err)
	}
	return p, nil
}

// above is greater than every key: it has more of the last character of Unicode than a key can have.
var above = strings.Repeat("\U0010FFFF", maxKey/utf8.UTFMax+1)

// History returns the versions of a key that are kept, newest first, those before a position; 0 = from the newest. fault.NotFound if there are none.
func (k *Keys) History(ctx context.Context, c identity.Caller, n Name, before int64, limit int) (Page, error) {
	var p Page
	if before == 0 {
		before = math.MaxInt64
	}
	err := k.store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		session, err := k.dir.SessionID(snap, c.Session)
		if err != nil {
			return err
		}
		r, err := find(snap, scopeOf(session, n.Namespace), n)
		if err != nil {
			return err
		}
		if r.id == 0 {
			return r.missing()
		}
		rows := snap.Query(selectHistory, r.id, before, limit+1)
		defer rows.Close()
		for bytes := 0; rows.Next(); {
			id, e, err := scanVersion(rows)
			if err != nil {
				return err
			}
			if bytes += e.size(); len(p.Entries) == limit || len(p.Entries) > 0 && bytes > pageBytes {
				p.More = true
				return nil
			}
			p.Entries, p.Next = append(p.Entries, e), id
		}
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("list history of state: %w", err)
	}
	return p, nil
}

// Count counts the keys of a session that are there, without those of the namespace global.
func (k *Keys) Count(q store.Querier, session int64) (int64, error) {
	var n int64
	err := q.QueryRow(countKeys, session).Scan(&n)
	return n, err
}

// floorOf returns the revision up to which versions of a scope may be missing.
func floorOf(q store.Querier, scope int64) (int64, error) {
	var floor int64
	err := q.QueryRow(selectFloor, scope).Scan(&floor)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return floor, err
}

func future(field string, at, newest int64) error {
	return fault.Field(field, "%d lies in the future: the newest revision is %d", at, newest)
}

func compacted(at, floor int64) error {
	return fault.New(fault.OutOfRange, "STATE_COMPACTED",
		"not all changes after revision %d are kept any more, only those after %d: list the keys, and watch after the revision of that", at, floor).
		With("oldest", strconv.FormatInt(floor, 10))
}
