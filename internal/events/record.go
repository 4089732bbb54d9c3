package events

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/jsonline"
	"brokerd/internal/store"
)

// A Record is an event as the archive reads it: in large numbers, and without decoding its parts.
type Record struct {
	Revision int64
	Session  int64
	At       int64 // Unix nanoseconds

	category, severity                                            int64
	kind, spelling, source, role, summary, details, related, task string // related is a JSON list, empty for none
}

// After returns events after a revision in the order of the log, of one session or, for 0, of all: at most limit, and
// about the given number of bytes. It reads a bounded stretch of the log, up to the revision looked, so it may return
// none although some follow; looked is 0 if none follow.
func (l *Log) After(
	snap *store.Snapshot, session, after int64, limit, bytes int,
) (found []Record, looked int64, err error) {
	var from int64
	err = snap.QueryRow(firstAfter, after).Scan(&from)
	if errors.Is(err, store.ErrNoRows) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read events: %w", err)
	}
	looked = min(from+stretch-1, snap.Revision())
	rows := snap.Query(selectAfter, from, looked, session, limit)
	defer rows.Close()
	for bytes > 0 && len(found) < limit && rows.Next() {
		e, err := scanRecord(rows)
		if err != nil {
			return nil, 0, fmt.Errorf("read events: %w", err)
		}
		found = append(found, e)
		bytes -= overheadBytes + len(e.details) + len(e.summary) + len(e.related)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("read events: %w", err)
	}
	if bytes <= 0 || len(found) == limit {
		looked = found[len(found)-1].Revision
	}
	return found, looked, nil
}

func scanRecord(rows *store.Rows) (e Record, err error) {
	var s sent
	err = rows.Scan(&e.Revision, &e.Session, &e.At, &e.category, &e.severity, &e.kind, &e.spelling, &e.source, &e.role,
		&e.summary, &e.details, &e.related, &e.task, &s.recipients, &s.refused, &s.flags, &s.priority, &s.content)
	if err != nil || !s.is() {
		return e, err
	}
	e.summary, e.details = s.summary(e.kind), s.details(e.kind)
	e.category, e.severity, e.kind = int64(Message), int64(Info), sentType
	if e.related != "" {
		e.related = `["` + e.related + `"]`
	}
	return e, nil
}

// Time returns when it was.
func (e *Record) Time() time.Time { return time.Unix(0, e.At).UTC() }

// Append appends an event as one line of JSON, with the fields of the API.
func (e *Record) Append(b []byte, session string) ([]byte, error) {
	b = strconv.AppendInt(append(b, `{"revision":`...), e.Revision, 10)
	b = jsonline.Time(append(b, `,"time":`...), e.Time())
	b = jsonline.Text(append(b, `,"category":`...), Category(e.category).String())
	b = jsonline.Text(append(b, `,"type":`...), e.kind)
	b = jsonline.Text(append(b, `,"type_as_sent":`...), e.spelling)
	b = jsonline.Text(append(b, `,"severity":`...), Severity(e.severity).String())
	b = jsonline.Text(append(b, `,"source":`...), e.source)
	b = jsonline.Text(append(b, `,"source_role":`...), e.role)
	b = jsonline.Text(append(b, `,"summary":`...), e.summary)
	b, err := jsonline.Raw(append(b, `,"details":`...), e.details)
	if err != nil {
		return nil, fmt.Errorf("event %d: details: %w", e.Revision, err)
	}
	switch b = append(b, `,"related":`...); {
	case e.related == "":
		b = append(b, jsonline.Null...)
	case strings.ContainsAny(e.related, "<>&"): // is escaped here
		list, err := listed([]byte(e.related))
		if err != nil {
			return nil, fmt.Errorf("event %d: related: %w", e.Revision, err)
		}
		b = jsonline.List(b, list, jsonline.Text)
	default:
		b = append(b, e.related...)
	}
	b = jsonline.Text(append(b, `,"task_id":`...), e.task)
	b = jsonline.Text(append(b, `,"session":`...), session)
	return append(b, '}'), nil
}
