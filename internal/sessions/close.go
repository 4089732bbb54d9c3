package sessions

import (
	"context"
	"encoding/json"
	"fmt"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Close ends all changes in a session for good, and returns it. Closing twice is fine. fault.NotFound if it does not exist,
// fault.Precondition for the session "default".
func (r *Registry) Close(
	ctx context.Context, who identity.Caller, req idempotency.Request, name, reason string,
) (*pb.Session, error) {
	now, err := r.change(ctx, req, func(tx *store.Tx) (Session, error) { return r.close(tx, who, name, reason) })
	if err != nil {
		return nil, fmt.Errorf("close session: %w", err)
	}
	return now, nil
}

func (r *Registry) close(tx *store.Tx, who identity.Caller, name, reason string) (Session, error) {
	s, err := get(tx, name)
	if err != nil || s.Closed() {
		return s, err
	}
	if name == Default {
		return Session{}, fault.New(fault.Precondition, "DEFAULT_SESSION", "the session %q always exists: it cannot be closed", name)
	}
	// First what goes on in it ends, so that the last event of the session is that it is closed; and then the row, so that nobody is
	// sent that event any more.
	if err := run(r.closed, tx, s.Session); err != nil {
		return Session{}, err
	}
	s.ClosedAt = tx.Now()
	tx.Exec(closeSession, s.ClosedAt, s.ID)
	summary := "session " + name + " closed"
	if reason != "" {
		summary += ": " + reason
	}
	return r.changed(tx, who, s, "session.closed", summary)
}

// Delete removes the row of a closed session, whose other rows are gone, with an event of the broker itself. It tells where its
// export is kept; archive is empty if there is none.
func (r *Registry) Delete(tx *store.Tx, id int64, source, archive string) (int64, error) {
	s, err := r.dir.ByID(tx, id)
	if err != nil {
		return 0, err
	}
	tx.Exec(deleteSession, id)
	r.dir.SessionsChanged(tx)
	details, err := json.Marshal(map[string]string{"session": s.Name, "archive": archive})
	if err != nil {
		return 0, err
	}
	summary := "session " + s.Name + " deleted"
	if archive != "" {
		summary += ", its export is in " + archive
	}
	return r.log.Append(tx, events.Entry{
		Category: events.System,
		Type:     "session.deleted",
		Source:   source,
		Summary:  summary,
		Details:  string(details),
		Related:  []string{s.Name},
	})
}

// All returns all sessions, in the order of their row ids.
func (r *Registry) All(q store.Querier) ([]Session, error) {
	rows := q.Query(listAll)
	defer rows.Close()
	var all []Session
	for rows.Next() {
		s, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// Record returns a session as one line of JSON, for its export.
func (s Session) Record() ([]byte, error) {
	fields := s.details()
	fields["created_at"] = s.CreatedAt
	fields["revision"] = s.Revision
	fields["state"] = "OPEN"
	if s.Closed() {
		fields["state"], fields["closed_at"] = "CLOSED", s.ClosedAt
	}
	return json.Marshal(fields)
}
