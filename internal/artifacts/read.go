package artifacts

import (
	"context"
	"fmt"
	"math"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// lastRune is above all text that begins with a prefix, when it is added to the prefix.
const lastRune = "\U0010FFFF"

// A Page is a page of versions.
type Page struct {
	Versions []Version
	More     bool  // there are further versions
	Revision int64 // what the page is true at
}

// A Found is an artifact as Get returns it.
type Found struct {
	Version Version
	Page    Page // of its versions, newest first
}

// Get returns a version, and a page of the versions of its artifact below a number. Errors:
// fault.NotFound.
func (r *Repository) Get(ctx context.Context, c identity.Caller, name string, number, below int64, limit int) (Found, error) {
	var f Found
	err := r.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := r.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		if f.Version, err = find(snap, s.ID, name, number); err != nil {
			return err
		}
		f.Page, err = pageOf(snap, limit, listAll, s.ID, name, name, below, name+"\x00", "", "", "", "")
		return err
	})
	if err != nil {
		return Found{}, fmt.Errorf("get artifact: %w", err)
	}
	return f, nil
}

// A Position is a place in a list of versions: versions of later names, and of Name those below
// Version.
type Position struct {
	Name    string `json:"name"`
	Version int64  `json:"version"`
}

// A Selection says which versions to list. Empty fields do not restrict.
type Selection struct {
	Prefix string // of names
	Agent  string
	TaskID string
	SHA256 string
	All    bool      // all versions, otherwise only the newest of each name
	After  *Position // nil = from the beginning
	Limit  int
}

// A Listed is a page of a list, with the sums of the session.
type Listed struct {
	Page
	Stored int64 // bytes of all contents of the session
	Limit  int64 // its limit; 0 = none
}

// List lists versions by name, and of each name the newest first.
func (r *Repository) List(ctx context.Context, c identity.Caller, sel Selection) (Listed, error) {
	from := Position{sel.Prefix, math.MaxInt64}
	if sel.After != nil {
		from = *sel.After
	}
	query := listNewest
	if sel.All {
		query = listAll
	}
	var l Listed
	err := r.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := r.Directory.Session(snap, c.Session)
		if err != nil {
			return err
		}
		u, err := usageOf(snap, s.ID)
		if err != nil {
			return err
		}
		l.Stored, l.Limit = u.bytes, s.Settings.GetArtifactTotalLimit()
		args := []any{s.ID, from.Name, from.Name, from.Version, sel.Prefix + lastRune, sel.Agent, sel.Agent, sel.TaskID, sel.TaskID}
		if sel.SHA256 != "" {
			query, args = listContent, append(args, sel.SHA256)
		}
		l.Page, err = pageOf(snap, sel.Limit, query, args...)
		return err
	})
	if err != nil {
		return Listed{}, fmt.Errorf("list artifacts: %w", err)
	}
	return l, nil
}

// OfTask returns the newest versions that name a task, at most limit.
func (r *Repository) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	rows := q.Query(selectOfTask, session, task, limit)
	defer rows.Close()
	var items []work.Item
	for rows.Next() {
		v, err := scanVersion(rows)
		if err != nil {
			return nil, err
		}
		items = append(items, work.Item{
			Kind: "artifact", ID: fmt.Sprintf("%s@%d", v.Name, v.Number), Revision: v.Revision, Title: v.Description,
		})
	}
	return items, rows.Err()
}

// pageOf reads a page; its query takes the limit as its last argument.
func pageOf(snap *store.Snapshot, limit int, query string, args ...any) (Page, error) {
	p := Page{Revision: snap.Revision()}
	rows := snap.Query(query, append(args, limit+1)...)
	defer rows.Close()
	for rows.Next() {
		if len(p.Versions) == limit {
			p.More = true
			break
		}
		v, err := scanVersion(rows)
		if err != nil {
			return p, err
		}
		p.Versions = append(p.Versions, v)
	}
	return p, rows.Close()
}
