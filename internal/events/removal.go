package events

import (
	"encoding/json"
	"fmt"
	"strconv"

	"brokerd/internal/jsonline"
	"brokerd/internal/store"
)

// After returns events after a revision in the order of the log, of one session or, for 0, of all: at most limit, and about the
// given number of bytes.
func (l *Log) After(q store.Querier, session, after int64, limit, bytes int) ([]Event, error) {
	rows := q.Query(selectAfter, after, session, session, limit)
	defer rows.Close()
	found := make([]Event, 0, min(limit, 1000))
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

// Remove removes events of a session, which must be its oldest, all of them, in the order of the log: whoever reads on from before the last of them is told that
// they are gone.
func (l *Log) Remove(tx *store.Tx, session int64, revisions []int64) error {
	if len(revisions) == 0 {
		return nil
	}
	first, last := revisions[0], revisions[len(revisions)-1]
	if last-first < dense*int64(len(revisions)) {
		if _, err := tx.Exec(deleteEventsBetween, first, last, session); err != nil {
			return fmt.Errorf("remove events: %w", err)
		}
		return l.RaiseFloor(tx, session, last)
	}
	list, err := json.Marshal(revisions)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(deleteEvents, string(list)); err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return l.RaiseFloor(tx, session, last)
}

// dense is how many revisions there may be for each event, for a look at all of them to be cheaper than one for each.
const dense = 4

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

// Record appends an event as one line of JSON, with the fields of the API.
func (e *Event) Record(b []byte, session string) ([]byte, error) {
	b = strconv.AppendInt(append(b, `{"revision":`...), e.Revision, 10)
	b = jsonline.Time(append(b, `,"time":`...), e.Time)
	b = jsonline.Text(append(b, `,"category":`...), e.Category.String())
	b = jsonline.Text(append(b, `,"type":`...), e.Type)
	b = jsonline.Text(append(b, `,"severity":`...), e.Severity.String())
	b = jsonline.Text(append(b, `,"source":`...), e.Source)
	b = jsonline.Text(append(b, `,"source_role":`...), e.SourceRole)
	b = jsonline.Text(append(b, `,"summary":`...), e.Summary)
	b, err := jsonline.Raw(append(b, `,"details":`...), e.Details)
	if err != nil {
		return nil, fmt.Errorf("event %d: details: %w", e.Revision, err)
	}
	b = append(b, `,"related":`...)
	if e.Related == nil {
		b = append(b, jsonline.Null...)
	} else {
		b = jsonline.List(b, e.Related, jsonline.Text)
	}
	b = jsonline.Text(append(b, `,"task_id":`...), e.TaskID)
	b = jsonline.Text(append(b, `,"session":`...), session)
	return append(b, '}'), nil
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
