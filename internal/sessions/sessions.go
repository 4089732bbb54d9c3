package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Default is the name of the session that always exists.
const Default = "default"

// A Session is a scope, with what the directory does not need to know of it.
type Session struct {
	directory.Session
	Description string
	CreatedAt   time.Time
	Revision    int64 // of its last change; 0 for "default" until it is configured
}

// A Registry keeps the sessions. It may be used concurrently; hooks are added before it is.
type Registry struct {
	store      *store.Store
	log        *events.Log
	dir        *directory.Directory
	created    []func(*store.Tx, Session) error
	configured []func(tx *store.Tx, before, now Session) error
	closed     []func(*store.Tx, Session) error
}

// New returns the registry of a store that was opened with Migrations.
func New(s *store.Store, log *events.Log, dir *directory.Directory) *Registry {
	return &Registry{store: s, log: log, dir: dir}
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
	s := Session{
		Session:   directory.Session{Name: name, Settings: directory.DefaultSettings()},
		CreatedAt: tx.Now(),
	}
	c.apply(&s)
	id := tx.NextRevision() + 1 // so none is given again when a session is deleted; 1 is the default session's
	err := tx.QueryRow(insertSession, id, s.Name, s.Description, s.CreatedAt, s.Settings.Text()).Scan(&s.ID)
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
// nothing. Errors: as directory.Directory.Session.
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
		return Session{}, fault.SessionClosed(s.Name)
	}
	before := s
	c.apply(&s)
	if s.Description == before.Description && s.Settings.Equal(before.Settings) {
		return s, nil
	}
	s, err = r.changed(tx, who, s, "session.configured", "session "+s.Name+" configured")
	if err != nil || s.Settings.Equal(before.Settings) {
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
	r.dir.SessionsChanged(tx)
	tx.Exec(updateSession, s.Description, s.Settings.Text(), s.Revision, s.ClosedAt, s.ID)
	return s, nil
}

func get(q store.Querier, name string) (Session, error) {
	rows := q.Query(selectSession, name)
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return Session{}, err
		}
		return Session{}, directory.ErrNoSession(q, name)
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
	s.Settings, err = directory.ParseSettings(settings)
	return s, err
}
