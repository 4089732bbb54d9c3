package events

import (
	"encoding/json"

	"brokerd/internal/store"
)

// Remove removes events of a session, which must be its oldest, all of them, in the order of the log: whoever reads on from before the last of them is told that
// they are gone.
func (l *Log) Remove(tx *store.Tx, session int64, revisions []int64) error {
	if len(revisions) == 0 {
		return nil
	}
	first, last := revisions[0], revisions[len(revisions)-1]
	if last-first < dense*int64(len(revisions)) {
		tx.Exec(deleteEventsBetween, first, last, session)
		l.RaiseFloor(tx, session, last)
		return nil
	}
	list, err := json.Marshal(revisions)
	if err != nil {
		return err
	}
	tx.Exec(deleteEvents, string(list))
	l.RaiseFloor(tx, session, last)
	return nil
}

// dense is how many revisions there may be for each event, for a look at all of them to be cheaper than one for each.
const dense = 4

// RaiseFloor has all events of a session up to a revision count as removed.
func (l *Log) RaiseFloor(tx *store.Tx, session, revision int64) {
	tx.Exec(raiseFloor, session, revision)
}

// Forget removes the note of a session's removed events. Subscriptions to the session end.
func (l *Log) Forget(tx *store.Tx, session int64) {
	l.note(note{session: session})
	tx.OnCommit(l.committed)
	tx.Exec(deleteFloor, session)
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
