package events

import (
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/store"
)

// After returns events after a revision in the order of the log, of one session or, for 0, of all: at most limit, and about the
// given number of bytes.
func (l *Log) After(q store.Querier, session, after int64, limit, bytes int) ([]Event, error) {
	rows := q.Query(selectAfter, after, session, session, limit)
	defer rows.Close()
	var found []Event
	for bytes > 0 && rows.Next() {
		e, size, err := scanEvent(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, e)
		bytes -= size
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return found, nil
}

// Remove removes events of a session, which must be its oldest: whoever reads on from before the last of them is told that
// they are gone.
func (l *Log) Remove(tx *store.Tx, session int64, revisions []int64) error {
	if len(revisions) == 0 {
		return nil
	}
	list, err := json.Marshal(revisions)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(deleteEvents, string(list)); err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return l.RaiseFloor(tx, session, revisions[len(revisions)-1])
}

// RaiseFloor has all events of a session up to a revision count as removed.
func (l *Log) RaiseFloor(tx *store.Tx, session, revision int64) error {
	if _, err := tx.Exec(raiseFloor, session, revision); err != nil {
		return fmt.Errorf("note removed events: %w", err)
	}
	return nil
}

// Forget removes what is kept about a session beside its events: cursors, and what was removed.
func (l *Log) Forget(tx *store.Tx, session int64) error {
	for _, statement := range []string{deleteCursors, deleteFloor} {
		if _, err := tx.Exec(statement, session); err != nil {
			return fmt.Errorf("forget session: %w", err)
		}
	}
	return nil
}

// Record returns an event as one line of JSON, with the fields of the API.
func (e *Event) Record(session string) ([]byte, error) {
	r := record{
		Revision: e.Revision, Time: e.Time.UTC(), Category: e.Category.String(), Type: e.Type, Severity: e.Severity.String(),
		Source: e.Source, SourceRole: e.SourceRole, Summary: e.Summary, Related: e.Related, TaskID: e.TaskID, Session: session,
	}
	if e.Details != "" {
		r.Details = json.RawMessage(e.Details)
	}
	return json.Marshal(r)
}

type record struct {
	Revision   int64           `json:"revision"`
	Time       time.Time       `json:"time"`
	Category   string          `json:"category"`
	Type       string          `json:"type"`
	Severity   string          `json:"severity"`
	Source     string          `json:"source"`
	SourceRole string          `json:"source_role"`
	Summary    string          `json:"summary"`
	Details    json.RawMessage `json:"details"`
	Related    []string        `json:"related"`
	TaskID     string          `json:"task_id"`
	Session    string          `json:"session"`
}

// String returns the category as the API spells it.
func (c Category) String() string {
	names := [...]string{"", "AGENT", "MESSAGE", "STATE", "COORDINATION", "WORK", "SYSTEM"}
	if c < 0 || int(c) >= len(names) {
		return ""
	}
	return names[c]
}

// String returns the severity as the API spells it.
func (s Severity) String() string {
	names := [...]string{"", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
	if s < 0 || int(s) >= len(names) {
		return ""
	}
	return names[s]
}
