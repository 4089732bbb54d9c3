package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// Default is the name of the session that always exists.
const Default = "default"

// A Session is a scope.
type Session struct {
	ID          int64
	Name        string
	Description string
	CreatedAt   time.Time
	Settings    Settings
	Revision    int64     // of its last change; 0 for "default" until it is configured
	ClosedAt    time.Time // zero while it is open
}

// A Registry keeps the sessions. It may be used concurrently; hooks are added before it is.
type Registry struct {
	store      *store.Store
	log        *events.Log
	created    []func(*store.Tx, Session) error
	configured []func(tx *store.Tx, before, now Session) error
	closed     []func(*store.Tx, Session) error
	known      store.Cache[string, Session] // what Lookup returns
}

// New returns the registry of a store that was opened with Migrations.
func New(s *store.Store, log *events.Log) *Registry {
	return &Registry{store: s, log: log}
}

// OnCreated adds what is to happen in the same transaction when a session is made.
func (r *Registry) OnCreated(hook func(tx *store.Tx, s Session) error) {
	r.created = append(r.created, hook)
}

// OnClosed adds what is to happen in the same transaction when a session is closed: all that goes on in it ends.
func (r *Registry) OnClosed(hook func(tx *store.Tx, s Session) error) {
	r.closed = append(r.closed, hook)
}

// OnConfigured adds what is to happen in the same transaction when the settings of a session change. An error refuses the change.
func (r *Registry) OnConfigured(hook func(tx *store.Tx, before, now Session) error) {
	r.configured = append(r.configured, hook)
}

// Lookup returns what the rules need to know of a session on the path of every message: ID, Name,
// Settings and ClosedAt. The other fields are empty; Get has them. fault.NotFound if it does not exist; in a transaction that
// may change something fault.Precondition (SESSION_CLOSED) if it is closed.
func (r *Registry) Lookup(q store.Querier, name string) (Session, error) {
	tx, changing := q.(*store.Tx)
	if !changing {
		return lookup(q, name)
	}
	s, err := r.known.Get(tx, name, func() (Session, error) { return lookup(tx, name) })
	if err == nil && !s.ClosedAt.IsZero() {
		err = errClosed(name)
	}
	return s, err
}

// errClosed is the error for a change in a closed session: fault.Precondition, SESSION_CLOSED.
func errClosed(name string) error {
	return fault.New(fault.Precondition, "SESSION_CLOSED",
		"the session %q is closed: it can be read, exported and deleted, and nothing in it changes any more", name)
}

func lookup(q store.Querier, name string) (Session, error) {
	s := Session{Name: name}
	var settings string
	err := q.QueryRow(lookupSession, name).Scan(&s.ID, &settings, &s.ClosedAt)
	if err != nil {
		return Session{}, notFound(q, err, name)
	}
	s.Settings, err = parse(settings)
	return s, err
}

// ID returns the row id of a session, which is never given again. Errors as Lookup.
func (r *Registry) ID(q store.Querier, name string) (int64, error) {
	var id int64
	var closed time.Time
	if err := q.QueryRow(selectID, name).Scan(&id, &closed); err != nil {
		return 0, notFound(q, err, name)
	}
	if _, changing := q.(*store.Tx); changing && !closed.IsZero() {
		return 0, errClosed(name)
	}
	return id, nil
}

// Name returns the name of a session that is open, and an empty one of a session that is closed.
func (r *Registry) Name(q store.Querier, id int64) (string, error) {
	s, err := r.ByID(q, id)
	if err != nil || !s.ClosedAt.IsZero() {
		return "", err
	}
	return s.Name, nil
}

// ByID is Lookup by row id.
func (r *Registry) ByID(q store.Querier, id int64) (Session, error) {
	s := Session{ID: id}
	var settings string
	err := q.QueryRow(lookupSessionByID, id).Scan(&s.Name, &settings, &s.ClosedAt)
	if err == nil {
		s.Settings, err = parse(settings)
	}
	if err != nil {
		return Session{}, fmt.Errorf("look up session %d: %w", id, err)
	}
	return s, nil
}

// Count counts the sessions.
func (r *Registry) Count(q store.Querier) (int, error) {
	var n int
	err := q.QueryRow(countSessions).Scan(&n)
	return n, err
}

// Create makes a session. fault.Exists if the name is taken.
func (r *Registry) Create(ctx context.Context, who identity.Caller, req idempotency.Request, name string, c Change) (Session, error) {
	var made Session
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &made, func() (err error) {
			made, err = r.create(tx, who, name, c)
			return err
		})
		return err
	})
	if err != nil {
		return Session{}, fmt.Errorf("create session: %w", err)
	}
	return made, nil
}

