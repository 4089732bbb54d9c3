package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

const (
	stretch       = 20_000  // revisions that one read looks at, so that no read transaction grows old
	listBytes     = 3 << 20 // of one page, well below the 4 MiB that an answer may have
	overheadBytes = 256     // of an event beside its texts, on the wire and in memory
	contentShare  = 16      // a byte that is read of a message counts as this fraction of a byte of an event
)

// A Filter chooses events. What is empty does not restrict, and all that is set must match.
type Filter struct {
	Categories     []Category
	Types          []string // exact, or prefixes that end in ".*"
	LowestSeverity Severity
	Sources        []string
	SourceRoles    []string
	TaskID         string
	Since, Until   time.Time // from Since on, and before Until; zero = no bound
}

// A Scope says whose events are read.
type Scope struct {
	Session string // by name
	Broker  bool   // with those of the broker itself
}

// A Selection says which events to list.
type Selection struct {
	Scope       Scope
	Filter      Filter
	After       int64 // only later events
	Until       int64 // only events up to this one; 0 = no bound
	NewestFirst bool
	Limit       int
}

// A Page is what one read has found.
type Page struct {
	Events   []Event
	Looked   int64 // everything from the start of the selection up to (NewestFirst: down to) this has been looked at
	More     bool  // there is something of the selection beyond Looked
	Revision int64 // what the page is true at
}

// A Reader lists and follows the log. It may be used concurrently.
type Reader struct {
	log *Log
	dir *directory.Directory
}

// NewReader returns a reader of the log.
func NewReader(log *Log, dir *directory.Directory) *Reader {
	return &Reader{log: log, dir: dir}
}

