package blockers

import (
	"encoding/json"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a blocker as an export has it.
type record struct {
	ID          string        `json:"id"`
	Revision    int64         `json:"revision"`
	State       string        `json:"state"`
	Agent       string        `json:"agent"`
	Reason      string        `json:"reason"`
	Severity    string        `json:"severity"`
	Awaited     any           `json:"awaited"`
	TaskID      string        `json:"task_id"`
	TaskBlocked bool          `json:"task_blocked"`
	AutoResolve bool          `json:"auto_resolve"`
	RaisedAt    time.Time     `json:"raised_at"`
	Escalations int           `json:"escalations"`
	ResolvedAt  *time.Time    `json:"resolved_at"`
	Seconds     float64       `json:"time_blocked_seconds,omitempty"` // once it is resolved
	Timeline    []recordEntry `json:"timeline"`
}

type recordEntry struct {
	Entry
	Step string `json:"step"` // instead of the number
}

func (b *Blocker) line() ([]byte, error) {
	r := record{
		ID: b.Name(), Revision: b.Revision, State: b.State.String(), Agent: b.Agent, Reason: b.Reason, Severity: b.Severity.String(),
		Awaited: b.awaited(), TaskID: b.Task, TaskBlocked: b.TaskBlocked, AutoResolve: b.AutoResolve, RaisedAt: b.RaisedAt,
		Escalations: b.Escalations,
	}
	if b.State == Resolved {
		r.ResolvedAt, r.Seconds = &b.ResolvedAt, b.TimeBlocked(b.ResolvedAt).Seconds()
	}
	for _, e := range b.Timeline {
		r.Timeline = append(r.Timeline, recordEntry{e, e.Step.String()})
	}
	return json.Marshal(r)
}

// Records returns the blockers of a session after an id, each as one line of JSON, and the last id.
func (b *Board) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	from, err := work.Position(after)
	if err != nil {
		return nil, "", err
	}
	return work.Lines(q.Query(selectRecords, session, from, limit), scan, (*Blocker).line, func(x *Blocker) int64 { return x.ID })
}

// Erase removes up to limit blockers of a session that is being deleted, and reports whether there may
// be more.
func (b *Board) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	ids, err := store.Collect(tx.Query(selectIDs, session, limit), scanID)
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for _, id := range ids {
		if page.Full() {
			return true, nil
		}
		for _, statement := range []string{deleteAcknowledgers, deleteBlocker} {
			tx.Exec(statement, id)
		}
	}
	return len(ids) == limit, nil
}

// Finished returns blockers that were resolved at or before a time, the oldest first.
func (b *Board) Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error) {
	found, err := read(q.Query(selectResolved, session, before, limit))
	done := make([]work.Done, len(found))
	for i := range found {
		line, err := found[i].line()
		if err != nil {
			return nil, err
		}
		done[i] = work.Done{Key: found[i].ID, At: found[i].ResolvedAt, Line: line}
	}
	return done, err
}

// CountFinished counts the blockers that Finished returns without a limit.
func (b *Board) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countResolved, session, before).Scan(&n)
	return n, err
}

// Remove removes blockers that Finished has returned. Errors: fault.Conflict if one of them is gone.
func (b *Board) Remove(tx *store.Tx, session int64, keys []int64) error {
	for _, key := range keys {
		n, err := tx.ExecCount(deleteResolved, session, key)
		if err == nil && n == 0 {
			err = fault.New(fault.Conflict, "BLOCKER_REMOVED", "blocker %d has been removed already", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Checks returns the checks of the table; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants[:], func(id int64) string { return "blocker " + work.ID(letter, id) })
}

var invariants = [...]work.Invariant{
	{Says: "only a resolved blocker has the time of a resolution", Query: `
		SELECT id FROM blockers WHERE (state = 3) <> (resolved_at IS NOT NULL)`},
	{Says: "only an open blocker escalates", Query: `
		SELECT id FROM blockers WHERE state <> 1 AND escalates_at IS NOT NULL`},
	{Says: "its timeline does not begin with its raising, or does not end with its last change", Query: `
		SELECT id FROM blockers
		WHERE json_extract(timeline, '$[0].step') <> 1 OR json_extract(timeline, '$[0].revision') <> id
		   OR json_extract(timeline, '$[#-1].revision') <> revision OR (state = 3) <> (json_extract(timeline, '$[#-1].step') = 5)`},
}
