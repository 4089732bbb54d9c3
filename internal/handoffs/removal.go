package handoffs

import (
	"encoding/json"
	"fmt"
	"strconv"
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

// recordBytes is about how much Records returns at a time.
const recordBytes = 1 << 20

// Records returns the handoffs of a session after an id, each as one line of JSON, and the last id.
func (d *Desk) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	var from int64
	if after != "" {
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, "", err
		}
	}
	rows := q.Query(selectRecords, session, from, limit)
	defer rows.Close()
	for bytes := 0; bytes < recordBytes && rows.Next(); {
		h, err := scan(rows)
		if err != nil {
			return nil, "", err
		}
		line, err := h.line()
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), strconv.FormatInt(h.ID, 10)
		bytes += len(line)
	}
	return lines, last, rows.Err()
}

// Forget removes all handoffs of a session.
func (d *Desk) Forget(tx *store.Tx, session int64) error {
	_, err := tx.Exec(deleteHandoffs, session)
	return err
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
		done[i] = work.Done{Key: found[i].ID, At: found[i].SettledAt, Line: line}
	}
	return done, err
}

// Remove removes handoffs that Finished has returned. Errors: fault.Conflict if one of them is gone.
func (d *Desk) Remove(tx *store.Tx, session int64, keys []int64) error {
	for _, key := range keys {
		n, err := tx.Exec(deleteSettled, session, key)
		if err == nil && n == 0 {
			err = fault.New(fault.Conflict, "HANDOFF_REMOVED", "handoff %d has been removed already", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Checks returns functions that check the table, each in its own snapshot. A check returns the
// problems, one line each, at most most.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) (problems []string, err error) {
			rows := q.Query(i.query)
			defer rows.Close()
			for len(problems) < most && rows.Next() {
				var id int64
				if err := rows.Scan(&id); err != nil {
					return nil, err
				}
				problems = append(problems, fmt.Sprintf("handoff %d: %s", id, i.says))
			}
			return problems, rows.Err()
		})
	}
	return checks
}

var invariants = [...]struct{ says, query string }{
	{"only a pending handoff is not settled", `
		SELECT id FROM handoffs WHERE (state = 1) <> (settled_at IS NULL)`},
	{"its counts are not those of its checklist", `
		SELECT h.id FROM handoffs h
		WHERE (h.items, h.checked) <> (
			SELECT count(*), count(*) FILTER (WHERE json_extract(i.value, '$.checked_by') IS NOT NULL) FROM json_each(h.checklist) AS i)`},
	{"a grant is transferred or lost, but the handoff is not accepted, or the reverse", `
		SELECT DISTINCT h.id FROM handoffs h, json_each(h.grants) AS g
		WHERE (h.state = 2) <> (json_extract(g.value, '$.new_fence') IS NOT NULL OR json_extract(g.value, '$.lost') IS NOT NULL)`},
}