func (r *Registry) create(tx *store.Tx, who identity.Caller, name string, c Change) (Session, error) {
	s := Session{Name: name, CreatedAt: tx.Now(), Settings: defaults()}
	c.apply(&s)
	id := tx.NextRevision() + 1 // so none is given again when a session is deleted; 1 is the default session's
	err := tx.QueryRow(insertSession, id, s.Name, s.Description, s.CreatedAt, s.Settings.text()).Scan(&s.ID)
	if errors.Is(err, store.ErrNoRows) {
		taken := fault.New(fault.Exists, "ALREADY_EXISTS", "the session %q exists already", name)
		taken.Resource, taken.Name = "session", name
		return Session{}, taken
	}
	if err != nil {
		return Session{}, err
	}
	s, err = r.changed(tx, who, s, "session.created", "session "+s.Name+" created")
	if err != nil {
		return Session{}, err
	}
	return s, run(r.created, tx, s)
}

func run(hooks []func(*store.Tx, Session) error, tx *store.Tx, s Session) error {
	for _, hook := range hooks {
		if err := hook(tx, s); err != nil {
			return err
		}
	}
	return nil
}

// Get returns a session, and the revision that the answer is true at. fault.NotFound if it does not exist.
func (r *Registry) Get(ctx context.Context, name string) (Session, int64, error) {
	var s Session
	var revision int64
	err := r.store.Read(ctx, func(snap *store.Snapshot) (err error) {
		revision = snap.Revision()
		s, err = get(snap, name)
		return err
	})
	if err != nil {
		return Session{}, 0, fmt.Errorf("get session: %w", err)
	}
	return s, revision, nil
}

// A Page is a part of the list of sessions, by name.
type Page struct {
	Sessions []Session
	More     bool  // there are sessions after the last one
	Revision int64 // what the page is true at
}

// List returns up to limit sessions whose names come after the given one, all or only the one named.
func (r *Registry) List(ctx context.Context, only, after string, limit int) (Page, error) {
	var page Page
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		page.Revision = snap.Revision()
		rows := snap.Query(listSessions, after, only, only, limit+1)
		defer rows.Close()
		for rows.Next() {
			s, err := scan(rows)
			if err != nil {
				return err
			}
			page.Sessions = append(page.Sessions, s)
		}
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("list sessions: %w", err)
	}
	if len(page.Sessions) > limit {
		page.Sessions, page.More = page.Sessions[:limit], true
	}
	return page, nil
}

// Configure changes a session and returns it as it is now. A change that changes nothing writes
// nothing. Errors as Lookup.
func (r *Registry) Configure(ctx context.Context, who identity.Caller, req idempotency.Request, c Change) (Session, error) {
	var now Session
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &now, func() (err error) {
			now, err = r.configure(tx, who, c)
			return err
		})
		return err
	})
	if err != nil {
		return Session{}, fmt.Errorf("configure session: %w", err)
	}
	return now, nil
}

func (r *Registry) configure(tx *store.Tx, who identity.Caller, c Change) (Session, error) {
	s, err := get(tx, who.Session)
	if err != nil {
		return Session{}, err
	}
	if !s.ClosedAt.IsZero() {
		return Session{}, errClosed(s.Name)
	}
	before := s
	c.apply(&s)
	if s.Description == before.Description && s.Settings.equal(before.Settings) {
		return s, nil
	}
	s, err = r.changed(tx, who, s, "session.configured", "session "+s.Name+" configured")
	if err != nil || s.Settings.equal(before.Settings) {
		return s, err
	}
	for _, hook := range r.configured {
		if err := hook(tx, before, s); err != nil {
			return s, err
		}
	}
	return s, nil
}

// changed appends the event of a change and stores the session under its revision.
func (r *Registry) changed(tx *store.Tx, who identity.Caller, s Session, eventType, summary string) (Session, error) {
	details, err := json.Marshal(s.details())
	if err != nil {
		return Session{}, err
	}
	s.Revision, err = r.log.Append(tx, events.Entry{
		Session:  s.ID,
		Category: events.System,
		Type:     eventType,
		Source:   who.Name(),
		Summary:  summary,
		Details:  string(details),
		Related:  []string{s.Name},
	})
	if err != nil {
		return Session{}, err
	}
	r.known.Clear(tx)
	tx.Exec(updateSession, s.Description, s.Settings.text(), s.Revision, s.ClosedAt, s.ID)
	return s, nil
}

func get(q store.Querier, name string) (Session, error) {
	rows := q.Query(selectSession, name)
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return Session{}, err
		}
		return Session{}, notFound(q, store.ErrNoRows, name)
	}
	return scan(rows)
}

func scan(rows *store.Rows) (Session, error) {
	var s Session
	var settings string
	err := rows.Scan(&s.ID, &s.Name, &s.Description, &s.CreatedAt, &settings, &s.Revision, &s.ClosedAt)
	if err != nil {
		return s, err
	}
	s.Settings, err = parse(settings)
	return s, err
}

// notFound returns the error of a session that could not be read; for one that does not exist it
// names the nearest ones.
func notFound(q store.Querier, err error, name string) error {
	var names []string
	if errors.Is(err, store.ErrNoRows) {
		names, err = allNames(q)
	}
	if err != nil {
		return fmt.Errorf("look up session: %w", err)
	}
	return fault.Missing("session", name, "there is no session %q; %s", name,
		nearest.Hint(name, names))
}

// allNames returns the names of the sessions; there is always one.
func allNames(q store.Querier) (names []string, err error) {
	rows := q.Query(selectNames, nearest.Limit)
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
