package events

import (
	"errors"
	"fmt"
	"strconv"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// floorOf returns the revision of the session's newest event that was removed, 0 if none was. Events are removed from the old
// end of a session, so all that come after it are there.
func floorOf(q store.Querier, session int64) (int64, error) {
	var floor int64
	err := q.QueryRow(selectFloor, session).Scan(&floor)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for removed events: %w", err)
	}
	return floor, nil
}

// fromKept returns the position to read on from after a revision: that revision, or for 0, the beginning, the one before the
// oldest event that is kept. Any other revision before that is refused: there would be a gap.
func fromKept(q store.Querier, session, after int64) (int64, error) {
	floor, err := floorOf(q, session)
	if err != nil || after == 0 {
		return floor, err
	}
	if after < floor {
		return 0, removed(q, session, after, floor)
	}
	return after, nil
}

// removed is the error for whoever asks for events after a revision some of which are gone.
func removed(q store.Querier, session, after, floor int64) error {
	oldest := floor + 1
	if err := q.QueryRow(oldestKept, floor, session).Scan(&oldest); err != nil && !errors.Is(err, store.ErrNoRows) {
		return fmt.Errorf("look for the oldest event: %w", err)
	}
	return fault.New(fault.OutOfRange, "EVENTS_REMOVED",
		"the events of this session up to revision %d were removed, and %d lies before that: read after revision %d, or after 0 for all that are kept; older ones are in the archive",
		floor, after, floor).
		With("oldest", strconv.FormatInt(oldest, 10)).With("after", strconv.FormatInt(floor, 10))
}
