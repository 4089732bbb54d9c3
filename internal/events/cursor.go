package events

import (
	"errors"
	"fmt"
	"strconv"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// LoadCursor returns the position that the broker keeps under a name for an owner (an agent's name, or
// "system") and a kind of reading, and whether there is one.
func LoadCursor(q store.Querier, session int64, owner, kind, name string) (int64, bool, error) {
	var revision int64
	err := q.QueryRow(selectCursor, session, owner, kind, name).Scan(&revision)
	if errors.Is(err, store.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("load cursor: %w", err)
	}
	return revision, true, nil
}

// How many cursors the broker keeps in a session.
const (
	maxCursors        = 100 // of one owner
	maxSessionCursors = 10_000
)

// SaveCursor keeps a position. A cursor never goes back: saving an earlier position than the one that
// is kept does nothing. Errors: fault.Exhausted (TOO_MANY_CURSORS) for a new cursor beyond a limit.
func SaveCursor(tx *store.Tx, session int64, owner, kind, name string, revision int64) error {
	kept, err := MoveCursor(tx, session, owner, kind, name, revision)
	if err != nil || kept {
		return err
	}
	var own, all bool
	err = tx.QueryRow(fullCursors, session, owner, maxCursors-1, session, maxSessionCursors-1).Scan(&own, &all)
	switch {
	case err != nil:
		return fmt.Errorf("save cursor: %w", err)
	case own:
		return tooManyCursors(maxCursors, "for "+owner)
	case all:
		return tooManyCursors(maxSessionCursors, "in this session")
	}
	tx.Exec(insertCursor, session, owner, kind, name, revision)
	return nil
}

func tooManyCursors(limit int, where string) error {
	return fault.New(fault.Exhausted, "TOO_MANY_CURSORS",
		"the broker keeps %d cursors %s, and no more: use the name of one of them, or deregister the agent, which removes its cursors",
		limit, where).With("limit", strconv.Itoa(limit))
}

// MoveCursor is SaveCursor for a cursor that exists. It reports whether it does.
func MoveCursor(tx *store.Tx, session int64, owner, kind, name string, revision int64) (bool, error) {
	n, err := tx.ExecCount(updateCursor, revision, revision, session, owner, kind, name)
	if err != nil {
		return false, fmt.Errorf("save cursor: %w", err)
	}
	return n > 0, nil
}

// EndCursors removes the cursors of an agent whose registration has ended.
func EndCursors(tx *store.Tx, session int64, owner string) {
	tx.Exec(deleteCursorsOf, session, owner)
}

// EraseCursors removes up to limit cursors of a session that is being deleted, and reports whether
// there may be more.
func EraseCursors(tx *store.Tx, session int64, limit int) (more bool, err error) {
	left, err := tx.ExecPage(limit, []string{deleteSomeCursors}, session)
	if err != nil {
		return false, fmt.Errorf("remove cursors: %w", err)
	}
	return left == 0, nil
}
