package handoffs

import (
	"encoding/json"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a handoff as an export has it.
type record struct {
	ID        string           `json:"id"`
	Revision  int64            `json:"revision"`
	State     string           `json:"state"`
	Title     string           `json:"title"`
	TaskID    string           `json:"task_id"`
	From      string           `json:"from"`
	ToAgent   string           `json:"to_agent"`
	ToRole    string           `json:"to_role"`
	Content   recordContent    `json:"content"`
	Checklist []Item           `json:"checklist"`
	Grants    []map[string]any `json:"grants"`
	CreatedAt time.Time        `json:"created_at"`
	SettledAt *time.Time       `json:"settled_at"`
	SettledBy string           `json:"settled_by"`
	Notes     string           `json:"notes"`
}

type recordContent struct {
	Content
	Links []map[string]string `json:"context_links,omitempty"` // with the names of the kinds
}

func (h *Handoff) line() ([]byte, error) {
	r := record{
		ID: h.Name(), Revision: h.Revision, State: h.State.String(), Title: h.Title, TaskID: h.Task, From: h.From, ToAgent: h.ToAgent,
		ToRole: h.ToRole, Content: recordContent{Content: h.Content}, Checklist: h.Checklist, Grants: h.grantDetails(),
		CreatedAt: h.CreatedAt, SettledBy: h.SettledBy, Notes: h.Notes,
	}
	for _, l := range h.Content.Links {
		r.Content.Links = append(r.Content.Links, map[string]string{"kind": l.Kind.String(), "target": l.Target, "title": l.Title})
	}
	if h.State != Pending {
		r.SettledAt = &h.SettledAt
	}
	return json.Marshal(r)
}

// Records returns the handoffs of a session after an id, each as one line of JSON, and the last id.
func (d *Desk) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	from, err := work.Position(after)
	if err != nil {
		return nil, "", err
	}
	return work.Lines(q.Query(selectRecords, session, from, limit), scan, (*Handoff).line, func(x *Handoff) int64 { return x.ID })
}

// Erase removes up to limit handoffs of a session that is being deleted, and reports whether there may
// be more.
func (d *Desk) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	n, err := tx.ExecCount(deleteSome, session, limit)
	return n == int64(limit), err
}

// Finished returns handoffs that were settled at or before a time, the oldest first.
func (d *Desk) Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error) {
	found, err := read(q.Query(selectSettled, session, before, limit))
	done := make([]work.Done, len(found))
	for i := range found {
		line, err := found[i].line()
		if err != nil {
			return nil, err
		}
		done[i] = work.Done{Key: found[i].ID, At: found[i].SettledAt, Line: line, Revision: found[i].Revision}
	}
	return done, err
}

// CountFinished counts the handoffs that Finished returns without a limit.
func (d *Desk) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countSettled, session, before).Scan(&n)
	return n, err
}

// Remove removes handoffs that Finished has returned. Errors: fault.Conflict if one of them has
// changed since, as the checklist of an accepted handoff can, or has been removed.
func (d *Desk) Remove(tx *store.Tx, session int64, done []work.Done) error {
	for i := range done {
		n, err := tx.ExecCount(deleteSettled, session, done[i].Key, done[i].Revision)
		if err == nil && n == 0 {
			err = fault.New(fault.Conflict, "HANDOFF_CHANGED", "handoff %d has changed or has been removed", done[i].Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Checks returns the checks of the table; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants[:], func(id int64) string { return "handoff " + work.ID(letter, id) })
}

var invariants = [...]work.Invariant{
	{Says: "only a pending handoff is not settled", Query: `
		SELECT id FROM handoffs WHERE (state = 1) <> (settled_at IS NULL)`},
	{Says: "its counts are not those of its checklist", Query: `
		SELECT h.id FROM handoffs h
		WHERE (h.items, h.checked) <> (
			SELECT count(*), count(*) FILTER (WHERE json_extract(i.value, '$.checked_by') IS NOT NULL) FROM json_each(h.checklist) AS i)`},
	{Says: "a grant is transferred or lost, but the handoff is not accepted, or the reverse", Query: `
		SELECT DISTINCT h.id FROM handoffs h, json_each(h.grants) AS g
		WHERE (h.state = 2) <> (json_extract(g.value, '$.new_fence') IS NOT NULL OR json_extract(g.value, '$.lost') IS NOT NULL)`},
}
