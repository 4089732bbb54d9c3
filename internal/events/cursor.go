package events

import (
	"errors"
	"fmt"

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

// SaveCursor keeps a position. A cursor never goes back: saving an earlier position than the one that
// is kept does nothing.
func SaveCursor(tx *store.Tx, session int64, owner, kind, name string, revision int64) error {
	if _, err := tx.Exec(saveCursor, session, owner, kind, name, revision); err != nil {
		return fmt.Errorf("save cursor: %w", err)
	}
	return nil
}
