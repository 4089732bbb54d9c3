package events

import (
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

// After returns events after a revision in the order of the log, of one session or, for 0, of all: at most limit, and about the
// given number of bytes.
func (l *Log) After(q store.Querier, session, after int64, limit, bytes int) ([]Record, error) {
	found := make([]Record, 0, min(limit, 1000))
	rows := q.Query(selectAfter, after, session, session, limit)
	defer rows.Close()
	for bytes > 0 && rows.Next() {
		var e Record
		err := rows.Scan(&e.Revision, &e.Session, &e.At, &e.category, &e.severity, &e.kind, &e.spelling, &e.source, &e.role, &e.summary,
			&e.details, &e.related, &e.task)
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		found = append(found, e)
		bytes -= overheadBytes + len(e.details) + len(e.summary) + len(e.related)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return found, nil
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
