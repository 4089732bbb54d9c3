package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/settings"
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

// proto returns the session as the API has it.
func (s Session) proto() *pb.Session {
	out := &pb.Session{
		Name: s.Name, Description: s.Description, CreatedAt: timestamppb.New(s.CreatedAt), Settings: s.Settings,
		Revision: s.Revision, State: pb.SessionState_SESSION_STATE_OPEN,
	}
	if s.Closed() {
		out.State, out.ClosedAt = pb.SessionState_SESSION_STATE_CLOSED, timestamppb.New(s.ClosedAt)
	}
	return out
}

// A Change says what to change. What is nil or not set stays as it is, or gets its default.
type Change struct {
	Description *string
	Settings    *pb.SessionSettings
}

// of returns a session as it is after the change.
func (c Change) of(s Session) Session {
	if c.Description != nil {
		s.Description = *c.Description
	}
	s.Settings = settings.With(s.Settings, c.Settings)
	return s
}

// A Registry keeps the sessions. It may be used concurrently; hooks are added before it is.
type Registry struct {
	store      *store.Store
	log        *events.Log
	dir        *directory.Directory
	created    []func(*store.Tx, directory.Session) error
	configured []func(tx *store.Tx, before, now directory.Session) error
	closed     []func(*store.Tx, directory.Session) error
}

// New returns the registry of a store that was opened with Migrations.
func New(s *store.Store, log *events.Log, dir *directory.Directory) *Registry {
	return &Registry{store: s, log: log, dir: dir}
}

// OnCreated adds hooks that run in the same transaction when a session is created.
func (r *Registry) OnCreated(hooks ...func(tx *store.Tx, s directory.Session) error) {
	r.created = append(r.created, hooks...)
}

// OnClosed adds hooks that run in the same transaction when a session is closed, and end all work in it.
func (r *Registry) OnClosed(hooks ...func(tx *store.Tx, s directory.Session) error) {
	r.closed = append(r.closed, hooks...)
}

// OnConfigured adds hooks that run in the same transaction when the settings of a session change. An
// error refuses the change.
func (r *Registry) OnConfigured(hooks ...func(tx *store.Tx, before, now directory.Session) error) {
	r.configured = append(r.configured, hooks...)
}

// A kept is what the broker keeps of an answer for a repeated call.
type kept struct {
	Name    string
	Session []byte // the pb.Session; nil = kept by an earlier version of the broker
}

// change makes a change of a session once for each request id. A repeated call gets the answer of the first one, or,
// if an earlier version of the broker has kept that, the session as it is now.
func (r *Registry) change(
	ctx context.Context, req idempotency.Request, fn func(*store.Tx) (Session, error),
) (answer *pb.Session, err error) {
	err = r.store.Write(ctx, func(tx *store.Tx) error {
		var k kept
		answer = &pb.Session{}
		seen, err := req.Do(tx, &k, func() error {
			s, err := fn(tx)
			if err != nil {
				return err
			}
			answer, k.Name = s.proto(), s.Name
			k.Session, err = proto.Marshal(answer)
			return err
		})
		switch {
		case err != nil || !seen:
			return err
		case k.Session == nil:
			s, err := get(tx, k.Name)
			answer = s.proto()
			return err
		}
		return proto.Unmarshal(k.Session, answer)
	})
	return answer, err
}

// Create makes a session. fault.Exists if the name is taken.
func (r *Registry) Create(
	ctx context.Context, who identity.Caller, req idempotency.Request, name string, c Change,
) (*pb.Session, error) {
	made, err := r.change(ctx, req, func(tx *store.Tx) (Session, error) { return r.create(tx, who, name, c) })
	if err != nil {
		return nil, fmt.Errorf("create session: %w", err)
	}
	return made, nil
}

func (r *Registry) create(tx *store.Tx, who identity.Caller, name string, c Change) (Session, error) {
	s := c.of(Session{
		Session:   directory.Session{Name: name, Settings: settings.Default()},
		CreatedAt: tx.Now(),
	})
	stored, err := proto.Marshal(s.Settings)
	if err != nil {
		return Session{}, err
	}
	id := tx.NextRevision() + 1 // so none is given again when a session is deleted; 1 is the default session's
	err = tx.QueryRow(insertSession, id, s.Name, s.Description, s.CreatedAt, stored).Scan(&s.ID)
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
	return s, run(r.created, tx, s.Session)
}

func run(hooks []func(*store.Tx, directory.Session) error, tx *store.Tx, s directory.Session) error {
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
func (r *Registry) Configure(
	ctx context.Context, who identity.Caller, req idempotency.Request, c Change,
) (*pb.Session, error) {
	now, err := r.change(ctx, req, func(tx *store.Tx) (Session, error) { return r.configure(tx, who, c) })
	if err != nil {
		return nil, fmt.Errorf("configure session: %w", err)
	}
	return now, nil
}

func (r *Registry) configure(tx *store.Tx, who identity.Caller, c Change) (Session, error) {
	before, err := get(tx, who.Session)
	if err != nil {
		return Session{}, err
	}
	if before.Closed() {
		return Session{}, fault.SessionClosed(before.Name)
	}
	s := c.of(before)
	same := proto.Equal(s.Settings, before.Settings)
	if same && s.Description == before.Description {
		return s, nil
	}
	s, err = r.changed(tx, who, s, "session.configured", "session "+s.Name+" configured")
	if err != nil || same {
		return s, err
	}
	for _, hook := range r.configured {
		if err := hook(tx, before.Session, s.Session); err != nil {
			return s, err
		}
	}
	return s, nil
}

// details are the details of an event, and the beginning of an export.
func (s Session) details() map[string]any {
	details := settings.Details(s.Settings)
	details["session"], details["description"] = s.Name, s.Description
	return details
}

// changed appends the event of a change and stores the session under its revision.
func (r *Registry) changed(tx *store.Tx, who identity.Caller, s Session, eventType, summary string) (Session, error) {
	details, err := json.Marshal(s.details())
	if err != nil {
		return Session{}, err
	}
	stored, err := proto.Marshal(s.Settings)
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
	tx.Exec(updateSession, s.Description, stored, s.Revision, s.ClosedAt, s.ID)
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
	var stored []byte
	err := rows.Scan(&s.ID, &s.Name, &s.Description, &s.CreatedAt, &stored, &s.Revision, &s.ClosedAt)
	if err != nil {
		return s, err
	}
	s.Settings, err = settings.Parse(stored)
	return s, err
}
