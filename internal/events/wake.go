package events

import (
	"math"
	"slices"
	"strings"
)

// maxNotes limits the notes of a commit. A commit with more of them wakes every follower.
const maxNotes = 64

// A note is what the events of a commit that are alike have in common. Without a type, it concerns
// all events of the session.
type note struct {
	session int64
	kind    kind
}

// note remembers an event until the commit. It runs in the writer. If the event is undone, its note
// costs some followers a read that finds nothing.
func (l *Log) note(n note) {
	if len(l.notes) < maxNotes && !slices.Contains(l.notes, n) {
		l.notes = append(l.notes, n)
	}
}

// A listener is a follower as the log knows it. The log's mutex guards its fields, except woken.
type listener struct {
	woken chan struct{} // has capacity for one signal

	query   *query // nil = every commit concerns it
	signals bool   // it reads no events: a commit that concerns it is a signal, and no more
	matched bool   // a commit that may have events for it was made since it last looked
	passed  int64  // no commit up to this revision had events for it, besides those before it last looked
	alert   int64  // the revision that wakes it in any case
}

// wake runs in the writer after each commit, once for every event of it: all but the first find
// the revision of the commit already announced.
func (l *Log) wake() {
	revision := l.store.Revision()
	if revision == l.woken {
		return
	}
	l.woken = revision
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.followers {
		f.matched = f.matched && !f.signals || f.query == nil || len(l.notes) == maxNotes || slices.ContainsFunc(l.notes, f.query.concerns)
		if !f.matched {
			f.passed = revision
		}
		if f.matched || revision >= f.alert {
			select {
			case f.woken <- struct{}{}:
			default: // it has a wake-up waiting
			}
		}
	}
	l.notes = l.notes[:0]
}

// join returns a listener that every commit concerns, and a function that ends it.
func (l *Log) join() (*listener, func()) {
	f := &listener{woken: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers[f] = struct{}{}
	return f, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followers, f)
	}
}

// Commits returns a channel that receives a signal after each commit with an event, and a function
// that ends it. Signals that are not received yet are one signal.
func (l *Log) Commits() (<-chan struct{}, func()) {
	f, leave := l.join()
	return f.woken, leave
}

// Changes is Commits for the commits that may have an event of a session.
func (l *Log) Changes(session int64) (<-chan struct{}, func()) {
	f, leave := l.join()
	q := newQuery(session, false, Filter{})
	l.mu.Lock()
	defer l.mu.Unlock()
	f.query, f.signals, f.alert = &q, true, math.MaxInt64
	return f.woken, leave
}

// restrict limits the commits that concern a listener to those that may have events of a query.
func (l *Log) restrict(f *listener, q *query) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.query = q
}

// look reports whether a commit that concerns the listener was made since the last look, and the
// revision up to which there is nothing for it. From now on the revision alert wakes it in any
// case. The follower has read everything that was committed before its last look.
func (l *Log) look(f *listener, alert int64) (matched bool, passed int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	matched, f.matched, f.alert = f.matched, false, alert
	return matched, f.passed
}

// concerns reports whether some events of a note may be among those that the query chooses.
func (q *query) concerns(n note) bool {
	switch {
	case n.session != q.session && n.session != q.other:
		return false
	case n.kind.text == "":
		return true
	case int64(n.kind.severity) < q.severity || q.categories>>n.kind.category&1 == 0:
		return false
	}
	return q.anyType || slices.ContainsFunc(q.filter.Types, func(t string) bool {
		prefix, isPrefix := strings.CutSuffix(t, "*")
		return t == n.kind.text || isPrefix && strings.HasPrefix(n.kind.text, prefix)
	})
}

// chooses reports whether an event is among those that the query chooses.
func (q *query) chooses(e *Event) bool {
	at, f := e.Time.UnixNano(), &q.filter
	return q.concerns(note{e.Session, kind{e.Category, e.Severity, e.Type}}) &&
		at >= q.since && at <= q.until &&
		(q.anySource || slices.Contains(f.Sources, e.Source)) &&
		(q.anyRole || slices.Contains(f.SourceRoles, e.SourceRole)) &&
		(f.TaskID == "" || f.TaskID == e.TaskID)
}

// subscriptions returns the number of open subscriptions that choose an event.
func (l *Log) subscriptions(e *Event) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.followers {
		if f.query != nil && !f.signals && f.query.chooses(e) {
			n++
		}
	}
	return n
}