// List returns one page. It looks at a bounded stretch of the log: a page may be short, or empty,
// and still have More. It returns fault.NotFound if the session does not exist, and fault.OutOfRange
// (RESTORED, EVENTS_REMOVED) if a restore has left out its After, or if the selection begins before what is kept. From the beginning (After is 0) is from the oldest that is kept.
func (r *Reader) List(ctx context.Context, s Selection) (Page, error) {
	var page Page
	err := r.log.store.Read(ctx, func(snap *store.Snapshot) error {
		session, err := r.dir.SessionID(snap, s.Scope.Session)
		if err != nil {
			return err
		}
		if err := r.log.store.CheckResume(s.After); err != nil {
			return err
		}
		if s.After, err = fromKept(snap, session, s.After); err == nil && s.Until > 0 {
			_, err = fromKept(snap, session, s.Until)
		}
		if err != nil {
			return err
		}
		page, err = r.log.read(snap, newQuery(session, s.Scope.Broker, s.Filter), s, listBytes)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("list events: %w", err)
	}
	return page, nil
}

// A query is scope and filter in the form that the statements take, made once for all pages.
type query struct {
	session, other int64 // other is a second session, or the same again
	severity       int64
	categories     int64  // bit mask
	types          string // JSON lists
	prefixes       string
	sources        string
	roles          string
	taskID         string
	filter         Filter
	since, until   int64 // Unix nanoseconds, both included
	anyType        bool
	anySource      bool
	anyRole        bool
}

func newQuery(session int64, broker bool, f Filter) query {
	q := query{
		session: session, other: session, severity: int64(f.LowestSeverity), taskID: f.TaskID, filter: f, until: math.MaxInt64,
		anyType: len(f.Types) == 0, anySource: len(f.Sources) == 0, anyRole: len(f.SourceRoles) == 0,
		sources: jsonList(f.Sources), roles: jsonList(f.SourceRoles),
	}
	if broker {
		q.other = 0
	}
	if !f.Since.IsZero() {
		q.since = f.Since.UnixNano()
	}
	if !f.Until.IsZero() {
		q.until = f.Until.UnixNano() - 1
	}
	for _, c := range f.Categories {
		q.categories |= 1 << c
	}
	if len(f.Categories) == 0 {
		q.categories = -1
	}
	var types, prefixes []string
	for _, t := range f.Types {
		if prefix, ok := strings.CutSuffix(t, "*"); ok {
			prefixes = append(prefixes, prefix)
		} else {
			types = append(types, t)
		}
	}
	q.types, q.prefixes = jsonList(types), jsonList(prefixes)
	return q
}

func jsonList(items []string) string {
	if len(items) == 0 {
		return "[]"
	}
	text, _ := json.Marshal(items) // strings can always be marshalled
	return string(text)
}

// read returns the page of a selection that a snapshot shows, of at most the given number of bytes
// unless one event has more. The selection is above the floor of the session.
func (l *Log) read(snap *store.Snapshot, q query, s Selection, bytes int) (Page, error) {
	page := Page{Revision: snap.Revision()}
	low, high := s.After+1, snap.Revision()
	if s.Until > 0 {
		high = min(high, s.Until)
	}
	from, to, err := l.bounds(snap, low, high, s.NewestFirst)
	if err != nil {
		return Page{}, err
	}
	switch {
	case from <= to:
		if err := page.fill(snap, q, from, to, s, bytes); err != nil {
			return Page{}, err
		}
	case s.NewestFirst:
		page.Looked = low
	default:
		page.Looked = max(high, s.After)
	}
	if s.NewestFirst {
		page.More = page.Looked > low
	} else {
		page.More = page.Looked < high
	}
	return page, nil
}

// Newest returns the newest events of a session after a revision, newest first, at most limit. It
// examines the last 20,000 revisions at most.
func (l *Log) Newest(snap *store.Snapshot, session, after int64, limit int) ([]Event, error) {
	floor, err := floorOf(snap, session)
	if err != nil {
		return nil, err
	}
	q := newQuery(session, false, Filter{})
	page, err := l.read(snap, q, Selection{After: max(after, floor), NewestFirst: true, Limit: limit}, listBytes)
	return page.Events, err
}

// bounds returns the stretch to look at first between low and high. It begins at an event that
// exists: the counter may have jumped. Nothing to look at is from > to.
func (l *Log) bounds(snap *store.Snapshot, low, high int64, newestFirst bool) (from, to int64, err error) {
	if high-low < stretch {
		return low, high, nil
	}
	if newestFirst {
		err = snap.QueryRow(lastUntil, high).Scan(&to)
		from = max(low, to-stretch+1)
	} else {
		err = snap.QueryRow(firstAfter, low-1).Scan(&from)
		to = min(high, l.store.SkipGap(from+stretch-1)) // a position that CheckResume accepts
	}
	if errors.Is(err, store.ErrNoRows) {
		return low, low - 1, nil
	}
	return from, to, err
}

// fill reads what matches between two revisions, both included, until the page is full.
func (p *Page) fill(snap *store.Snapshot, q query, from, to int64, s Selection, bytes int) error {
	statement, end, back := oldestMatching, to, int64(-1)
	if s.NewestFirst {
		statement, end, back = newestMatching, from, 1
	}
	firstSent, lastSent := from, to
	if !q.concerns(ofSent(q.session)) {
		firstSent, lastSent = 1, 0
	}
	rows := snap.Query(statement, q.prefixes, from, to, q.session, q.other, q.severity, q.since, q.until, q.categories,
		q.anyType, q.types, q.anySource, q.sources, q.anyRole, q.roles, q.taskID == "", q.taskID, firstSent, lastSent, s.Limit)
	defer rows.Close()
	for rows.Next() {
		e, size, err := scanEvent(rows)
		if err != nil {
			return err
		}
		if bytes -= size; bytes < 0 && len(p.Events) > 0 {
			end = e.Revision + back
			break
		}
		p.Events = append(p.Events, e)
		if len(p.Events) == s.Limit {
			end = e.Revision
			break
		}
	}
	p.Looked = end
	return rows.Err()
}

// scanEvent reads a row of the queries for events, and says about how many bytes it takes.
func scanEvent(rows *store.Rows) (e Event, size int, err error) {
	var category, severity int64
	var related []byte
	var s sent
	err = rows.Scan(&e.Revision, &e.Session, &e.Time, &category, &severity, &e.Type, &e.TypeAsSent, &e.Source, &e.SourceRole,
		&e.Summary, &e.Details, &related, &e.TaskID, &s.recipients, &s.refused, &s.flags, &s.priority, &s.content)
	if err != nil {
		return e, 0, err
	}
	e.Category, e.Severity = Category(category), Severity(severity)
	switch {
	case s.is():
		e.Summary, e.Details = s.summary(e.Type), s.details(e.Type)
		e.Category, e.Severity, e.Type = Message, Info, sentType
		if related != nil {
			e.Related = []string{string(related)}
		}
	case related != nil:
		if e.Related, err = listed(related); err != nil {
			return e, 0, fmt.Errorf("event %d: related: %w", e.Revision, err)
		}
	}
	return e, overheadBytes + len(e.Details) + len(e.Summary) + len(related) + len(s.content)/contentShare, nil
}

// listed reads what relatedJSON has written: mostly without escapes, and then without the detour over reflection.
func listed(text []byte) (list []string, err error) {
	if n := len(text); n > 4 && bytes.IndexByte(text, '\\') < 0 {
		return strings.Split(string(text[2:n-2]), `","`), nil
	}
	err = json.Unmarshal(text, &list)
	return list, err
}
