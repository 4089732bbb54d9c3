package directory

import (
	"errors"
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/settings"
	"brokerd/internal/store"
)

// A Session is a scope in which everything else lives.
type Session struct {
	ID       int64 // row id, which is never given again
	Name     string
	Settings *pb.SessionSettings // all set; read only, since calls share it
	ClosedAt time.Time           // zero while it is open
}

// Closed reports whether the session is closed: it can be read, and nothing in it changes any more.
func (s Session) Closed() bool { return !s.ClosedAt.IsZero() }

// Types returns the rules of the session for types and payloads.
func (s Session) Types() msgtype.Rules {
	return msgtype.Rules{
		Unknown: msgtype.Policy(s.Settings.GetUnknownTypes()),
		Invalid: msgtype.Policy(s.Settings.GetInvalidPayloads()),
	}
}

const selectSession = `
SELECT id, settings, closed_at FROM sessions WHERE name = ?`

const selectSessionByID = `
SELECT name, settings, closed_at FROM sessions WHERE id = ?`

const selectSessionID = `
SELECT id FROM sessions WHERE name = ?`

const selectSessionNames = `
SELECT name FROM sessions ORDER BY name LIMIT ?`

const selectOpen = `
SELECT name FROM sessions WHERE closed_at IS NULL ORDER BY id`

const countSessions = `
SELECT count(*) FROM sessions`

// Session returns a session by name. Errors: fault.NotFound, which names the nearest names; in a transaction
// fault.Precondition (SESSION_CLOSED) for a closed one.
func (d *Directory) Session(q store.Querier, name string) (Session, error) {
	tx, changing := q.(*store.Tx)
	if !changing {
		return readSession(q, name)
	}
	s, err := d.sessions.Get(tx, name, func() (Session, error) { return readSession(tx, name) })
	if err == nil && s.Closed() {
		err = fault.SessionClosed(name)
	}
	return s, err
}

// SessionID returns the row id of a session. Errors: as Session.
func (d *Directory) SessionID(q store.Querier, name string) (int64, error) {
	if _, changing := q.(*store.Tx); changing {
		s, err := d.Session(q, name)
		if err != nil {
			return 0, err
		}
		return s.ID, nil
	}
	var id int64
	if err := q.QueryRow(selectSessionID, name).Scan(&id); err != nil {
		return 0, unread(q, err, name)
	}
	return id, nil
}

// ByID returns a session by its row id, also if it is closed; store.ErrNoRows if there is none.
func (d *Directory) ByID(q store.Querier, id int64) (Session, error) {
	s := Session{ID: id}
	var stored []byte
	err := q.QueryRow(selectSessionByID, id).Scan(&s.Name, &stored, &s.ClosedAt)
	if err == nil {
		s.Settings, err = settings.Parse(stored)
	}
	if err != nil {
		return Session{}, fmt.Errorf("look up session %d: %w", id, err)
	}
	return s, nil
}

// Open returns the names of the sessions that are open, in the order of their row ids.
func (d *Directory) Open(q store.Querier) ([]string, error) { return readNames(q.Query(selectOpen)) }

// CountSessions counts the sessions.
func (d *Directory) CountSessions(q store.Querier) (int, error) {
	var n int
	err := q.QueryRow(countSessions).Scan(&n)
	return n, err
}

// ErrNoSession is the error for a session that does not exist: fault.NotFound. It names the nearest names.
func ErrNoSession(q store.Querier, name string) error {
	names, err := readNames(q.Query(selectSessionNames, nearest.Limit))
	if err != nil {
		return fmt.Errorf("look up session: %w", err)
	}
	return fault.Missing("session", name, "there is no session %q; %s", name, nearest.Hint(name, names))
}

func readSession(q store.Querier, name string) (Session, error) {
	s := Session{Name: name}
	var stored []byte
	if err := q.QueryRow(selectSession, name).Scan(&s.ID, &stored, &s.ClosedAt); err != nil {
		return Session{}, unread(q, err, name)
	}
	var err error
	s.Settings, err = settings.Parse(stored)
	return s, err
}

// unread returns the error of a session that could not be read.
func unread(q store.Querier, err error, name string) error {
	if errors.Is(err, store.ErrNoRows) {
		return ErrNoSession(q, name)
	}
	return fmt.Errorf("look up session: %w", err)
}

// readNames reads rows of one name.
func readNames(rows *store.Rows) (names []string, err error) {
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
