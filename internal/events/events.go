package events

import (
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/store"
)

// A Category groups event types. The numbers are those of the API and of the table.
type Category int

// The categories.
const (
	Agent Category = 1 + iota
	Message
	State
	Coordination
	Work
	System
)

// A Severity says how much an event matters. The numbers are those of the API and of the table.
type Severity int

// The severities. The zero value counts as Info.
const (
	Debug Severity = 1 + iota
	Info
	Warning
	Error
	Critical
)

// An Entry is what is appended to the log. Category, Type and Source are required.
type Entry struct {
	Session    int64 // row id; 0 = the broker itself, shown to operators only
	Category   Category
	Type       string // such as message.sent
	TypeAsSent string // as the publisher wrote it; empty for the broker's own events, and in a stored event that has the same as Type
	Severity   Severity
	Source     string   // name of the agent that caused it, or "system"
	SourceRole string   // that agent's role
	Summary    string   // one line for people
	Details    string   // text of a JSON object, or empty
	Related    []string // what it is about, at most 16
	TaskID     string
	Quiet      bool // it does not go to the channels of events, whatever its type; not kept
}

// OtherSpelling returns TypeAsSent; empty if Type is the same.
func (e *Entry) OtherSpelling() string {
	if e.TypeAsSent == e.Type {
		return ""
	}
	return e.TypeAsSent
}

// An Event is an entry as it stands in the log.
type Event struct {
	Revision int64
	Time     time.Time
	Entry
}

// A Log appends events and wakes those who follow it. All methods may be called concurrently;
// Append only by the function that its Tx belongs to.
type Log struct {
	store *store.Store
	clock clockwork.Clock
	log   *zap.Logger

	committed func() // wakes the followers; a field so that Append allocates nothing for it
	sent      func() // committed for the event of a message, with observe
	woken     int64  // last revision the followers were woken for; used by the writer alone
	notes     []note // of the events since then; used by the writer alone

	observe  func(text string)                        // nil = no event is counted
	announce func(tx *store.Tx, e Event) (int, error) // nil until OnAnnounced; not changed after that

	stopOnce sync.Once
	stopped  chan struct{}

	mu        sync.Mutex // guards followers
	followers map[*listener]struct{}
}

// New returns the log of a store that was opened with Migrations. Stop ends it.
func New(s *store.Store, clock clockwork.Clock, log *zap.Logger) *Log {
	l := &Log{store: s, clock: clock, log: log, stopped: make(chan struct{}), followers: map[*listener]struct{}{}}
	l.committed, l.sent = l.wake, l.wake
	return l
}

// Observe sets a function that gets the type of each event of the broker after its commit. It must be
// quick. Call it before the log is used.
func (l *Log) Observe(fn func(text string)) {
	l.observe = fn
	l.sent = func() {
		l.wake()
		fn(sentType)
	}
}

// Append adds an event to the log and returns its revision, which is the revision of the change
// that tx makes. Its type is one of the broker's own. Followers are woken after the commit, once for each commit.
func (l *Log) Append(tx *store.Tx, e Entry) (int64, error) {
	if e.Severity == 0 {
		e.Severity = Info
	}
	revision := l.insert(tx, &e)
	if l.observe != nil {
		text := e.Type // else e would move to the heap, with or without an observer
		tx.OnCommit(func() { l.observe(text) })
	}
	if !e.Quiet && l.announce != nil && announced[e.Type] {
		_, err := l.announce(tx, Event{Revision: revision, Time: tx.Now(), Entry: e})
		return revision, err
	}
	return revision, nil
}

// A kind is what events have in common that differ in their contents alone.
type kind struct {
	category Category
	severity Severity
	text     string
}

// insert adds an event to the table, and wakes the followers after the commit. It returns the event's revision.
func (l *Log) insert(tx *store.Tx, e *Entry) int64 {
	revision := tx.NextRevision()
	tx.Exec(insertEvent, int64(e.Category), int64(e.Severity), e.Type, orNull(e.OtherSpelling()), revision,
		e.Session, tx.Now().UnixNano(), e.Source, orNull(e.SourceRole), orNull(e.Summary), orNull(e.Details),
		relatedJSON(e.Related), orNull(e.TaskID))
	l.note(note{e.Session, kind{e.Category, e.Severity, e.Type}})
	tx.OnCommit(l.committed)
	return revision
}

// Count counts the events that the log still has.
func (l *Log) Count(q store.Querier) (int64, error) {
	var n int64
	err := q.QueryRow(countEvents).Scan(&n)
	return n, err
}

// Stop ends all that follow the log: their streams end as fault.Unavailable (SHUTTING_DOWN). Appending
// continues. Stopping twice is fine.
func (l *Log) Stop() { l.stopOnce.Do(func() { close(l.stopped) }) }

// orNull keeps empty text out of the table: NULL is read without a copy.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// relatedJSON writes a list of names and numbers, which need no escapes, without the detour over
// reflection: it is on the path of every message.
func relatedJSON(related []string) any {
	if len(related) == 0 {
		return nil
	}
	text := make([]byte, 0, 64)
	for i, s := range related {
		if i == 0 {
			text = append(text, '[')
		} else {
			text = append(text, ',')
		}
		if plain(s) {
			text = strconv.AppendQuote(text, s)
		} else {
			quoted, _ := json.Marshal(s) // a string can always be marshalled
			text = append(text, quoted...)
		}
	}
	return string(append(text, ']'))
}

func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
